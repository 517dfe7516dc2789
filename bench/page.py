"""Writes the tables and the plot of docs/performance.md from a baseline.

`python -m bench --page` replaces the text between the page's two markers and the plot beside it;
the rest of the page is written by hand. Called by bench/__main__.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from bench.cases import (
    ACK,
    CATCH_UP,
    CLIENT_TITLES,
    CONTENDERS,
    FAIL_OVER,
    JAVA,
    KAFKA,
    NATS,
    PYROMQ,
    RAFT,
    RECOVERY,
    REPLICATED,
    SECTIONS,
    START,
    THROUGHPUT,
    Section,
)
from bench.plot import plot
from bench.report import Rounds, Verdict, baseline_file, cell, ratio, spread, verdicts

BEGIN: Final = "<!-- begin: written by `python -m bench --page` -->"
END: Final = "<!-- end -->"
UNSETTLED: Final = " \\*"
_RIVALS: Final = (JAVA, NATS, KAFKA)
#: Figures to compare, and whether less is better.
_COMPARED: Final = {
    "cpu_us": True,
    "rate": False,
    "p50_ms": True,
    "p99_ms": True,
    "p999_ms": True,
    "startup_s": True,
    "rest_mib": True,
}
_FACTS: Final = (
    "date",
    "commit",
    "machine",
    "cores",
    "kernel",
    "python",
    "java",
    "rounds",
    "messages",
)


def write_page(repository: Path) -> list[Path]:
    """Write the page's tables and its plot; return the files. Raises ValueError."""
    facts = {"machine": platform.machine(), "cores": os.cpu_count() or 0}
    source = baseline_file(repository, "broker", facts)
    content = orjson.loads(source.read_bytes()) if source.is_file() else {}
    if "cases" not in content:
        raise ValueError(f"{source} holds no baseline: run `python -m bench --baseline` first")
    page = repository / "docs" / "performance.md"
    picture = page.with_suffix(".svg")
    rounds: Rounds = {name: case["rounds"] for name, case in content["cases"].items()}
    text = page.read_text()
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{page} lacks the marker {END if found else BEGIN}")
    tables = render_tables(
        rounds, {name: case["environment"] for name, case in content["cases"].items()}
    )
    page.write_text(f"{before}{BEGIN}\n{tables}{END}{after}")
    picture.write_text(plot(rounds, THROUGHPUT))
    return [page, picture]


def render_tables(rounds: Rounds, environments: Mapping[str, Mapping[str, Any]]) -> str:
    """Return all tables as Markdown."""
    by_name = {section.name: section for section in SECTIONS}
    loads = [by_name[case.name] for case in THROUGHPUT if case.name in rounds]
    clients = [by_name[name] for name in CLIENT_TITLES if name in rounds]
    parts = [
        "### CPU per message\n",
        "Median of the rounds in µs, lowest and highest in brackets.\n",
        _by_case(rounds, loads, "cpu_us"),
        "### Throughput\n",
        "Messages per second. A contender `ack` only acknowledges: the generator's ceiling.\n",
        _by_case(rounds, loads, "rate"),
        "### Latency\n",
        "p50 in ms:\n",
        _by_case(rounds, loads, "p50_ms"),
        "p99 in ms:\n",
        _by_case(rounds, loads, "p99_ms"),
        "p99.9 in ms:\n",
        _by_case(rounds, loads, "p999_ms"),
    ]
    for name, title in (
        (REPLICATED.name, "Replication"),
        (CATCH_UP, "Replica that catches up"),
        (RAFT.name, "Raft group"),
        (FAIL_OVER, "Kill of a raft group's leader"),
        (START, "Start"),
        (RECOVERY, "Recovery after a kill"),
    ):
        if name in rounds:
            parts += [f"### {title}\n", _by_figure(rounds, by_name[name])]
    if clients:
        parts += [
            "### Clients\n",
            "Messages per second. Ratios are those of the same case; see the goals for others.\n",
            _by_case(rounds, clients, "rate"),
            "CPU of the client per message, µs:\n",
            _by_case(rounds, clients, "cpu_us"),
        ]
    parts += [
        "### Load generator\n",
        "Cores that the generator used, with Kafka its own client:\n",
        _by_case(rounds, loads, "load_cores"),
        "Slices of warm-up before the first round. A star marks one not known to have settled:\n",
        _slices(rounds, loads),
        "### Goals\n",
        "Ratios of medians.\n",
        _goals(verdicts(rounds)),
        "### Where pyromq loses\n",
        "Every figure in which another system was better:\n",
        _losses(rounds),
        "### Runs\n",
        _runs(environments),
    ]
    return "\n".join(parts)


