"""Open and map files with file descriptors in reserve.

A server's peers can use up every descriptor of the process. The store must keep working: a flush
that cannot open its file is not a lost write. So a running store opens all its files here, and
some descriptors are held as spares while it runs.

Invariants
1. Failing to get a descriptor, a mapping or memory is a ShortageError: nothing was done, nothing
   is lost, and the caller may retry. Every other error keeps its type.
2. `open_file` and `map_file` spend spares before they fail. `close_file` turns the descriptor
   back into a spare atomically, so that no connection can take it in between.
3. Spares belong to the process, however many stores run in it.

Safe on any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyromq.base.log_lines import RARELY

logger = logging.getLogger(__name__)

#: Descriptors held in reserve while a store runs.
SPARES: Final = 16
#: Descriptors for listening sockets, tables and the key index.
_OTHERS: Final = 64
#: Default for mapped files: one descriptor in four, within these bounds. The kernel also limits
#: mappings (vm.max_map_count, 65,530 by default).
_DESCRIPTORS_PER_MAPPED: Final = 4
_MIN_MAPPED: Final = 32
MAX_MAPPED: Final = 16_384
#: Assumed if the process has no limit.
_UNLIMITED: Final = 1 << 20
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_SHORTAGES: Final = _NO_DESCRIPTOR | {errno.ENOMEM, errno.EAGAIN, errno.EINTR}


class ShortageError(OSError):
    """No descriptor, mapping or memory was free. Nothing was done; retry."""


def open_file(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a file like os.open, with a spare if need be. Close it with `close_file`."""
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            _spend_spare(error, path)


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o644) -> Iterator[int]:
    """Open a file for the duration of a with block."""
    descriptor = open_file(path, flags, mode)
    try:
        yield descriptor
    finally:
        close_file(descriptor)


def close_file(descriptor: int) -> None:
    """Close a descriptor, or keep it as a spare if one is missing."""
    if _reserve.take_back(descriptor):
        return
    os.close(descriptor)


def map_file(descriptor: int, size: int, access: int, offset: int = 0) -> mmap.mmap:
    """Map a range of a file. The mapping has its own descriptor."""
    while True:
        try:
            return mmap.mmap(descriptor, size, access=access, offset=offset)
        except OSError as error:
            _spend_spare(error, descriptor)


def hold_spares() -> None:
    """Hold spares until the matching `release_spares`."""
    _reserve.hold()


def release_spares() -> None:
    """Undo one `hold_spares`; the last call closes the spares."""
    _reserve.release()


def top_up() -> bool:
    """Replace spent spares; return whether all are back."""
    return _reserve.top_up()


def mapped_files_allowed(setting: int = 0) -> int:
    """Return how many files a store may map: the setting, or a share of the process's limit."""
    if setting:
        return setting
    return min(MAX_MAPPED, max(_MIN_MAPPED, _limit() // _DESCRIPTORS_PER_MAPPED))


def descriptors_needed(setting: int = 0) -> int:
    """Return how many descriptors a server must leave to a store with this maxMappedFiles."""
    return mapped_files_allowed(setting) + SPARES + _OTHERS


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, _UNLIMITED)


def _spend_spare(error: OSError, name: Path | int) -> None:
    """Return if a retry makes sense, after closing a spare; otherwise raise."""
    if error.errno not in _SHORTAGES:
        raise error
    if error.errno in _NO_DESCRIPTOR and _reserve.spend():
        return
    logger.error(
        "store is short of descriptors or memory, retrying: %s; raise the limit of open files "
        "(ulimit -n) or limit connections",
        error,
        extra=RARELY,
    )
    raise ShortageError(error.errno, error.strerror, str(name)) from error


class _Reserve:
    """The spares: duplicates of a /dev/null descriptor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        #: The descriptor that spares duplicate.
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
        """Close a spare; return False if there is none."""
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True

    def take_back(self, descriptor: int) -> bool:
        """Turn a descriptor into a spare; return False if none is missing."""
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


_reserve: Final = _Reserve()
