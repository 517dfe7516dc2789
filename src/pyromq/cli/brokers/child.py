"""One broker of `pyromq standalone --brokers`: the child's side.

    python -m pyromq.cli.brokers.child broker-1

The name is for `ps`; everything else comes from the parent (`cli.brokers.processes`).

| stream | content |
| --- | --- |
| stdin | one line of JSON, the `Order`; then the line `stop`, which stops the broker cleanly |
| stdout | lines of JSON: the `Boot` when the broker serves, or the `Failure` of its start; then a \
`Created` for every topic that a send creates, and a `Failure` if it stops for good |
| stderr | log lines, unless the order names a log directory |

stdin stays open for as long as the parent lives. When it ends, also because the parent was killed,
so does the broker: cleanly if it serves; at once if it is still starting, or already stopping. No
broker outlives its parent unnoticed.

A thread reads stdin; the rest runs on the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final, NoReturn, Self

import click

from pyromq.base.settings import ConfigError
from pyromq.broker.config import load_broker_properties
from pyromq.broker.services.live_config import own_file
from pyromq.cli.broker import start_broker
from pyromq.cli.running import (
    ServerOptions,
    Servers,
    bad_setting,
    read_properties,
    run_servers,
)
from pyromq.store.config import BrokerRole

logger = logging.getLogger(__name__)

STOP: Final = b"stop\n"
_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2
_MAX_ORDER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Order:
    """What the parent asks of the child."""

    #: Settings that override those of the file.
    properties: dict[str, str] = field(default_factory=dict)
    config_file: str | None = None
    log_level: str = "INFO"
    log_dir: str | None = None
    log_size: int = 128
    log_files: int = 10
    log_format: str = "text"
    log_compress: bool = False
    #: Whether a promotion is saved in the store, and not in the file that all brokers share.
    keeps_role: bool = False

    @property
    def is_replica(self) -> bool:
        """Return whether the broker starts as a replica."""
        return self.properties.get("brokerRole") == BrokerRole.SLAVE.name

    def encode(self) -> bytes:
        """Return the line for the child's stdin."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Return the order in a line. Raises ValueError if it is something else."""
        try:
            return cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"not an order: {error}") from error


@dataclass(frozen=True, slots=True)
class Boot:
    """The broker serves."""

    line: str
    port: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The broker cannot start, or, after `Boot`, can never do its job again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Created:
    """A send has created a topic."""

    topic: str
    queues: int
    perm: int
    sys_flag: int


Report = Boot | Failure | Created
_KINDS: Final = {kind.__name__: kind for kind in (Boot, Failure, Created)}


def encode_report(report: Report) -> bytes:
    """Return the line for the child's stdout."""
    return json.dumps([type(report).__name__, asdict(report)]).encode() + b"\n"


def decode_report(line: bytes) -> Report | None:
    """Return the report in a line of the child's stdout; None if it is something else."""
    try:
        kind, fields = json.loads(line)
        return _KINDS[kind](**fields)
    except (ValueError, TypeError, KeyError):
        return None


def main() -> None:
    """Run the broker that the parent describes."""
    try:
        order = Order.decode(_read_line())
    except ValueError:
        click.echo("This program is started by `pyromq standalone --brokers N`.", err=True)
        sys.exit(2)
    reports = _take_stdout()
    parent = Parent(_STDIN, silence=_silence_stderr, end=_end_at_once)
    threading.Thread(target=parent.follow, daemon=True).start()
    try:
        _run(order, parent, lambda report: _write(reports, encode_report(report)))
    except click.ClickException as error:
        _write(reports, encode_report(Failure(error.message)))
        sys.exit(error.exit_code)


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_ORDER_BYTES:
        byte = os.read(_STDIN, 1)  # not one more: the thread reads the rest
        if not byte:
            break
        line += byte
    return line


def _take_stdout() -> int:
    """Return a descriptor for reports; whatever else prints to stdout goes to stderr."""
    reports = os.dup(_STDOUT)  # not inherited by children, so that it closes with this process
    os.dup2(_STDERR, _STDOUT)
    os.set_blocking(reports, False)
    return reports


def _write(reports: int, line: bytes) -> None:
    """Write a line, unless the parent is gone or does not read: that must not stop the broker."""
    try:
        os.write(reports, line)  # a pipe takes so short a line as a whole or not at all
    except BlockingIOError:
        logger.warning("report not delivered to the parent process: %s", line)
    except OSError:
        pass


def _run(order: Order, parent: Parent, report: Callable[[Report], None]) -> None:
    try:
        loaded = load_broker_properties({**read_properties(order.config_file), **order.properties})
    except ConfigError as error:
        raise bad_setting(error, order.config_file) from error
    lines: list[str] = []

    async def start(servers: Servers) -> None:
        broker = await start_broker(
            servers,
            loaded,
            "choose others with --broker-port",
            order.config_file,
            lines.append,
            role_file=own_file(loaded.store) if order.keeps_role else None,
        )
        broker.topics.add_creation_listener(
            lambda topic: report(
                Created(topic.topic_name, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
            )
        )
        loop = asyncio.get_running_loop()
        parent.serving(lambda: _call_on(loop, servers.stop))
        report(Boot(lines[0], broker.port))

    options = ServerOptions(
        order.log_level,
        order.log_dir,
        order.log_size,
        order.log_files,
        log_format=order.log_format,
        log_compress=order.log_compress,
    )
    # The parent has logged the warnings about the settings, once for all brokers.
    run_servers(start, options, ("store.log", "broker.log"))


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped
        loop.call_soon_threadsafe(function)


class Parent:
    """Follows the parent's wishes. `serving` runs on the loop, the rest on a thread."""

    def __init__(
        self, stdin: int, *, silence: Callable[[], None], end: Callable[[], object]
    ) -> None:
        """`silence` turns stderr off, `end` ends this process at once."""
        self._stdin = stdin
        self._silence = silence
        self._end = end
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self.told_to_stop = False

    def serving(self, stop: Callable[[], object]) -> None:
        """Note that the broker serves; `stop` stops it cleanly, from any thread."""
        with self._lock:
            self._stop = stop
            if self.told_to_stop:
                stop()

    def follow(self) -> None:
        """Stop the broker when the parent says so, or is gone."""
        received = b""
        while data := os.read(self._stdin, 4096):
            received += data
            if STOP in received:
                received = b""
                self._stop_once()
        # Nobody reads stderr any more, and a failed write must not disturb the stop.
        self._silence()
        if not self._stop_once():
            self._end()

    def _stop_once(self) -> bool:
        """Stop the broker; return False if it does not serve, or stops already."""
        with self._lock:
            if self.told_to_stop:
                return False
            self.told_to_stop = True
            if self._stop is None:
                return False
            self._stop()
            return True


def _silence_stderr() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)


def _end_at_once() -> NoReturn:
    os._exit(1)


if __name__ == "__main__":
    main()
