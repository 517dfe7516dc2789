"""The case `client`: compare pyromq's client with the Java client and the clients on PyPI.

All clients use one broker; each run of a client is its own process, in turn. A run starts with an
unmeasured lead-in (Java compiles), followed by the measured messages. A client's process reports
its own messages, seconds, CPU time and final resident memory. This module measures the time from
the start of the process to its first message, with Python's and Java's programs compiled in
advance. The programs are bench/client_program.py, bench/java/ClientBench.java and
bench/pypi_program.py. Called by bench/__main__.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from rich.console import Console

from bench.cases import CLIENT_TITLES, JAVA, PYROMQ
from bench.process import cpu_seconds
from bench.pypi_clients import Installed, install
from bench.report import Rounds
from bench.servers import (
    NotInstalledError,
    Server,
    ServerError,
    create_topic,
    needing,
    wait_for_first_send,
)
from tests.interop.java_programs import CLIENT, compiled

REPOSITORY = Path(__file__).resolve().parents[1]
_JAVA_SOURCES = Path(__file__).with_name("java")
#: Let sends wait instead of refusing them: a stall of the machine must not end a run.
SETTINGS = {"waitTimeMillsInSendQueue": "10000"}
_BODY = 128
_IN_FLIGHT = 256
#: The accumulator is for programs with many sends in flight.
_ACCUMULATED_IN_FLIGHT = 2048
#: Time limits per message and per start, to end a hung client.
_SECONDS_PER_MESSAGE = 0.002
_START_SECONDS = 60.0

#: Figures of one client in one run.
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Amount:
    """Messages per case; PyPI clients get `slow` times that."""

    lead_in: int
    sends: int
    consumed: int
    slow: float = 0.1


FULL = Amount(300_000, 300_000, 900_000)
QUICK = Amount(20_000, 50_000, 150_000)


@dataclass(frozen=True, slots=True)
class ClientCase:
    """A load, and the arguments of each client."""

    name: str
    title: str
    kind: str
    pyromq: tuple[str, ...]
    #: None if Java's client has no such feature.
    java: tuple[str, ...] | None = None
    pypi: tuple[str, ...] | None = None


CASES = (
    ClientCase(
        "send",
        CLIENT_TITLES["client-send"],
        "produce",
        pyromq=(str(_IN_FLIGHT), str(_BODY), "single"),
        java=(str(_IN_FLIGHT), str(_BODY)),
        pypi=(str(_IN_FLIGHT), str(_BODY)),
    ),
    ClientCase(
        "accumulate",
        CLIENT_TITLES["client-accumulate"],
        "produce",
        pyromq=(str(_ACCUMULATED_IN_FLIGHT), str(_BODY), "accumulate"),
    ),
    ClientCase(
        "push",
        CLIENT_TITLES["client-push"],
        "consume",
        pyromq=("one",),
        java=("1",),
        pypi=("one",),
    ),
    ClientCase(
        "lists",
        CLIENT_TITLES["client-lists"],
        "consume",
        pyromq=("list",),
        java=("32",),
    ),
)


def measure_clients(
    server: Server,
    data: Path,
    amount: Amount,
    rounds: int,
    trees: Mapping[str, Path],
    console: Console,
) -> tuple[Rounds, dict[str, str]]:
    """Measure all clients against one server; return all figures, and why clients are missing.

    `trees` are the source trees of pyromq's client, by the name of the contender.
    """
    others = install(REPOSITORY / ".cache" / "pypi-clients", console)
    problems = {name: other.problem for name, other in others.items()}
    java = ""
    try:
        with needing("java", "javac"):
            java = compiled(_JAVA_SOURCES, CLIENT)
    except NotInstalledError as error:
        problems[JAVA] = str(error)
    runs: dict[str, dict[str, list[Figures]]] = {case.name: {} for case in CASES}
    directory = data / f"clients-{os.getpid()}"
    try:
        pid = server.start(directory)
        wait_for_first_send(server, pid)
        filled = _topic(server, "Filled", 0)
        console.print(f"filling {filled} for the consumers")
        fill = _Client(PYROMQ, _pyromq_command)
        _run(fill, server, pid, CASES[1], filled, 0, amount.lead_in + amount.consumed)
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for case in CASES:
                for client in _clients(case, java, trees, others):
                    share = amount.slow if client.name in others else 1.0
                    is_sending = case.kind == "produce"
                    topic = _topic(server, case.name + client.name, number) if is_sending else ""
                    messages = amount.sends if is_sending else amount.consumed
                    try:
                        figures = _run(
                            client,
                            server,
                            pid,
                            case,
                            topic or filled,
                            int(amount.lead_in * share),
                            int(messages * share),
                        )
                    except ServerError as error:
                        if share == 1.0:
                            raise
                        # A bug of another project: report it and continue.
                        problems[client.name] = str(error)
                        console.print(f"  {error}")
                        continue
                    runs[case.name].setdefault(client.name, []).append(figures)
                    console.print(
                        f"  {case.title}, {client.name}: {figures['rate']:,.0f} messages/s, "
                        f"{figures['cpu_us']:.1f} µs of CPU each, {figures['rss_mib']:.0f} MiB, "
                        f"first after {figures['start_s']:.2f} s"
                    )
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {f"client-{case}": clients for case, clients in runs.items()}, {
        name: problem for name, problem in problems.items() if problem
    }


#: Builds a command line from case, NameServers, topic, lead-in, number of messages and log
#: directory.
_Command = Callable[[ClientCase, Sequence[str], Path], list[str]]


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    command: _Command
    tree: Path = REPOSITORY  # of pyromq's sources


def _clients(
    case: ClientCase, java: str, trees: Mapping[str, Path], others: Mapping[str, Installed]
) -> list[_Client]:
    clients = [_Client(name, _pyromq_command, tree) for name, tree in trees.items()]
    if java and case.java is not None:
        own = case.java
        clients.insert(
            0,
            _Client(
                JAVA,
                lambda case, common, home: [
                    *("java", "-cp", java, f"-Duser.home={home}"),
                    *("-Drocketmq.client.logLevel=WARN", "ClientBench"),
                    *(case.kind, *common, *own),
                ],
            ),
        )
    if case.pypi is not None:
        clients += [
            _Client(name, _pypi_command(other))
            for name, other in others.items()
            if not other.problem
        ]
    return clients


def _pyromq_command(case: ClientCase, common: Sequence[str], _home: Path) -> list[str]:
    return [sys.executable, "-m", "bench.client_program", case.kind, *common, *case.pyromq]


def _pypi_command(client: Installed) -> _Command:
    program = str(Path(__file__).with_name("pypi_program.py"))
    return lambda case, common, _home: [
        *(str(client.python), program, case.kind, *common, *(case.pypi or ()))
    ]


def _run(
    client: _Client,
    server: Server,
    pid: int,
    case: ClientCase,
    topic: str,
    lead_in: int,
    messages: int,
) -> Figures:
    home = server.store.parent / "home"
    home.mkdir(exist_ok=True)
    common = (server.namesrv, topic, str(lead_in), str(messages))
    broker_began = cpu_seconds(pid)
    began = time.perf_counter()
    limit = _START_SECONDS + (lead_in + messages) * _SECONDS_PER_MESSAGE
    with subprocess.Popen(
        client.command(case, common, home),
        cwd=REPOSITORY,
        env=_environment(home, client.tree),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(limit, process.kill)
        watchdog.start()
        try:
            first = process.stdout.readline().strip()
            start = time.perf_counter() - began
            last, _ = process.communicate()
        finally:
            watchdog.cancel()
            process.kill()
    if first != "first" or process.returncode != 0 or not last.strip():
        raise ServerError(
            f"{client.name}: {case.title} failed with status {process.returncode} (time limit "
            f"{limit:g} s); output: {first!r} {last!r}"
        )
    said: dict[str, float] = orjson.loads(last.strip().splitlines()[-1])
    return {
        "rate": said["messages"] / said["seconds"],
        "cpu_us": said["cpu_seconds"] / said["messages"] * 1e6,
        "rss_mib": said["rss_mib"],
        "start_s": start,
        "broker_us": (cpu_seconds(pid) - broker_began) / (lead_in + messages) * 1e6,
    }


def _environment(home: Path, tree: Path) -> dict[str, str]:
    """Return a child's environment; bytecode is cached, as after an installation."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        # The C++ client writes its logs there; the Java client to its user.home.
        "HOME": str(home),
        "PYTHONPATH": str(tree / "src"),
        "PYTHONPYCACHEPREFIX": str(REPOSITORY / ".cache" / "bytecode"),
    }


def _topic(server: Server, name: str, number: int) -> str:
    topic = f"BenchmarkClient-{name}-{number}"
    create_topic(server.port, topic)
    return topic
