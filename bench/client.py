"""The case `client`: compare pyromq's client with the Java client and the clients on PyPI.

All clients use one broker; each run of a client is its own process, in turn. A run starts with an
unmeasured lead-in (Java compiles), followed by the measured messages. A client's process reports
its own messages, seconds, CPU time and final resident memory. This module measures the time from
the start of the process to its first message, with Python's and Java's programs compiled in
advance. The programs are bench/client_program.py, bench/java/ClientBench.java and
bench/pypi_program.py. Figures are medians over the rounds. Called by bench/__main__.py.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson
from rich.console import Console
from rich.table import Table

from bench.process import cpu_seconds
from bench.pypi_clients import Installed, install
from bench.servers import Server, ServerError, create_topic, wait_for_first_send
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

_JAVA, _PYROMQ = "java", "pyromq"
#: Figures of one client in one run.
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Amount:
    """Messages per case; PyPI clients get `slow` times that."""

    lead_in: int
    sends: int
    consumed: int
    slow: float = 0.1


FULL = Amount(100_000, 300_000, 900_000)
QUICK = Amount(20_000, 50_000, 150_000)


@dataclass(frozen=True, slots=True)
class ClientCase:
    """A load, the arguments of each client, and the Java case it is compared with."""

    name: str
    title: str
    kind: str
    pyromq: tuple[str, ...]
    #: None if Java's client has no such feature.
    java: tuple[str, ...] | None = None
    pypi: tuple[str, ...] | None = None
    #: The case whose Java figures are the base of the ratio.
    base: str = ""


CASES = (
    ClientCase(
        "send",
        f"async single sends, {_IN_FLIGHT} in flight",
        "produce",
        pyromq=(str(_IN_FLIGHT), str(_BODY), "single"),
        java=(str(_IN_FLIGHT), str(_BODY)),
        pypi=(str(_IN_FLIGHT), str(_BODY)),
        base="send",
    ),
    ClientCase(
        "accumulate",
        "sends through the accumulator",
        "produce",
        pyromq=(str(_ACCUMULATED_IN_FLIGHT), str(_BODY), "accumulate"),
        base="send",
    ),
    ClientCase(
        "push",
        "push consumption, one message per call",
        "consume",
        pyromq=("one",),
        java=("1",),
        pypi=("one",),
        base="push",
    ),
    ClientCase(
        "lists",
        "push consumption, lists",
        "consume",
        pyromq=("list",),
        java=("32",),
        base="push",
    ),
)


@dataclass(frozen=True, slots=True)
class ClientBound:
    """A limit on the ratio of pyromq's figure to another client's."""

    case: str
    figure: str
    limit: float
    at_most: bool = False

    def kept(self, ratio: float) -> bool:
        """Return whether a ratio meets the bound."""
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


JAVA_BOUNDS = (
    ClientBound("send", "rate", 0.4),
    ClientBound("accumulate", "rate", 2.0),
    ClientBound("push", "rate", 0.5),
    ClientBound("lists", "rate", 1.0),
    ClientBound("send", "rss_mib", 0.3, at_most=True),
    ClientBound("push", "rss_mib", 0.3, at_most=True),
    ClientBound("send", "start_s", 0.5, at_most=True),
    ClientBound("push", "start_s", 0.5, at_most=True),
)
PYPI_BOUNDS = (ClientBound("send", "rate", 3.0), ClientBound("push", "rate", 3.0))

_ROWS = {
    "rate": ("messages/s", "{:,.0f}"),
    "cpu_us": ("client CPU µs per message", "{:.2f}"),
    "rss_mib": ("client RSS MiB", "{:,.0f}"),
    "start_s": ("process start to first message, s", "{:.2f}"),
    "broker_us": ("broker CPU µs per message", "{:.2f}"),
}

#: By case, then by client.
Results = dict[str, dict[str, Figures]]


def measure_clients(
    server: Server, data: Path, amount: Amount, rounds: int, console: Console
) -> tuple[str, bool]:
    """Measure all clients against one server; return a table and whether all bounds are met."""
    java = compiled(_JAVA_SOURCES, CLIENT)
    others = install(REPOSITORY / ".cache" / "pypi-clients", console)
    problems = {name: other.problem for name, other in others.items()}
    runs: dict[str, dict[str, list[Figures]]] = {case.name: {} for case in CASES}
    directory = data / f"clients-{os.getpid()}"
    try:
        pid = server.start(directory)
        wait_for_first_send(server, pid)
        filled = _topic(server, "Filled", 0)
        console.print(f"filling {filled} for the consumers")
        fill = _Client(_PYROMQ, _pyromq_command)
        _run(fill, server, pid, CASES[1], filled, 0, amount.lead_in + amount.consumed)
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for case in CASES:
                for client in _clients(case, java, others):
                    share = amount.slow if client.name not in (_JAVA, _PYROMQ) else 1.0
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
    results: Results = {
        case: {client: _medians(rounds) for client, rounds in clients.items()}
        for case, clients in runs.items()
    }
    return render(results, server.name, problems)


def render(results: Results, broker: str, problems: Mapping[str, str | None]) -> tuple[str, bool]:
    """Return the table with the missed bounds, and whether all bounds are met."""
    clients = list(dict.fromkeys(name for figures in results.values() for name in figures))
    table = Table(show_edge=False)
    for title in ("case", "figure"):
        table.add_column(title)
    for title in (*clients, "to Java", "bound", ""):
        table.add_column(title, justify="right")
    missed: list[str] = []
    for case in CASES:
        figures = results[case.name]
        for row, (figure, (label, form)) in enumerate(_ROWS.items()):
            ratio = _ratio(results, case, figure)
            bound = _bound(JAVA_BOUNDS, case.name, figure)
            verdict = ""
            if ratio is not None and bound is not None:
                verdict = "ok" if bound.kept(ratio) else "MISSED"
                if verdict == "MISSED":
                    missed.append(f"{case.title}: {label} {ratio:.2f} x Java's, bound {bound}")
            table.add_row(
                "" if row else case.title,
                label,
                *(
                    form.format(figures[client][figure]) if client in figures else ""
                    for client in clients
                ),
                "" if ratio is None else f"{ratio:.2f}",
                "" if bound is None else str(bound),
                verdict,
            )
        table.add_section()
    text = io.StringIO()
    console = Console(file=text, width=140, color_system=None)
    console.print(table)
    console.print(
        f"\nBodies of {_BODY} B, 8 queues, {broker}'s broker, one process per client. Sends are "
        "compared with Java's single\nsends, consumption with Java's default of one message per "
        "call; Java's lists hold up to 32.\nThe JVM runs with its default options."
    )
    for line, is_kept in _compared_with_pypi(results, clients):
        console.print(f"{'ok' if is_kept else 'MISSED'}  {line}")
        if not is_kept:
            missed.append(line)
    for name, problem in problems.items():
        if problem is not None:
            console.print(f"NOTE  {name} (PyPI) is missing from the comparison: {problem}")
    for line in missed:
        console.print(f"MISSED  {line}")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n", not missed


def _compared_with_pypi(results: Results, clients: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield a line per bound and PyPI client, and whether the bound is met."""
    for case in CASES:
        figures, bound = results[case.name], _bound(PYPI_BOUNDS, case.name, "rate")
        for client in clients:
            if client in (_JAVA, _PYROMQ) or bound is None or client not in figures:
                continue
            ratio = figures[_PYROMQ]["rate"] / figures[client]["rate"]
            line = f"{case.title}: {ratio:.1f} x the rate of {client} (PyPI), bound {bound}"
            yield line, bound.kept(ratio)


