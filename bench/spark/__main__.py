"""`make bench-spark`: compare Spark's Kafka connector and pyromq on the same work.

Both brokers run on this machine, on empty stores. Each round starts one process per side
(`program`), with its own session: the sink writes a topic, the other cases read it. Seconds are
medians over the rounds; the table shows the ratio of rows per second and its bound. Several
sizes (`--messages 1,4,16`, in millions) show how costs grow. Runs are saved in
.cache/bench-results, with --baseline in bench/results. The exit status is 1 if a ratio is missed.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.kafka import KafkaServer, kafka_classpath
from bench.report import environment, is_committed, save
from bench.servers import PyromqServer, ServerError, create_topic, wait_for_first_send
from bench.spark.cases import BODY_SIZE, CASES, KAFKA, KAFKA_CASES, PYROMQ, WARM_UP
from bench.spark.kafka import connector_jars
from bench.spark.program import Order
from bench.spark.rebuild import measure_rebuild

REPOSITORY = Path(__file__).resolve().parents[2]
#: Not in the system's temporary directory, which may be in memory.
DATA = REPOSITORY / ".cache" / "bench-spark"
_REBUILD = "rebuild"
_MILLION = 1_000_000
_WIDTH = 130

#: Elapsed and CPU seconds by case.
Figures = Mapping[str, Mapping[str, float]]
#: Rounds by side.
Rounds = dict[str, list[Figures]]


def main() -> int:
    """Measure, print and save; return the exit status."""
    options = _options()
    console = Console(stderr=True, soft_wrap=True)
    facts = environment(REPOSITORY, messages=max(options.messages), rounds=options.rounds)
    if options.baseline and not is_committed(facts):
        raise SystemExit("bench.spark: commit src and bench first: a baseline must be reproducible")
    kafka_classpath(), connector_jars()  # download before measuring
    measured: dict[int, Rounds] = {}
    for messages in options.messages if options.cases != [_REBUILD] else ():
        shutil.rmtree(DATA, ignore_errors=True)
        try:
            measured[messages] = _measure(messages, options, console)
        finally:
            shutil.rmtree(DATA, ignore_errors=True)
    text, missed = _render(measured, facts)
    rebuilt: dict[str, Any] = {}
    if _REBUILD in options.cases:
        console.print("rebuild")
        DATA.mkdir(parents=True, exist_ok=True)
        rebuilt = measure_rebuild(directory=DATA)
        text += "\n" + rebuilt["text"]
    sys.stdout.write(text)
    if options.save:
        content = {
            "environment": facts,
            "rounds": {str(messages): rounds for messages, rounds in measured.items()},
            "rebuild": {key: value for key, value in rebuilt.items() if key != "text"},
        }
        for path in save(REPOSITORY, "spark", content, text, is_baseline=options.baseline):
            console.print(f"saved {path.relative_to(REPOSITORY)}")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument(
        "--messages",
        type=lambda text: [int(float(part) * _MILLION) for part in text.split(",")],
        default=[_MILLION],
        metavar="MILLIONS",
        help="Set the number of messages, in millions; 1,4,16 measures three sizes.",
    )
    names = [*(case.name for case in CASES), _REBUILD]
    parser.add_argument(
        "--cases",
        type=lambda text: text.split(","),
        default=names,
        help=f"Run these cases, separated by commas: {','.join(names)}. The sink always runs, "
        "because it writes the topic that the others read.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="Set the number of rounds (3).")
    parser.add_argument(
        "--master", default=f"local[{os.cpu_count()},4]", help="Set the Spark master of both sides."
    )
    parser.add_argument("--only", choices=(KAFKA, PYROMQ), help="Measure one side only.")
    parser.add_argument(
        "--no-save", dest="save", action="store_false", help="Do not save the results."
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="Save a full run as this kind of machine's baseline in bench/results.",
    )
    options = parser.parse_args()
    unknown = set(options.cases) - set(names)
    if unknown:
        parser.error(f"unknown cases {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    is_full = options.save and options.only is None and set(options.cases) == set(names)
    if options.baseline and not is_full:
        parser.error("--baseline needs a full run: without --only, --cases and --no-save")
    return options


def _measure(messages: int, options: argparse.Namespace, console: Console) -> Rounds:
    rounds: Rounds = {side: [] for side in (KAFKA, PYROMQ) if options.only in (None, side)}
    server, kafka = PyromqServer(), KafkaServer()
    try:
        kafka.wait_until_ready(kafka.start(DATA / KAFKA))
        pid = server.start(DATA / PYROMQ)
        wait_for_first_send(server, pid)
        for number in range(options.rounds):
            for side, figures in rounds.items():
                console.print(
                    f"{messages:,} messages, round {number + 1} of {options.rounds}: {side}"
                )
                order = _order(side, number, messages, options, kafka, server, pid)
                figures.append(_run(order))
                console.print("  " + _seconds(figures[-1]))
    finally:
        server.stop()
        kafka.stop()
    return rounds


def _order(
    side: str,
    number: int,
    messages: int,
    options: argparse.Namespace,
    kafka: KafkaServer,
    server: PyromqServer,
    pid: int,
) -> Order:
    wanted = {"sink", *options.cases}
    topics = [f"{name}-{number}" for name in ("bench", "warm-up")]
    if side == PYROMQ:
        for topic in topics:
            create_topic(server.port, topic)
        names = [case.name for case in CASES if case.name in wanted]
    else:
        beside = {case.beside for case in CASES if case.name in wanted}
        names = [name for name in KAFKA_CASES if name in beside]
    return Order(
        side=side,
        master=options.master,
        address=kafka.address if side == KAFKA else server.namesrv,
        topic=topics[0],
        warm_up_topic=topics[1],
        messages=messages,
        warm_up=min(messages, WARM_UP),
        directory=str(DATA / "written"),
        store=str(server.store),
        cases=names,
        jars=connector_jars() if side == KAFKA else [],
        broker_pid=kafka.pid if side == KAFKA else pid,
    )


def _run(order: Order) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark.program", orjson.dumps(asdict(order)).decode()],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServerError(f"the session of {order.side} failed:\n{done.stderr[-5000:]}")
    figures: Figures = orjson.loads(done.stdout.splitlines()[-1])
    return figures


def _seconds(figures: Figures) -> str:
    return ", ".join(
        f"{case} {each['seconds']:.2f} s (CPU {each['cpu_seconds']:.2f})"
        for case, each in figures.items()
    )


def _render(measured: Mapping[int, Rounds], facts: Mapping[str, object]) -> tuple[str, list[str]]:
    text = io.StringIO()
    console = Console(file=text, width=_WIDTH, color_system=None)
    missed: list[str] = []
    for messages, rounds in measured.items():
        medians = {side: _medians(figures) for side, figures in rounds.items()}
        table, short = _table(messages, medians)
        console.print(table)
        missed += short
    if len(measured) > 1:
        console.print(_growth(measured))
    console.print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for line in missed:
        console.print(f"MISSED  {line}")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", missed


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {
        case: {name: median(each[case][name] for each in rounds) for name in figures}
        for case, figures in rounds[0].items()
    }


def _table(messages: int, medians: Mapping[str, Figures]) -> tuple[Table, list[str]]:
    table = Table(title=f"{messages:,} messages of {BODY_SIZE} B", show_edge=False)
    table.add_column("case")
    for side in ("Kafka", "pyromq"):
        for name in (f"{side} s", "rows/s", "CPU s"):
            table.add_column(name, justify="right")
    for name in ("ratio", "asked"):
        table.add_column(name, justify="right")
    table.add_column("")
    table.add_column("ratio of CPU", justify="right")
    missed = []
    for case in CASES:
        base = medians.get(KAFKA, {}).get(case.beside)
        ours = medians.get(PYROMQ, {}).get(case.name)
        if base is None and ours is None:
            continue
        row = [*_cells(base, messages), *_cells(ours, messages)]
        if base is not None and ours is not None:
            ratio = base["seconds"] / ours["seconds"]
            is_kept = ratio >= case.asked
            row += [f"{ratio:.2f}", f"{case.asked:g}", "ok" if is_kept else "MISSED"]
            row.append(f"{base['cpu_seconds'] / ours['cpu_seconds']:.2f}")
            if not is_kept:
                missed.append(f"{messages:,}: {case.title}: {ratio:.2f}, bound {case.asked:g}")
        table.add_row(case.title, *row)
    return table, missed


def _cells(figures: Mapping[str, float] | None, messages: int) -> tuple[str, str, str]:
    if figures is None:
        return "", "", ""
    seconds = figures["seconds"]
    return f"{seconds:.2f}", f"{messages / seconds:,.0f}", f"{figures['cpu_seconds']:.2f}"


def _growth(measured: Mapping[int, Rounds]) -> Table:
    table = Table(title="microseconds per message", show_edge=False)
    table.add_column("case")
    for messages in measured:
        table.add_column(f"{messages / _MILLION:g} million", justify="right")
    first = next(iter(measured.values()))
    for side, rounds in first.items():
        for case in rounds[0]:
            table.add_row(
                f"{side} {case}",
                *(
                    f"{_medians(sizes[side])[case]['seconds'] / messages * 1e6:.2f}"
                    for messages, sizes in measured.items()
                ),
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
