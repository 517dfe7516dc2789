"""File descriptors: how many the store may use, and some in reserve for when there are none.

Peers of a server can take every descriptor that the process may have. The store must go on
then: a flush that cannot open its file is not a lost write. So all files that a running store
opens are opened here, and some descriptors are held in reserve while a store runs.

Invariants
1. A failure to get a descriptor, a mapping or memory is a ShortageError: nothing was tried, so
   nothing is lost, and the caller may try again. Every other error keeps its type.
2. `open_file` and `map_file` give up spares before they fail. `close_file` turns the descriptor
   into a spare again atomically, so that no connection can take it in between.
3. Spares belong to the process, however many stores run in it.

May be called on any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

#: Descriptors held in reserve while a store runs.
SPARES: Final = 16
#: Descriptors for everything but peers and mapped files: sockets that listen, tables, key index.
_OTHERS: Final = 64
#: Mapped files by default: this share of the process's descriptors, within these bounds. The
#: kernel limits mappings, too (vm.max_map_count, 65,530 by default).
_MAPPED_SHARE: Final = 4
_MIN_MAPPED: Final = 32
MAX_MAPPED: Final = 16_384
#: Stands for no limit.
_MANY: Final = 1 << 20
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_SHORTAGES: Final = _NO_DESCRIPTOR | {errno.ENOMEM, errno.EAGAIN, errno.EINTR}
_SECONDS_BETWEEN_LINES: Final = 10.0


class ShortageError(OSError):
    """No descriptor, mapping or memory was free. Nothing was tried; try again."""


def open_file(path: Path, flags: int, mode: int = 0o644) -> int:
    """As os.open, with a spare if need be. Close it with `close_file`."""
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            _spend_spare(error, path)


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    """The descriptor of a file for as long as the block takes."""
    descriptor = open_file(path, flags, mode)
    try:
        yield descriptor
    finally:
        close_file(descriptor)


def close_file(descriptor: int) -> None:
    """Close a descriptor, or keep it as a spare where one is missing."""
    if _reserve.take_back(descriptor):
        return
    os.close(descriptor)


def map_file(descriptor: int, size: int, access: int, offset: int = 0) -> mmap.mmap:
    """Map a part of a file. The mapping has a descriptor of its own."""
    while True:
        try:
            return mmap.mmap(descriptor, size, access=access, offset=offset)
        except OSError as error:
            _spend_spare(error, descriptor)


def hold_spares() -> None:
    """Keep spares from now on; once for each `release_spares`."""
    _reserve.hold()


def release_spares() -> None:
    """The counterpart of `hold_spares`: the last one closes the spares."""
    _reserve.release()


def top_up() -> bool:
    """Get back the spares that were given up; whether all are there."""
    return _reserve.top_up()


def mapped_files_allowed(setting: int = 0) -> int:
    """How many files a store may keep mapped: the setting, or what suits the process's limit."""
    if setting:
        return setting
    return min(MAX_MAPPED, max(_MIN_MAPPED, _limit() // _MAPPED_SHARE))


def descriptors_needed(setting: int = 0) -> int:
    """How many descriptors a server must leave to a store, whose maxMappedFiles is `setting`."""
    return mapped_files_allowed(setting) + SPARES + _OTHERS


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else min(soft, _MANY)


def _spend_spare(error: OSError, name: Path | int) -> None:
    """Return when another try makes sense; else raise what the caller is to see."""
    if error.errno not in _SHORTAGES:
        raise error
    if error.errno in _NO_DESCRIPTOR and _reserve.spend():
        return
    _complaints.note(error)
    raise ShortageError(error.errno, error.strerror, str(name)) from error


class _Reserve:
    """The spares: descriptors of /dev/null."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        #: Where spares are copied from.
        self._source = -1
        self._spares: list[int] = []

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
        self.top_up()

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            for descriptor in (*self._spares, self._source):
                if descriptor >= 0:
                    os.close(descriptor)
            self._spares.clear()
            self._source = -1

    def spend(self) -> bool:
        """Close a spare; False when there is none."""
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True

    def take_back(self, descriptor: int) -> bool:
        """Make a spare of a descriptor; False when none is missing."""
        if self._source < 0 or len(self._spares) >= SPARES:
            return False
        with self._lock:
            if self._source < 0 or len(self._spares) >= SPARES:
                return False
            os.dup2(self._source, descriptor, inheritable=False)
            self._spares.append(descriptor)
            return True

    def top_up(self) -> bool:
        with self._lock:
            if not self._holders:
                return True
            try:
                if self._source < 0:
                    self._source = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                while len(self._spares) < SPARES:
                    self._spares.append(os.dup(self._source))
            except OSError:
                return False
            return True


class _Complaints:
    """One log line for many shortages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._next_line = 0.0

    def note(self, error: OSError) -> None:
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now < self._next_line:
                return
            count, self._count = self._count, 0
            self._next_line = now + _SECONDS_BETWEEN_LINES
        logger.error(
            "store is short of descriptors or memory, %d times since the last line: %s; retrying, "
            "raise the limit of open files (ulimit -n) or limit connections",
            count,
            error,
        )


_reserve: Final = _Reserve()
_complaints: Final = _Complaints()
