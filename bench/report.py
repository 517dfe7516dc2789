"""Turns figures into text: medians and spread over rounds, ratios, verdicts, saved files.

Pure except for `environment`, `save` and `merged_with_baseline`. Called by bench/__main__.py,
bench/page.py and bench/spark/__main__.py.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.cases import (
    BASE,
    BOUNDS,
    CONTENDERS,
    INVALID,
    JAVA,
    PYROMQ,
    SECTIONS,
    Bound,
    Section,
)

#: Figures of every round: by case, contender, round, and name.
Rounds = dict[str, dict[str, list[dict[str, float]]]]
#: A saved case: "environment" (facts of the run) and "rounds" (by contender).
Saved = dict[str, dict[str, Any]]

_LOAD_LIMIT_CORES = 0.85
#: Marks the commit of a tree with uncommitted changes.
_CHANGED = "+changes"


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound, and what was measured."""

    bound: Bound
    title: str
    ratio: float

    @property
    def is_kept(self) -> bool:
        """Return whether the bound is met."""
        return self.bound.kept(self.ratio)

    def __str__(self) -> str:
        return f"{self.title}: {self.bound.subject} {self.ratio:.2f}, bound {self.bound}"


def spread(rounds: Rounds, case: str, contender: str, figure: str) -> Spread | None:
    """Return a figure's median and range, or None if it was not measured."""
    values = [each[figure] for each in rounds.get(case, {}).get(contender, ()) if figure in each]
    return Spread(median(values), min(values), max(values)) if values else None


def ratio(
    rounds: Rounds, case: str, figure: str, subject: str, reference: str, reference_case: str = ""
) -> float | None:
    """Return the ratio of two medians, or None unless both were measured."""
    ours = spread(rounds, case, subject, figure)
    theirs = spread(rounds, reference_case or case, reference, figure)
    return ours.median / theirs.median if ours and theirs and theirs.median else None


def verdicts(rounds: Rounds) -> list[Verdict]:
    """Judge every bound whose figures were measured."""
    titles = {section.name: section for section in SECTIONS}
    found = []
    for bound in BOUNDS:
        measured = ratio(
            rounds,
            bound.case,
            bound.figure,
            bound.subject,
            bound.reference,
            bound.reference_case,
        )
        if measured is not None:
            section = titles[bound.case]
            title = f"{section.title}, {section.figures[bound.figure][0]}"
            found.append(Verdict(bound, title, measured))
    return found


def render(rounds: Rounds, facts: Mapping[str, object]) -> tuple[str, list[str]]:
    """Return the report as text, and the missed bounds."""
    sections = [section for section in SECTIONS if rounds.get(section.name)]
    measured = {name for section in sections for name in rounds[section.name]}
    contenders = [name for name in CONTENDERS if name in measured]
    contenders += sorted(measured - set(contenders))  # clients of other projects
    judged = verdicts(rounds)
    text = io.StringIO()
    console = Console(file=text, width=90 + 26 * len(contenders), color_system=None)
    console.print(_figures_table(rounds, sections, contenders))
    console.print(_notes(facts))
    if judged:
        console.print(_bounds_table(judged))
    missed = [str(verdict) for verdict in judged if not verdict.is_kept]
    for line in (*_busy_generators(rounds, sections), *_unsettled(rounds, sections)):
        console.print(line)
    for contender, section, count in _refusals(rounds, sections):
        line = f"{contender} refused {count:,.0f} messages as busy in {section.title!r}"
        if contender == JAVA:
            console.print(f"NOTE  {line}")
        else:
            missed.append(line)
    for contender, section, count in _invalid(rounds, sections):
        line = f"{contender}: {count} rounds of {section.title!r} were invalid"
        if contender == JAVA:
            console.print(f"NOTE  {line}")
        else:
            missed.append(line)
    for line in missed:
        console.print(f"MISSED  {line}")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", missed


def _figures_table(rounds: Rounds, sections: Sequence[Section], contenders: Sequence[str]) -> Table:
    table = Table(show_edge=False)
    table.add_column("case")
    table.add_column("median (lowest to highest)")
    for contender in contenders:
        table.add_column(contender, justify="right")
    references = [name for name in (JAVA, BASE) if name in contenders and PYROMQ in contenders]
    for reference in references:
        table.add_column(f"{PYROMQ} / {reference}", justify="right")
    for section in sections:
        for row, (figure, (label, form)) in enumerate(section.figures.items()):
            cells = [
                "" if value is None else cell(value, form)
                for value in (spread(rounds, section.name, name, figure) for name in contenders)
            ]
            compared = [ratio(rounds, section.name, figure, PYROMQ, name) for name in references]
            table.add_row(
                "" if row else section.title,
                label,
                *cells,
                *("" if each is None else f"{each:.2f}" for each in compared),
            )
        table.add_section()
    return table


def cell(value: Spread, form: str) -> str:
    """Return a figure with its range, or alone if there is none."""
    text, low, high = (form.format(each) for each in (value.median, value.low, value.high))
    return text if low == high else f"{text} ({low} to {high})"


