"""Log lines of a server: to stderr, or to files that are rotated by size.

With a directory there is a file for each part, under RocketMQ's names: `store.log` has what the
store says, `namesrv.log` the NameServer, `broker.log` everything else of a broker. A file that is
full becomes FILE.1, FILE.1 becomes FILE.2, and the oldest one goes. Warnings go to stderr, too.

Much of a line's text comes from peers, so every line is cut and escaped, and a crowd of lines of
one kind becomes a few and a count (`protocol.log_lines`). A traceback is indented: none of its
lines can pass for a log line.

Lines are written by a thread of their own: a slow disk for logs must not hold up the loop.
Called by `cli.running` on the main thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import click

from pyromq.base.log_lines import (
    MAX_LINES_OF_A_KIND,
    PERIOD_SECONDS,
    Dropped,
    Repeats,
    printable,
    shortened,
)

MIB: Final = 1024 * 1024
#: Characters of one line, of one value in it, and of a line of a traceback.
MAX_LINE: Final = 4096
MAX_VALUE: Final = 1024
#: Lines of a traceback: the first and the last ones stay.
MAX_TRACEBACK: Final = 100
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s - %(message)s"
#: Whose lines go to a file of their own, by the logger's name.
_PARTS: Final = {"pyromq.store": "store.log", "pyromq.nameserver": "namesrv.log"}


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Log lines for people, to stderr."""
    output = logging.StreamHandler()
    output.setFormatter(_OneLine(_FORMAT))
    with _few_of_a_kind(output):
        logging.basicConfig(level=level.upper(), handlers=[output])
        yield


@contextmanager
def logging_to_files(
    level: str, directory: Path, names: Sequence[str], max_bytes: int, max_files: int
) -> Iterator[None]:
    """Log lines to the files `names` in `directory`; the last of them takes what has none.

    Raises click.ClickException when the directory cannot be written to.
    """
    files = {name: _open(directory / name, max_bytes, max_files) for name in names}
    for name, file in files.items():
        file.addFilter(_belongs(name, names))
    errors = logging.StreamHandler()
    errors.setLevel(logging.WARNING)
    outputs: list[logging.Handler] = [*files.values(), errors]
    for output in outputs:
        output.setFormatter(logging.Formatter(_FORMAT))
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    entry = QueueHandler(lines)
    # Here, as it joins a message and its traceback to one text.
    entry.setFormatter(_OneLine())
    writer = QueueListener(lines, *outputs, respect_handler_level=True)
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.addHandler(entry)
    writer.start()
    try:
        with _few_of_a_kind(entry):
            yield
    finally:
        root.removeHandler(entry)
        writer.stop()
        for file in files.values():
            file.close()


class _OneLine(logging.Formatter):
    """Formats a record so that no text of a peer can look like a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text; its traceback is indented, whoever formatted it before."""
        before, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = before

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own
        record.message = printable(record.message, MAX_LINE)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - logging's own
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        lines = super().formatException(ei).split("\n")
        if len(lines) > MAX_TRACEBACK:
            half = MAX_TRACEBACK // 2
            lines[half:-half] = [f"... ({len(lines) - 2 * half} lines)"]
        return "\n".join(f"    {printable(line, MAX_VALUE)}" for line in lines)


@contextmanager
def _few_of_a_kind(output: logging.Handler) -> Iterator[None]:
    """Let a handler write few lines of each kind, and tell how many there were."""
    crowd = _Crowds(output)
    output.addFilter(crowd)
    try:
        yield
    finally:
        crowd.close()
        output.removeFilter(crowd)


class _Crowds(logging.Filter):
    """Drops lines of a kind that comes too often and writes their number later.

    A kind is a logger, a level and the text before its values are filled in. Called on any
    thread. Debug lines are not counted: they are only there when somebody looks for them.
    """

    def __init__(self, output: logging.Handler) -> None:
        super().__init__()
        self._output = output
        self._repeats = Repeats(time.monotonic, PERIOD_SECONDS)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; cuts its values before they are put into its text."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                shortened(value, MAX_VALUE) if isinstance(value, str) else value
                for value in record.args
            )
        if record.levelno <= logging.DEBUG or isinstance(record, _Count):
            return True
        text = str(record.msg).split("\n", 1)[0][:MAX_VALUE]
        kind = _Kind(record.name, record.levelno, text, getattr(record, "kind", None))
        with self._lock:
            counts = self._repeats.ended()
            wanted = self._repeats.is_wanted(kind, getattr(record, "lines", MAX_LINES_OF_A_KIND))
            if not wanted and self._timer is None and not self._closed:
                # So that the last count is told, too, when no other line comes.
                self._timer = threading.Timer(self._repeats.seconds, self._tell)
                self._timer.daemon = True
                self._timer.start()
        self._write(counts)
        return wanted

    def close(self) -> None:
        """Tell what was not told yet."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            counts = self._repeats.ended(all_of_them=True)
        self._write(counts)

    def _tell(self) -> None:
        with self._lock:
            self._timer = None
            counts = self._repeats.ended(all_of_them=True)
        self._write(counts)

    def _write(self, counts: list[Dropped]) -> None:
        for count in counts:
            self._output.handle(_Count(count))


class _Kind(NamedTuple):
    """What lines that are counted together have in common."""

    name: str
    level: int
    text: str
    detail: object


class _Count(logging.LogRecord):
    """The line that stands for those that were not written."""

    def __init__(self, dropped: Dropped) -> None:
        kind = dropped.kind
        if not isinstance(kind, _Kind):
            kind = _Kind("pyromq", logging.WARNING, str(kind), None)
        message = "... and %s more like it in the last %.0f s: %s"
        values = (f"{dropped.lines:,}", dropped.seconds, kind.text)
        super().__init__(kind.name, kind.level, "", 0, message, values, None)


def _open(path: Path, max_bytes: int, max_files: int) -> RotatingFileHandler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(
            path, maxBytes=max_bytes, backupCount=max_files - 1, encoding="utf-8"
        )
    except OSError as error:
        raise click.ClickException(
            f"log file {path} cannot be written: {error.strerror or error}; choose another "
            "directory with --log-dir"
        ) from error


def _belongs(name: str, names: Sequence[str]) -> Callable[[logging.LogRecord], bool]:
    def belongs(record: logging.LogRecord) -> bool:
        part = ".".join(record.name.split(".")[:2])
        own = _PARTS.get(part)
        return (own if own in names else names[-1]) == name

    return belongs
