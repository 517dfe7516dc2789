"""The case `metrics`: what metrics cost, per message, in CPU of the server.

Two brokers run at the same time, one without and one with metrics, and get the same load in turn:
sends of 128 B, then pulls of 32. So both see the same machine. The bound limits the median over the
rounds of the ratio of the two. Scrapes are not part of it: their time is on the page itself
(`pyromq_scrape_seconds`). Called by bench/__main__.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.cases import BASE, PYROMQ, THROUGHPUT
from bench.compare import Amount, measure_cases
from bench.report import Rounds
from bench.servers import PyromqServer

#: Maximum CPU per message with metrics, divided by that without.
BOUND = 1.03
SETTINGS = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}

_CASES = [case for case in THROUGHPUT if case.name in ("send128", "pull")]


def measure_metrics(data: Path, amount: Amount, console: Console) -> tuple[str, bool]:
    """Run a broker with and one without metrics; return a table and whether the bound is met."""
    console.print(f"{BASE} is without metrics")
    servers = [PyromqServer(name=BASE), PyromqServer(SETTINGS, name=PYROMQ)]
    return render(measure_cases(servers, _CASES, data, amount, console))


def render(rounds: Rounds) -> tuple[str, bool]:
    """Return the table, and whether the bound is met in every case."""
    lines = [
        "| case | without, µs | with metrics, µs | ratio | ratios of the rounds |",
        "| --- | --- | --- | --- | --- |",
    ]
    is_met = True
    for name, of_systems in rounds.items():
        plain = [each["cpu_us"] for each in of_systems[BASE]]
        measured = [each["cpu_us"] for each in of_systems[PYROMQ]]
        ratios = ratios_of(plain, measured)
        is_met &= median(ratios) <= BOUND
        shown = ", ".join(f"{each:.3f}" for each in ratios)
        lines.append(
            f"| {name} | {median(plain):.2f} | {median(measured):.2f} | {median(ratios):.3f} "
            f"| {shown} |"
        )
    lines.append(f"\nat most {BOUND:.2f}: {'met' if is_met else 'MISSED'}")
    return "\n".join(lines), is_met


def ratios_of(plain: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return the ratio of each round, whose two runs follow each other."""
    return [with_metrics / without for without, with_metrics in zip(plain, measured, strict=True)]
