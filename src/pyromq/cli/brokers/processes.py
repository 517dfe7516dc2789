"""Starts one process per broker, restarts those that die, stops all of them.

    processes = BrokerProcesses(orders, servers.stop_requested, servers.stop)
    await processes.start()         # returns when all brokers serve
    await processes.stop()

- A broker that cannot start ends the start with its own error.
- Masters start before replicas, which ask for them, and stop before them. The leader of a raft
  group stops last: otherwise it would look for a successor.
- A broker that dies is restarted at its port, after a pause that doubles from death to death. One
  that dies again and again ends the whole command: its messages cannot be read, and an exit status
  reaches an operator sooner than a log line.
- A broker with replicas may return in another role, see `cli.brokers.failover`. A replica that can
  never follow its master is not restarted; the others keep running.
- The children are in process groups of their own: Ctrl-C reaches only this process, which stops
  them in order. They end when this process is killed (`cli.brokers.child`).
- Their log lines go to our stderr, behind the name of the broker.

Two threads per child read its stdout and stderr. Everything else runs on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Final, NamedTuple, Protocol

import click

from pyromq.cli.brokers.child import STOP, Boot, Created, Failure, Order, Report, decode_report
from pyromq.protocol.java.properties import PropertiesError

logger = logging.getLogger(__name__)

_PROGRAM: Final = "pyromq.cli.brokers.child"
#: A log line beyond this many bytes is continued on the next one.
_MAX_LINE_BYTES: Final = 64 * 1024
#: How long to wait for the last log lines of a process that has ended.
_LAST_LINES_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How to restart brokers that die."""

    #: Seconds to the first restart; each further one takes twice as long.
    first_pause: float = 1.0
    longest_pause: float = 30.0
    #: Restarts in a row, before the whole command ends.
    most: int = 5
    #: A broker that has served for this many seconds starts a new row.
    steady_seconds: float = 60.0

    def pause(self, number: int) -> float:
        """Return the seconds before restart `number`, from 1 on."""
        return min(self.longest_pause, self.first_pause * 2.0 ** (number - 1))


class Comeback(Protocol):
    """Decides when and in which role brokers that died return: `cli.brokers.failover`."""

    def pause(self, name: str, pause: float) -> float:
        """Return the seconds before a restart, at least `pause`."""

    async def wait(self, name: str, port: int, order: Order, pause: float) -> Order:
        """Wait before a restart; return the order for it."""


class _AsBefore:
    """Restarts brokers as they were."""

    def pause(self, name: str, pause: float) -> float:  # noqa: ARG002 - the protocol's
        return pause

    async def wait(self, name: str, port: int, order: Order, pause: float) -> Order:  # noqa: ARG002
        await asyncio.sleep(pause)
        return order


class RunningBroker(NamedTuple):
    """A broker that serves, or did until its process ended."""

    name: str
    pid: int
    port: int
    restarts: int


