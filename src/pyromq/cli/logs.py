"""Log lines of a server: to stderr, or to files that are rotated by size.

With a directory there is a file for each part, under RocketMQ's names: `store.log` has what the
store says, `namesrv.log` the NameServer, `broker.log` everything else of a broker. A file that is
full becomes FILE.1, FILE.1 becomes FILE.2, and the oldest one goes. Warnings go to stderr, too.

Lines are written by a thread of their own: a slow disk for logs must not hold up the loop.
Called by `cli.running` on the main thread.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Final

import click

MIB: Final = 1024 * 1024
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s - %(message)s"
#: Whose lines go to a file of their own, by the logger's name.
_PARTS: Final = {"pyromq.store": "store.log", "pyromq.nameserver": "namesrv.log"}


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Log lines for people, to stderr."""
    logging.basicConfig(level=level.upper(), format=_FORMAT)
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
    writer = QueueListener(lines, *outputs, respect_handler_level=True)
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.addHandler(entry)
    writer.start()
    try:
        yield
    finally:
        root.removeHandler(entry)
        writer.stop()
        for file in files.values():
            file.close()


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
