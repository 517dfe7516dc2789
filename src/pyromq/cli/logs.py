"""Server logging: to stderr, or to files rotated by size; as text, or as a JSON object per line.

With a log directory, each component has its own file under RocketMQ's name: `store.log` for the
store, `namesrv.log` for the NameServer, `broker.log` for the rest of a broker. A full file
becomes FILE.1, FILE.1 becomes FILE.2, and the oldest is deleted; compressed files end with `.gz`.
Warnings also go to stderr.

A JSON line has the keys `time` (ISO 8601 with milliseconds and time zone), `level`, `logger`,
`thread` and `message`, and `exception` with the traceback if there is one.

Much of the text comes from peers, so every line is truncated and escaped, and a burst of similar
lines becomes a few lines and a count (`base.log_lines`). Tracebacks are indented: a peer
cannot forge a log line.

A thread writes the files: a slow log disk must not block the loop. `cli.running` calls this
module on the main thread.
"""

from __future__ import annotations

import gzip
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import click
import orjson

from pyromq.base.log_lines import (
    MAX_LINES_OF_A_KIND,
    PERIOD_SECONDS,
    Dropped,
    Repeats,
    printable,
    shortened,
)

MIB: Final = 1024 * 1024
#: Maximum characters of a line.
MAX_LINE: Final = 4096
#: Maximum characters of a value, and of a line of a traceback.
MAX_VALUE: Final = 1024
#: Maximum lines of a traceback; the middle is cut.
MAX_TRACEBACK: Final = 100
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s - %(message)s"
#: Fast: the thread that compresses a file also writes the next lines.
_COMPRESSION: Final = 1
#: Log files of components, by logger name.
_PARTS: Final = {"pyromq.store": "store.log", "pyromq.nameserver": "namesrv.log"}


class LogFormat(Enum):
    """The form of a log line."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def logging_to_stderr(level: str, form: LogFormat = LogFormat.TEXT) -> Iterator[None]:
    """Log to stderr."""
    output = logging.StreamHandler()
    output.setFormatter(_JsonLine() if form is LogFormat.JSON else _OneLine(_FORMAT))
    with _few_of_a_kind(output):
        logging.basicConfig(level=level.upper(), handlers=[output])
        yield


@contextmanager
def logging_to_files(
    level: str,
    directory: Path,
    names: Sequence[str],
    max_bytes: int,
    max_files: int,
    form: LogFormat = LogFormat.TEXT,
    *,
    compress: bool = False,
) -> Iterator[None]:
    """Log to the files `names` in `directory`; the last one gets all other components.

    With `compress`, full files are compressed. Raises click.ClickException if the directory is not
    writable.
    """
    files = {
        name: _open(directory / name, max_bytes, max_files, compress=compress) for name in names
    }
    for name, file in files.items():
        file.addFilter(_belongs(name, names))
    errors = logging.StreamHandler()
    errors.setLevel(logging.WARNING)
    outputs: list[logging.Handler] = [*files.values(), errors]
    is_json = form is LogFormat.JSON
    for output in outputs:
        output.setFormatter(logging.Formatter("%(message)s" if is_json else _FORMAT))
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    entry = QueueHandler(lines)
    # Format here: QueueHandler merges message and traceback into one text.
    entry.setFormatter(_JsonLine() if is_json else _OneLine())
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
    """Formats records so that a peer's text cannot pass for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text with an indented traceback, ignoring a cached one."""
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


class _JsonLine(_OneLine):
    """Formats records as JSON, with the same text as `_OneLine`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line."""
        line = {
            "time": datetime.fromtimestamp(record.created)
            .astimezone()
            .isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": printable(record.getMessage(), MAX_LINE),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


@contextmanager
def _few_of_a_kind(output: logging.Handler) -> Iterator[None]:
    """Limit the lines of each kind that a handler writes; report the number dropped."""
    limiter = _RateLimit(output)
    output.addFilter(limiter)
    try:
        yield
    finally:
        limiter.close()
        output.removeFilter(limiter)


class _RateLimit(logging.Filter):
    """Drops lines of a kind that is too frequent and logs the number dropped.

    A kind is a logger, a level and an unformatted message. Called on any thread. DEBUG lines
    always pass: an operator who enables DEBUG wants all of them.
    """

    def __init__(self, output: logging.Handler) -> None:
        super().__init__()
        self._output = output
        self._repeats = Repeats(time.monotonic, PERIOD_SECONDS)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line; truncate its values before they are formatted."""
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
                # Report the last count even if no further line arrives.
                self._timer = threading.Timer(self._repeats.seconds, self._report)
                self._timer.daemon = True
                self._timer.start()
        self._write(counts)
        return wanted

    def close(self) -> None:
        """Report the remaining counts."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            counts = self._repeats.ended(all_of_them=True)
        self._write(counts)

    def _report(self) -> None:
        with self._lock:
            self._timer = None
            counts = self._repeats.ended(all_of_them=True)
        self._write(counts)

    def _write(self, counts: list[Dropped]) -> None:
        for count in counts:
            self._output.handle(_Count(count))


class _Kind(NamedTuple):
    """The properties that lines counted together share."""

    name: str
    level: int
    text: str
    detail: object


class _Count(logging.LogRecord):
    """The line that reports how many lines were dropped."""

    def __init__(self, dropped: Dropped) -> None:
        kind = dropped.kind
        if not isinstance(kind, _Kind):
            kind = _Kind("pyromq", logging.WARNING, str(kind), None)
        message = "%s similar lines dropped in the last %.0f s: %s"
        values = (f"{dropped.lines:,}", dropped.seconds, kind.text)
        super().__init__(kind.name, kind.level, "", 0, message, values, None)


def _open(path: Path, max_bytes: int, max_files: int, *, compress: bool) -> RotatingFileHandler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(
            path, maxBytes=max_bytes, backupCount=max_files - 1, encoding="utf-8"
        )
        if compress:
            handler.namer = lambda name: f"{name}.gz"
            handler.rotator = _compress
        return handler
    except OSError as error:
        raise click.ClickException(
            f"cannot write log file {path}: {error.strerror or error}; choose another directory "
            "with --log-dir"
        ) from error


def _belongs(name: str, names: Sequence[str]) -> Callable[[logging.LogRecord], bool]:
    def belongs(record: logging.LogRecord) -> bool:
        part = ".".join(record.name.split(".")[:2])
        own = _PARTS.get(part)
        return (own if own in names else names[-1]) == name

    return belongs


def _compress(source: str, target: str) -> None:
    """Move a full log file to a compressed one. Runs on the thread that writes the files."""
    # Under another name first: a kill meanwhile leaves no half of a file.
    unfinished = Path(f"{target}.part")
    with Path(source).open("rb") as full, gzip.open(unfinished, "wb", _COMPRESSION) as compressed:
        shutil.copyfileobj(full, compressed, MIB)
    unfinished.replace(target)
    Path(source).unlink()