#: Builds a command line from case, NameServers, topic, lead-in, number of messages and log
#: directory.
_Command = Callable[[ClientCase, Sequence[str], Path], list[str]]


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    command: _Command


def _clients(case: ClientCase, java: str, others: Mapping[str, Installed]) -> list[_Client]:
    clients = [_Client(_PYROMQ, _pyromq_command)]
    if case.java is not None:
        own = case.java
        clients.insert(
            0,
            _Client(
                _JAVA,
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
        env=_environment(home),
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


def _environment(home: Path) -> dict[str, str]:
    """Return a child's environment; bytecode is cached, as after an installation."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        # The C++ client writes its logs there; the Java client to its user.home.
        "HOME": str(home),
        "PYTHONPYCACHEPREFIX": str(REPOSITORY / ".cache" / "bytecode"),
    }


def _topic(server: Server, name: str, number: int) -> str:
    topic = f"BenchmarkClient-{name}-{number}"
    create_topic(server.port, topic)
    return topic


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {figure: median(each[figure] for each in rounds) for figure in rounds[0]}


def _ratio(results: Results, case: ClientCase, figure: str) -> float | None:
    base = results.get(case.base, {}).get(_JAVA, {}).get(figure)
    own = results[case.name].get(_PYROMQ, {}).get(figure)
    return own / base if base and own is not None else None


def _bound(bounds: Sequence[ClientBound], case: str, figure: str) -> ClientBound | None:
    return next((b for b in bounds if (b.case, b.figure) == (case, figure)), None)
