"""Turns figures into text: medians over rounds, ratios to Java, verdicts, saved files.

Pure except for `environment` and `save`. Called by bench/__main__.py and bench/spark/__main__.py.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import orjson
from rich.console import Console
from rich.table import Table

from bench.cases import BOUNDS, Bound, Case

#: Figures of one server in one round: by case ("" for the whole run), then by name.
ServerRun = dict[str, dict[str, float]]

_CASE_FIGURES = {
    "rate": ("messages/s", "{:,.0f}"),
    "cpu_us": ("server CPU µs per message", "{:.2f}"),
    "p50_ms": ("p50 ms", "{:.3f}"),
    "p99_ms": ("p99 ms", "{:.3f}"),
    "p999_ms": ("p99.9 ms", "{:.3f}"),
    "rss_mib": ("server RSS MiB", "{:,.0f}"),
    "server_cores": ("cores the server used", "{:.2f}"),
    "load_cores": ("cores the load generator used", "{:.2f}"),
}
_RUN_FIGURES = {
    "startup_s": ("start to first accepted send, s", "{:.2f}"),
    "rss_mib": ("server RSS at the end, MiB", "{:,.0f}"),
    "anonymous_mib": ("  anonymous", "{:,.0f}"),
    "file_mib": ("  mapped files", "{:,.0f}"),
}
_LOAD_LIMIT_CORES = 0.85
_WARM_SENDS = 500_000
#: Marks the commit of a tree with uncommitted changes.
_CHANGED = "+changes"
_BASE = "java"
_SUBJECT = "pyromq"


def medians(rounds: Sequence[ServerRun]) -> ServerRun:
    """Return the median of every figure over the rounds, but the maximum of refusals."""
    return {
        case: {
            name: (max if name == "refused" else median)(each[case][name] for each in rounds)
            for name in figures
        }
        for case, figures in rounds[0].items()
    }


def render(
    figures: Mapping[str, ServerRun], cases: Sequence[Case], facts: Mapping[str, object]
) -> tuple[str, list[str]]:
    """Return the report as text, and the missed bounds."""
    servers = list(figures)
    table = Table(show_edge=False)
    table.add_column("case")
    table.add_column("figure")
    for server in servers:
        table.add_column(server, justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("", justify="left")
    missed: list[str] = []
    sections = [(case.name, case.title, _CASE_FIGURES) for case in cases]
    sections.append(("", "whole run", _RUN_FIGURES))
    for name, title, rows in sections:
        for row, (figure, (label, form)) in enumerate(rows.items()):
            values = [figures[server][name][figure] for server in servers]
            ratio = ratio_to_java(figures, name, figure)
            bound = _bound(name, figure)
            verdict = ""
            if bound is not None and ratio is not None:
                verdict = "ok" if bound.kept(ratio) else "MISSED"
                if verdict == "MISSED":
                    missed.append(f"{title}: {label} {ratio:.2f}, bound {_limit(bound)}")
            table.add_row(
                "" if row else title,
                label,
                *(form.format(value) for value in values),
                "" if ratio is None else f"{ratio:.2f}",
                "" if bound is None else _limit(bound),
                verdict,
            )
        table.add_section()
    text = io.StringIO()
    console = Console(file=text, width=120, color_system=None)
    console.print(table)
    console.print(_notes(facts))
    if isinstance(sends := facts.get("warm_up"), int) and sends < _WARM_SENDS:
        console.print(f"NOTE  only {sends:,} warm-up sends: Java is not fully compiled")
    for line in _busy_generators(figures, cases):
        console.print(line)
    for server, case, count in _refusals(figures, cases):
        line = f"{server} refused {count:,.0f} messages as busy in {case.title!r}"
        if server == _SUBJECT:
            missed.append(line)
        else:
            console.print(f"NOTE  {line}")
    for line in missed:
        console.print(f"MISSED  {line}")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", missed


def ratio_to_java(figures: Mapping[str, ServerRun], case: str, figure: str) -> float | None:
    """Return pyromq's figure divided by Java's, or None unless both were measured."""
    if _BASE not in figures or _SUBJECT not in figures:
        return None
    base = figures[_BASE][case][figure]
    return figures[_SUBJECT][case][figure] / base if base else None


def _bound(case: str, figure: str) -> Bound | None:
    return next((b for b in BOUNDS if (b.case, b.figure) == (case, figure)), None)


def _limit(bound: Bound) -> str:
    return f"{'<=' if bound.at_most else '>='} {bound.limit:g}"


def _busy_generators(figures: Mapping[str, ServerRun], cases: Sequence[Case]) -> list[str]:
    return [
        f"NOTE  the load generator used {used:.2f} cores against {server} in "
        f"{case.title!r} and may have been the bottleneck"
        for server in figures
        for case in cases
        if (used := figures[server][case.name]["load_cores"]) > _LOAD_LIMIT_CORES
    ]


def _refusals(
    figures: Mapping[str, ServerRun], cases: Sequence[Case]
) -> list[tuple[str, Case, float]]:
    return [
        (server, case, count)
        for server in figures
        for case in cases
        if (count := figures[server][case.name]["refused"])
    ]


def _notes(facts: Mapping[str, object]) -> str:
    return (
        "\n"
        + ", ".join(f"{key} {value}" for key, value in facts.items())
        + "\nCPU and RSS are those of the broker's process, without Java's NameServer (a second"
        "\nprocess) but with pyromq's (the same process). CPU counts until the server is idle after"
        "\nthe last response and includes deferred work. Start-up lasts from spawning the processes"
        "\n(Java: NameServer and broker together) until a send succeeds. Java logs warnings only."
        "\nLatencies are per request (a batch or a pull is one request).\n"
    )


def environment(repository: Path, **settings: int) -> dict[str, object]:
    """Return the facts needed to compare two runs: tree, machine, settings."""
    commit = _output(["git", "rev-parse", "--short", "HEAD"], repository)
    changed = _output(["git", "status", "--porcelain", "--", "src", "bench"], repository)
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
        directory = repository / "bench" / "results"
        name = f"{benchmark}-{facts['machine']}-{facts['cores']}-cores"
    else:
        directory = repository / ".cache" / "bench-results"
        name = f"{facts['date']}-{facts['commit']}-{benchmark}"
    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_text = directory / f"{name}.json", directory / f"{name}.txt"
    as_json.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    as_text.write_text(text)
    return [as_json, as_text]


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
