"""Figures to text: medians over rounds, ratios to Java, verdicts, and the kept files.

Pure but for `environment` and `save`. Called by bench/__main__.py.
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
    "anonymous_mib": ("  of it anonymous", "{:,.0f}"),
    "file_mib": ("  of it mapped files", "{:,.0f}"),
}
_LOAD_LIMIT_CORES = 0.85
_WARM_SENDS = 500_000
_BASE = "java"
_SUBJECT = "pyromq"


def medians(rounds: Sequence[ServerRun]) -> ServerRun:
    """Return the median of every figure over the rounds; of refusals the most, to hide none."""
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
    """Return the report as text, and the bounds that were missed."""
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
        console.print(f"NOTE  only {sends:,} sends of warm-up: Java's figures are not its best")
    for line in _busy_generators(figures, cases):
        console.print(line)
    for server, case, count in _refusals(figures, cases):
        line = f"{server} was too busy for {count:,.0f} messages in {case.title!r}"
        if server == _SUBJECT:
            missed.append(line)
        else:
            console.print(f"NOTE  {line}")
    for line in missed:
        console.print(f"MISSED  {line}")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", missed


def ratio_to_java(figures: Mapping[str, ServerRun], case: str, figure: str) -> float | None:
    """Pyromq's figure divided by Java's, where both were measured."""
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
        f"{case.title!r}: it may have been the limit"
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
        + "\nCPU and RSS are of the broker's process; Java's NameServer is a second process and is"
        "\nnot counted, pyromq's is in the same process and is. CPU is counted until the server"
        "\nrests after the last answer, so work put off counts. Start: from spawning the processes"
        "\n(Java: NameServer and broker together) until a send is answered with success. Java"
        "\nlogs warnings only. Latencies are per request (a batch or a pull is one request).\n"
    )


def environment(repository: Path, **settings: int) -> dict[str, object]:
    """What a reader must know to compare two runs."""
    commit = _output(["git", "rev-parse", "--short", "HEAD"], repository)
    changed = _output(["git", "status", "--porcelain", "--", "src", "bench"], repository)
    java = _output(["java", "-version"], repository).splitlines()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": (commit or "unknown") + ("+changes" if changed else ""),
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0].split('"')[1] if java and '"' in java[0] else "none",
        **settings,
    }


def save(
    directory: Path,
    facts: Mapping[str, object],
    figures: Mapping[str, ServerRun],
    runs: Mapping[str, Sequence[ServerRun]],
    table: str,
) -> tuple[Path, Path]:
    """Keep a run as JSON and as text, named by date and commit."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{facts['date']}-{facts['commit']}"
    as_json, as_text = stem.with_suffix(".json"), stem.with_suffix(".txt")
    content = {"environment": facts, "medians": figures, "rounds": runs}
    as_json.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    as_text.write_text(table)
    return as_json, as_text


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
