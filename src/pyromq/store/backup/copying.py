"""Copy files with checksums, at a limited rate.

A copy is written as NAME.tmp, fsynced, and then renamed: a file with its own name is complete. The
whole content is hashed; blocks of zeros are hashed, but not written, so copies of segments are
sparse. Called by `making`, `restoring` and `verifying`, on their thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.sizes import MIB

_BLOCK_SIZE: Final = MIB
_ZEROS: Final = bytes(_BLOCK_SIZE)


class Copied(NamedTuple):
    """What was read."""

    size: int
    #: The position after the last byte that is not zero.
    data_end: int
    sha256: str


class Throttle:
    """Delays its caller such that no more than a number of bytes pass per second."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, size: int) -> None:
        """Count bytes, and wait as long as they take at the rate."""
        if self._rate is None:
            return
        now = self._clock()
        # Unused time is not saved up, so there are no bursts after a pause.
        self._free_at = max(self._free_at, now) + size / self._rate
        self._sleep(self._free_at - now)


class Meter:
    """Counts bytes against a limit of the rate, and reports the progress."""

    def __init__(
        self,
        throttle: Throttle | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._throttle = throttle or Throttle(None)
        self._on_progress = on_progress
        self.total = 0
        self.done = 0

    def count(self, size: int) -> None:
        """Note that `size` bytes were copied."""
        self._throttle.spend(size)
        self.skip(size)

    def skip(self, size: int) -> None:
        """Note that `size` bytes need not be copied."""
        self.done += size
        if self._on_progress is not None:
            self._on_progress(self.done, max(self.total, self.done))


class ChecksumError(Exception):
    """A file does not have the checksum that it should have."""


def copy_file(
    source: Path,
    target: Path,
    size: int,
    meter: Meter,
    *,
    extend: int = 0,
    sha256: str | None = None,
) -> Copied:
    """Copy the first `size` bytes of a file; the copy gets `extend` bytes, if that is more.

    Raises OSError, or ChecksumError if the content does not have the hash `sha256`. A source that
    is shorter gives a shorter copy: compare `Copied.size`.
    """
    temporary = target.with_name(target.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        output = os.open(temporary, flags, 0o644)
        try:

            def write(position: int, data: bytes) -> None:
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(output, rest, position)
                    rest, position = rest[written:], position + written

            copied = _read(source, size, meter, write)
            if sha256 is not None and copied.sha256 != sha256:
                raise ChecksumError(str(source))
            os.ftruncate(output, max(copied.size, extend))
            os.fsync(output)
            # Nobody reads it soon; the broker needs the memory.
            os.posix_fadvise(output, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(output)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return copied


def hash_file(path: Path, size: int, meter: Meter) -> Copied:
    """Read the first `size` bytes of a file. Raises OSError."""
    return _read(path, size, meter, lambda _position, _data: None)


def _read(path: Path, size: int, meter: Meter, write: Callable[[int, bytes], None]) -> Copied:
    digest = hashlib.sha256()
    position = data_end = 0
    for data in _blocks(path, size):
        digest.update(data)
        if data != _ZEROS[: len(data)]:
            write(position, data)
            data_end = position + len(data.rstrip(b"\0"))
        position += len(data)
        meter.count(len(data))
    return Copied(position, data_end, digest.hexdigest())


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = 0
        while position < size:
            data = os.pread(descriptor, min(_BLOCK_SIZE, size - position), position)
            if not data:
                return
            yield data
            position += len(data)
    finally:
        os.close(descriptor)