class BrokerProcesses:
    """The brokers of one command."""

    def __init__(
        self,
        orders: Mapping[str, Order],
        stop_requested: asyncio.Event,
        give_up: Callable[[Exception], None],
        on_created: Callable[[str, Created], None] = lambda _name, _topic: None,
        *,
        comeback: Comeback | None = None,
        stops_last: Callable[[], str | None] = lambda: None,
        command: Sequence[str] | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        """`orders` holds the order of each broker by its name.

        A stop request ends a start early. `give_up` is called with an error when a broker cannot
        be kept running; the caller then stops everything. `on_created` is called with the name of
        a broker and a topic that a send has created on it. `stops_last` returns the name of the
        broker that stops after all others. `command` runs another child program.
        """
        command = _child_command() if command is None else command
        self._brokers = [
            _Broker(
                name,
                order,
                command,
                restarts or Restarts(),
                comeback or _AsBefore(),
                partial(on_created, name),
            )
            for name, order in orders.items()
        ]
        self._stop_requested = stop_requested
        self._give_up = give_up
        self._stops_last = stops_last
        self._watching: list[asyncio.Task[None]] = []

    @property
    def boot_lines(self) -> list[str]:
        """Return the boot line of every broker that has started."""
        return [broker.boot.line for broker in self._brokers if broker.boot is not None]

    def running(self) -> list[RunningBroker]:
        """Return the brokers that have started, with the process that ran last."""
        return [
            RunningBroker(broker.name, broker.run.pid, broker.boot.port, broker.restarts)
            for broker in self._brokers
            if broker.boot is not None and broker.run is not None
        ]

    def unclean(self) -> list[str]:
        """Return, for every broker that served and did not stop cleanly, how it ended."""
        return [
            f"{broker.name} ({describe_exit(broker.run.exited.result())})"
            for broker in self._brokers
            if broker.boot is not None and broker.run is not None
            if broker.run.exited.done() and broker.run.exited.result() != 0
            if broker.run.failure is None
        ]

    def given_up(self) -> list[str]:
        """Return, for every broker that stopped for good, its name and why."""
        return [
            f"{broker.name}: {broker.run.failure}"
            for broker in self._brokers
            if broker.run is not None and broker.run.failure is not None
        ]

    async def start(self) -> None:
        """Start all brokers; return when all serve, or when a stop is requested.

        Raises click.ClickException with the error of a broker that cannot start.
        """
        for are_replicas in (False, True):
            brokers = [each for each in self._brokers if each.is_replica is are_replicas]
            if brokers and not self._stop_requested.is_set():
                await self._start(brokers)
        if not self._stop_requested.is_set():
            self._watching = [asyncio.create_task(self._watch(each)) for each in self._brokers]

    async def _start(self, brokers: Sequence[_Broker]) -> None:
        for broker in brokers:
            broker.spawn()
        starts = [asyncio.create_task(broker.until_started()) for broker in brokers]
        stop = asyncio.create_task(self._stop_requested.wait())
        pending: set[asyncio.Task[object]] = {*starts, stop}
        try:
            while not stop.done() and pending != {stop}:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*starts, stop):
                task.cancel()
            # Retrieve all errors: one is enough to report.
            await asyncio.gather(*starts, stop, return_exceptions=True)

    async def _watch(self, broker: _Broker) -> None:
        try:
            await broker.keep_running()
        except click.ClickException as error:
            self._give_up(error)

    async def stop(self) -> None:
        """Stop all brokers and wait until their processes have ended."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        last = self._stops_last()
        for are_replicas in (False, True):
            brokers = [each for each in self._brokers if each.is_replica is are_replicas]
            await asyncio.gather(*(each.stop() for each in brokers if each.name != last))
        await asyncio.gather(*(each.stop() for each in self._brokers if each.name == last))


class _Broker:
    """One broker, over all its processes."""

    def __init__(
        self,
        name: str,
        order: Order,
        command: Sequence[str],
        restarts: Restarts,
        comeback: Comeback,
        on_created: Callable[[Created], None],
    ) -> None:
        self.name = name
        self._comeback = comeback
        self._on_created = on_created
        self._order = order
        self._command = command
        self._restarts = restarts
        self.run: _Run | None = None
        #: Set once it has served.
        self.boot: Boot | None = None
        #: All restarts so far.
        self.restarts = 0

    @property
    def is_replica(self) -> bool:
        """Return whether it was started as a replica."""
        return self._order.is_replica

    def spawn(self) -> _Run:
        """Start a process for it."""
        order = self._order
        if self.boot is not None:
            # A broker that chose a free port keeps it: messages and clients know it.
            port = str(self.boot.port)
            order = replace(order, properties={**order.properties, "listenPort": port})
        self.run = _Run(self.name, [*self._command, self.name], order, self._on_created)
        return self.run

    async def until_started(self) -> None:
        """Wait until it serves. Raises click.ClickException if it cannot."""
        assert self.run is not None
        outcome = await asyncio.shield(self.run.started)
        if isinstance(outcome, Failure):
            raise click.ClickException(f"{self.name}: {outcome.reason}")
        self.boot = outcome

    async def keep_running(self) -> None:
        """Restart it whenever it dies. Raises click.ClickException if that does not help."""
        in_a_row = 0
        while True:
            assert self.run is not None
            assert self.boot is not None
            began = time.monotonic()
            status = await asyncio.shield(self.run.exited)
            if self.run.failure is not None:
                logger.error("%s is not restarted: %s", self.name, self.run.failure)
                return
            if time.monotonic() - began >= self._restarts.steady_seconds:
                in_a_row = 0
            ending = describe_exit(status)
            if in_a_row >= self._restarts.most:
                raise click.ClickException(
                    f"{self.name} died {in_a_row + 1} times in a row (now: {ending}); "
                    "the other brokers were stopped as well"
                )
            in_a_row += 1
            pause = self._comeback.pause(self.name, self._restarts.pause(in_a_row))
            logger.error(
                "%s died (%s): restart %d of %d in %g s",
                *(self.name, ending, in_a_row, self._restarts.most, pause),
            )
            try:
                self._order = await self._comeback.wait(
                    self.name, self.boot.port, self._order, pause
                )
                self.restarts += 1
                run = self.spawn()
                await self.until_started()
            except (click.ClickException, OSError, PropertiesError) as error:
                logger.error("restart of %s failed: %s", self.name, error)
            else:
                logger.warning("%s serves again, as process %d", self.name, run.pid)

    async def stop(self) -> None:
        """Stop the process if there is one, and wait until it has ended."""
        if self.run is not None:
            self.run.stop()
            await self.run.exited


class _Run:
    """One process of a broker."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        order: Order,
        on_created: Callable[[Created], None],
    ) -> None:
        """Raises OSError if the system has no room for a process."""
        self._on_created = on_created
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[Boot | Failure] = self._loop.create_future()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        #: Why it stopped for good, after it had started.
        self.failure: str | None = None
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self.pid = self._process.pid
        self._tell(order.encode())
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        relay = threading.Thread(target=_relay, args=(name, stderr), daemon=True)
        relay.start()
        threading.Thread(target=self._follow, args=(stdout, relay), daemon=True).start()

    def stop(self) -> None:
        """Ask the process to stop; end one that does not serve yet."""
        if self.started.done():
            self._tell(STOP)
        else:
            self._hang_up()

    def _tell(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            stdin.write(line)
            stdin.flush()

    def _hang_up(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()

    def _follow(self, stdout: IO[bytes], relay: threading.Thread) -> None:
        """Report what the process does. Runs in a thread."""
        with stdout:
            for line in stdout:
                report = decode_report(line)
                if report is not None:
                    self._call(self._report, report)
        status = self._process.wait()
        relay.join(_LAST_LINES_SECONDS)
        self._call(self._ended, status)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(function, *arguments)

    def _report(self, report: Report) -> None:
        if isinstance(report, Created):
            self._on_created(report)
        elif not self.started.done():
            self.started.set_result(report)
        elif isinstance(report, Failure):
            self.failure = report.reason

    def _ended(self, status: int) -> None:
        self._hang_up()
        if not self.started.done():
            reason = f"ended while it started ({describe_exit(status)}): see its log"
            self._report(Failure(reason))
        self.exited.set_result(status)


def _relay(name: str, stderr: IO[bytes]) -> None:
    """Copy the log lines of a process to our stderr. Runs in a thread."""
    prefix = f"{name} | ".encode()
    with stderr:
        while line := stderr.readline(_MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                line += b"\n"
            with contextlib.suppress(
                OSError, ValueError
            ):  # keep reading: the broker must not block
                sys.stderr.buffer.write(prefix + line)
                sys.stderr.buffer.flush()


def describe_exit(status: int) -> str:
    """Return a process's exit status as text."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _child_command() -> list[str]:
    """Return the command of a child, which finds its modules where this process does."""
    finds_in_cwd = not {"", os.getcwd()}.isdisjoint(sys.path)  # noqa: PTH109 - compared as text
    return [sys.executable, *([] if finds_in_cwd else ["-P"]), "-m", _PROGRAM]
