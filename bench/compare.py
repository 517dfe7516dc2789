"""Runs the throughput cases and the starts on all contenders, in turn.

All servers of a run stay alive, so that a JVM stays compiled, and each case alternates between
them: java, pyromq, ..., java, pyromq, ... A disturbance of the machine therefore meets all of them.
The load warms its server up in a case's first round, and a JVM in each (bench/load.py). Called by
bench/__main__.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from rich.console import Console

from bench.cases import FILL, INVALID, JAVA, KAFKA, ROCKETMQ, START, Case, Kind
from bench.frames import QUEUES
from bench.load import LoadOrder
from bench.process import memory_mib, wait_until_resting
from bench.report import Rounds
from bench.servers import REPOSITORY, ServerError, System

#: Keys contain four hexadecimal digits for the lap of the generator's ring.
_LAPS_PER_ROUND = 0x1000
#: Java's CPU per message may fall from round to round, and Kafka's client is a new JVM in each.
_COMPILING = (JAVA, KAFKA)
#: Cases of large bodies need enough messages for a p99.
_MIN_CASE_MESSAGES = 800


class RoundError(ServerError):
    """The load of one round failed: a response was not a success, or did not arrive."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The size of a run."""

    messages: int  # per case and round, times the case's scale
    fill: int  # messages that the pulls read
    rounds: int
    max_slices: int
    starts: int


@dataclass(slots=True)
class Running:
    """A system that runs, and the messages it accepted."""

    system: System
    pid: int
    #: Messages per topic, where the system knows it.
    stored: dict[str, int | None] = field(default_factory=dict)
    sent: int = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Return all processes that are measured."""
        return self.pid, *self.system.replica_pids


def measure_cases(
    systems: Sequence[System],
    cases: Sequence[Case],
    data: Path,
    amount: Amount,
    console: Console,
) -> Rounds:
    """Start all systems, run the cases on each in turn; return all figures."""
    rounds: Rounds = {case.name: {} for case in cases}
    with ExitStack() as stack:
        running = [stack.enter_context(_running(system, data)) for system in systems]
        for each in running:
            _prepare(each, cases, amount, console)
        for case in cases:
            console.print(case.title)
            for number in range(amount.rounds):
                for each in running:
                    if each.system.name not in case.contenders:
                        continue
                    figures = _run_valid(each, case, amount, number, console)
                    rounds[case.name].setdefault(each.system.name, []).append(figures)
        for each in running:
            each.system.check(each.sent)
    return rounds


def measure_starts(systems: Sequence[System], data: Path, starts: int, console: Console) -> Rounds:
    """Start each system on an empty store several times; return times and memory at rest."""
    figures: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
    console.print("starts")
    for number in range(starts + 1):
        for system in systems:
            began = time.perf_counter()
            with _running(system, data) as running:
                startup = time.perf_counter() - began
                wait_until_resting(running.pid)
                memory = memory_mib(running.pid)
            if number:  # the first start reads programs from disk
                figures[system.name].append(
                    {
                        "startup_s": startup,
                        "rest_mib": memory["rss_mib"],
                        "anonymous_mib": memory["anonymous_mib"],
                    }
                )
    return {START: figures}


@contextmanager
def _running(system: System, data: Path) -> Iterator[Running]:
    """Start a system on an empty directory; stop it and delete the directory afterwards."""
    directory = data / f"{system.name}-{os.getpid()}"
    try:
        pid = system.start(directory)
        system.wait_until_ready(pid)
        yield Running(system, pid)
    finally:
        try:
            system.stop()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        os.sync()  # the next one must not pay for this one's dirty pages


def _prepare(running: Running, cases: Sequence[Case], amount: Amount, console: Console) -> None:
    """Create the topics and fill the one for pulls."""
    system = running.system
    system.create_topics({case.topic for case in (FILL, *cases)})
    if any(case.kind is Kind.PULL and system.name in case.contenders for case in cases):
        console.print(f"filling {system.name}")
        order = LoadOrder(
            FILL.name, _protocol(system), system.port, running.pid, amount.fill, max_slices=0
        )
        running.sent += int(_load(order)["accepted"])
        running.stored[FILL.topic] = system.stored(FILL.topic)


def _run_valid(
    running: Running, case: Case, amount: Amount, number: int, console: Console
) -> dict[str, float]:
    """Run one round; with replicas, a round with any other response than a success is invalid.

    An invalid round has the figure INVALID only. Without replicas it ends the run.
    """
    name = running.system.name
    try:
        figures = _run(running, case, amount, number)
    except RoundError as error:
        if not case.is_replicated:
            raise
        console.print(f"  {name:7} INVALID round: {error}")
        # Sends that were not acknowledged in time are stored all the same.
        wait_until_resting(*running.pids)
        running.stored[case.topic] = running.system.stored(case.topic)
        return {INVALID: 1.0}
    console.print(_line(name, figures))
    return figures


def _run(running: Running, case: Case, amount: Amount, number: int) -> dict[str, float]:
    """Run one round of a case on one system."""
    system = running.system
    is_pull = case.kind is Kind.PULL
    is_warm = number > 0 and system.name not in _COMPILING
    before = running.stored.get(case.topic, 0)
    order = LoadOrder(
        case.name,
        _protocol(system),
        system.port,
        running.pid,
        max(_MIN_CASE_MESSAGES, int(amount.messages * case.scale)),
        max_slices=1 if is_warm else amount.max_slices,
        first_lap=number * _LAPS_PER_ROUND,
        stored_per_queue=before // QUEUES if is_pull and before else 0,
        replica_pids=running.system.replica_pids,
    )
    figures = _load(order)
    if case.is_replicated and figures.get("refused"):
        raise RoundError(f"{figures['refused']:,.0f} sends were refused as busy")
    if not is_pull:
        accepted, stored = int(figures["accepted"]), system.stored(case.topic)
        if stored is not None and before is not None and stored - before != accepted:
            raise ServerError(
                f"{system.name}, {case.topic}: {accepted} sends were acknowledged, "
                f"{stored - before} stored"
            )
        running.stored[case.topic] = stored
        running.sent += accepted
    os.sync()  # the next server must not pay for this one's dirty pages
    return figures | memory_mib(*running.pids)


def _protocol(system: System) -> str:
    return "rocketmq" if system.name in ROCKETMQ else system.name


def _load(order: LoadOrder) -> dict[str, float]:
    """Run the load in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", orjson.dumps(asdict(order)).decode()],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise RoundError(f"case {order.case} failed: see the load generator's error above")
    figures: dict[str, float] = orjson.loads(done.stdout)
    return figures


def _line(name: str, figures: dict[str, float]) -> str:
    return (
        f"  {name:7} {figures['cpu_us']:8.2f} µs of CPU per message, "
        f"{figures['rate']:9,.0f} messages/s, p50 {figures['p50_ms']:.2f} ms, "
        f"p99 {figures['p99_ms']:.2f} ms, warm-up slices: {figures['slices']:.0f}, "
        f"generator {figures['load_cores']:.2f} cores"
    )