def _bounds_table(judged: Sequence[Verdict]) -> Table:
    table = Table(show_edge=False)
    for title in ("bound", "of", "measured", "limit", ""):
        table.add_column(title)
    for verdict in judged:
        table.add_row(
            verdict.title,
            verdict.bound.subject,
            f"{verdict.ratio:.2f}",
            str(verdict.bound),
            "ok" if verdict.is_kept else "MISSED",
        )
    return table


def _busy_generators(rounds: Rounds, sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        for contender in rounds[section.name]:
            used = spread(rounds, section.name, contender, "load_cores")
            if used is not None and used.high > _LOAD_LIMIT_CORES:
                yield (
                    f"NOTE  the load generator used {used.high:.2f} cores against {contender} in "
                    f"{section.title!r} and may have been the bottleneck"
                )


def _unsettled(rounds: Rounds, sections: Sequence[Section]) -> Iterator[str]:
    for section in sections:
        for contender, each in rounds[section.name].items():
            # A single slice is the lead-in of a server that was warmed up in the first round.
            capped = [one for one in each if one.get("slices", 0) > 1 and not one.get("settled")]
            if capped:
                yield (
                    f"NOTE  {contender} had not settled in {section.title!r} before {len(capped)} "
                    f"of {len(each)} rounds: it may not have been warm"
                )


def _refusals(rounds: Rounds, sections: Sequence[Section]) -> Iterator[tuple[str, Section, float]]:
    for section in sections:
        if "load_cores" in section.figures:
            for contender in rounds[section.name]:
                refused = spread(rounds, section.name, contender, "refused")
                if refused is not None and refused.high:
                    yield contender, section, refused.high


def _invalid(rounds: Rounds, sections: Sequence[Section]) -> Iterator[tuple[str, Section, int]]:
    for section in sections:
        for contender, each in rounds[section.name].items():
            count = sum(INVALID in one for one in each)
            if count:
                yield contender, section, count


def _notes(facts: Mapping[str, object]) -> str:
    return (
        "\n"
        + ", ".join(f"{key} {value}" for key, value in facts.items())
        + "\nCPU and RSS are those of the server's process, without Java's NameServer (a second"
        "\nprocess) but with pyromq's (the same process). CPU counts until the server is idle after"
        "\nthe last response and includes deferred work. Start-up lasts from spawning the processes"
        "\n(Java: NameServer and broker together) until a send succeeds. Java logs warnings only."
        "\nLatencies are per request (a batch or a pull is one request). Ratios are those of"
        "\nmedians. With a replica, CPU and RSS are those of both brokers, without the NameServer."
        "\nack only acknowledges: its rate is the load generator's ceiling.\n"
    )


def merged_with_baseline(repository: Path, facts: Mapping[str, object], rounds: Rounds) -> Saved:
    """Return the baseline's cases with those of a run in place of older ones."""
    path = baseline_file(repository, "broker", facts)
    before: Saved = {}
    if path.is_file():
        before = orjson.loads(path.read_bytes()).get("cases", {})
    fresh = {
        case: {"environment": dict(facts), "rounds": contenders}
        for case, contenders in rounds.items()
    }
    merged = before | fresh
    return {section.name: merged[section.name] for section in SECTIONS if section.name in merged}


def environment(repository: Path, **settings: int) -> dict[str, object]:
    """Return the facts needed to compare two runs: tree, machine, settings."""
    commit = _output(["git", "rev-parse", "--short", "HEAD"], repository)
    # A baseline may be measured in several runs, so results do not count as a change.
    measured = ("src", "bench", ":!bench/results")
    changed = _output(["git", "status", "--porcelain", "--", *measured], repository)
    java = _output(["java", "-version"], repository).splitlines()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": (commit or "unknown") + (_CHANGED if changed else ""),
        "machine": platform.machine(),
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0].split('"')[1] if java and '"' in java[0] else "none",
        **settings,
    }


def is_committed(facts: Mapping[str, object]) -> bool:
    """Return whether the measured tree is a commit: a baseline must be reproducible."""
    return not str(facts["commit"]).endswith(_CHANGED)


def save(
    repository: Path, benchmark: str, content: Mapping[str, object], text: str, *, is_baseline: bool
) -> list[Path]:
    """Write a run as JSON and text; return the files.

    Runs go to .cache/bench-results, named after date and commit. A baseline goes to bench/results,
    which is under version control, and replaces the one of the same kind of machine.
    """
    facts = content["environment"]
    assert isinstance(facts, Mapping)
    if is_baseline:
        as_json = baseline_file(repository, benchmark, facts)
    else:
        directory = repository / ".cache" / "bench-results"
        as_json = directory / f"{facts['date']}-{facts['commit']}-{benchmark}.json"
    as_json.parent.mkdir(parents=True, exist_ok=True)
    as_text = as_json.with_suffix(".txt")
    as_json.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    as_text.write_text(text)
    return [as_json, as_text]


def baseline_file(repository: Path, benchmark: str, facts: Mapping[str, object]) -> Path:
    """Return the JSON file of a kind of machine's baseline."""
    name = f"{benchmark}-{facts['machine']}-{facts['cores']}-cores.json"
    return repository / "bench" / "results" / name


def _output(command: Sequence[str], directory: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