def _contenders(rounds: Rounds, sections: Sequence[Section], figure: str) -> list[str]:
    names = {
        name
        for section in sections
        for name, each in rounds[section.name].items()
        if any(figure in one for one in each)
    }
    others = sorted(names - set(CONTENDERS))  # clients of other projects
    return [name for name in (*CONTENDERS, *others) if name in names]


def _by_case(rounds: Rounds, sections: Sequence[Section], figure: str) -> str:
    """Return a table of one figure with a row per case."""
    names = _contenders(rounds, sections, figure)
    if figure != "rate":
        names = [name for name in names if name != ACK or figure == "load_cores"]
    rows = []
    for section in sections:
        form = section.figures[figure][1]
        values = [spread(rounds, section.name, name, figure) for name in names]
        compared = ratio(rounds, section.name, figure, PYROMQ, JAVA)
        rows.append(
            [
                section.title,
                *("" if value is None else cell(value, form) for value in values),
                "" if compared is None else f"{compared:.2f}",
            ]
        )
    return _table(["case", *names, "pyromq / java"], rows)


def _by_figure(rounds: Rounds, section: Section) -> str:
    """Return a table of one case with a row per figure."""
    names = _contenders(rounds, [section], next(iter(section.figures)))
    rows = []
    for figure, (label, form) in section.figures.items():
        values = [spread(rounds, section.name, name, figure) for name in names]
        compared = ratio(rounds, section.name, figure, PYROMQ, JAVA)
        rows.append(
            [
                label.strip(),
                *("" if value is None else cell(value, form) for value in values),
                "" if compared is None else f"{compared:.2f}",
            ]
        )
    return _table(["", *names, "pyromq / java"], rows)


def _slices(rounds: Rounds, sections: Sequence[Section]) -> str:
    names = _contenders(rounds, sections, "slices")
    rows = [
        [section.title, *(_first_slices(rounds[section.name].get(name)) for name in names)]
        for section in sections
    ]
    return _table(["case", *names], rows)


def _first_slices(measured: Sequence[Mapping[str, float]] | None) -> str:
    if not measured:
        return ""
    mark = "" if measured[0].get("settled") else UNSETTLED
    return f"{measured[0]['slices']:.0f}{mark}"


def _goals(judged: Sequence[Verdict]) -> str:
    rows = [
        [
            verdict.title,
            verdict.bound.subject,
            f"{verdict.ratio:.2f}",
            str(verdict.bound).replace("<=", "≤").replace(">=", "≥"),
            "met" if verdict.is_kept else "**missed**",
        ]
        for verdict in judged
    ]
    return _table(["figure", "of", "measured", "goal", ""], rows)


def _losses(rounds: Rounds) -> str:
    rows = []
    for section in (each for each in SECTIONS if each.name in rounds):
        for figure, is_better_if_less in _COMPARED.items():
            ours = spread(rounds, section.name, PYROMQ, figure)
            if figure not in section.figures or ours is None:
                continue
            label, form = section.figures[figure]
            for name in _RIVALS:
                theirs = spread(rounds, section.name, name, figure)
                if theirs is None or (theirs.median < ours.median) is not is_better_if_less:
                    continue
                values = (form.format(each.median) for each in (ours, theirs))
                rows.append([section.title, label, *values, name])
    return _table(["case", "figure", "pyromq", "better", "of"], rows)


def _runs(environments: Mapping[str, Mapping[str, Any]]) -> str:
    by_run: dict[tuple[str, ...], list[str]] = {}
    for name, facts in environments.items():
        run = tuple(str(facts.get(fact, "")) for fact in _FACTS)
        by_run.setdefault(run, []).append(name)
    return _table([*_FACTS, "cases"], [[*run, ", ".join(names)] for run, names in by_run.items()])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
