"""One store file of a fixed size, mapped whole into memory.

Invariants
1. Bytes are written only below `reserved`, the part whose disk blocks exist: a full
   disk shows as an OSError where room is reserved, never as a SIGBUS in the middle
   of a copy.
2. A mapping is never closed, only let go of: it lives as long as anybody reads it. So a file
   can be closed, removed or unmapped whenever its owner says so.
3. A file that belongs to `OpenFiles` is mapped at its first use, and may be unmapped when it
   was not used for a while. One without is mapped from the beginning to `close`.
4. No descriptor is kept beside the mapping's own one.
5. A read-only file is mapped for reading: nothing that this process does can change it.

Written by the loop's thread; `populate` and `sync` are for the allocation and flush
threads and do not hold the interpreter's lock while the kernel works, as are `lock` and
`unlock`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import close_file, map_file, open_file, opened
from pyromq.store.log.open_files import FileHolder, OpenFiles
from pyromq.store.results import StoreError

_MADV_DONTNEED: Final = 4
_MADV_POPULATE_WRITE: Final = 23
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_PAGE: Final = 4096
#: What opening a file without a name fails with, where there are none.
_NO_NAMELESS_FILES: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_ZEROS: Final = 1024 * 1024
_READ_AT_ONCE: Final = 1024 * 1024
#: In what `mincore` says of a page the lowest bit counts.
_LOWEST_BITS: Final = bytes(value & 1 for value in range(256))
#: Each thread's own memory for reading.
_scratch: Final = threading.local()
_libc = ctypes.CDLL(None, use_errno=True)
# Through ctypes, because mmap.madvise() keeps the interpreter's lock while the
# kernel makes pages: 1.8 ms for each MiB of a new file.
_madvise = getattr(_libc, "madvise", None)
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _madvise.restype = ctypes.c_int
_fallocate = getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    _fallocate.restype = ctypes.c_int
_mincore = getattr(_libc, "mincore", None)
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    _mincore.restype = ctypes.c_int
for _function in ("mlock", "munlock"):
    getattr(_libc, _function).argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class MappedFile:
    """A mapped file whose name says the offset of its first byte."""

    __slots__ = (
        "_files",
        "_holder",
        "_map",
        "base",
        "path",
        "read_only",
        "reserved",
        "size",
        "used",
    )

    def __init__(
        self,
        path: Path,
        size: int,
        *,
        reserved: int,
        read_only: bool = False,
        files: OpenFiles | None = None,
        holder: FileHolder | None = None,
    ) -> None:
        """With `files` it is mapped when it is used; `holder` is asked before it is unmapped."""
        self.path = path
        self.size = size
        self.base = int(path.name)
        self.reserved = reserved
        self.read_only = read_only
        #: Used since it was mapped, or since `files` looked at it.
        self.used = False
        self._files = files
        self._holder = holder
        self._map: mmap.mmap | None = None
        if files is None:
            self._map = self.new_mapping()

    @classmethod
    def create(cls, directory: Path, base: int, size: int) -> MappedFile:
        """A new file full of zeros, sparse until `reserve` is called."""
        return cls(make_file(directory, base, size), size, reserved=0)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> MappedFile:
        """An existing file; nothing is known of its blocks until `reserve` is called."""
        return cls(path, path.stat().st_size, reserved=0, read_only=read_only)

    def new_mapping(self) -> mmap.mmap:
        """Map the whole file once more; raises OSError."""
        access = mmap.ACCESS_READ if self.read_only else mmap.ACCESS_WRITE
        with opened(self.path, os.O_RDONLY if self.read_only else os.O_RDWR) as descriptor:
            return map_file(descriptor, self.size, access)

    def set_mapping(self, mapping: mmap.mmap) -> None:
        """Use this mapping from now on. Called by `OpenFiles`."""
        self._map = mapping

    def unmap(self) -> bool:
        """Drop the mapping; False when the holder needs it. Called by `OpenFiles`."""
        if self._holder is not None and not self._holder.let_go():
            return False
        self._map = None
        return True

    def ensure_mapped(self) -> mmap.mmap:
        """Map the file if it is not mapped; raises OSError, or ValueError when it is closed."""
        mapping = self._map
        if mapping is not None:
            return mapping
        files = self._files
        if files is None:
            raise ValueError(f"{self.path} is closed")
        return files.map(self)

    def keep_mapped(self) -> None:
        """Map the file and keep it so, until `hand_to`; raises OSError."""
        self.ensure_mapped()
        if self._files is not None:
            self._files.remove(self)
            self._files = None

    def hand_to(self, files: OpenFiles | None) -> None:
        """Let this mapped file be unmapped by `files` from now on."""
        if files is not None:
            self._files = files
            files.add(self)

    def write(self, position: int, data: bytes | bytearray) -> None:
        """Copy `data` to `position`; the caller has reserved the room."""
        mapping = self._map
        if mapping is None:
            mapping = self.ensure_mapped()
        else:
            self.used = True
        mapping[position : position + len(data)] = data

    def read(self, start: int, end: int) -> bytes:
        """A copy of the bytes from `start` to `end`."""
        mapping = self._map
        if mapping is None:
            mapping = self.ensure_mapped()
        else:
            self.used = True
        return mapping[start:end]

    def view(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end` where they lie, for whoever reads many of them.

        By a mapping of their own, that goes with the last view of it: this file may be closed
        and removed meanwhile. FileNotFoundError when it is removed already.
        """
        before = start % mmap.ALLOCATIONGRANULARITY
        if start >= min(end, self.size):
            return memoryview(b"")
        size = min(end, self.size) - start
        with opened(self.path, os.O_RDONLY) as descriptor:
            mapping = map_file(descriptor, before + size, mmap.ACCESS_READ, start - before)
        return memoryview(mapping)[before:]

    def read_many(self, places: tuple[int, ...], sizes: tuple[int, ...]) -> list[bytes]:
        """Copies of the records at these offsets of the stream; all lie in this file."""
        data, base = self.ensure_mapped(), self.base
        self.used = True
        if base == 0:
            return [data[at : at + size] for at, size in zip(places, sizes, strict=True)]
        return [data[at - base : at - base + size] for at, size in zip(places, sizes, strict=True)]

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether reading from `start` to `end` would not have to wait for the disk."""
        start, end = start & -_PAGE, min(end, self.size)
        if _mincore is None or start >= end:
            return True
        if self.read_only:
            return False  # its mapping has no address for us, and it is old in any case
        pages = ctypes.create_string_buffer(-(-(end - start) // _PAGE))
        anchor = ctypes.c_char.from_buffer(self.ensure_mapped())
        if _mincore(ctypes.addressof(anchor) + start, end - start, pages) != 0:
            return True  # the kernel does not say: read as ever
        return b"\0" not in pages.raw.translate(_LOWEST_BITS)

    def bring_in(self, start: int, end: int) -> None:
        """Have the kernel read from `start` to `end`, without the interpreter's lock."""
        # Not to wait for that lock more often than needed, large pieces; and always the same
        # memory for what nobody looks at.
        buffer = getattr(_scratch, "buffer", None)
        if buffer is None:
            buffer = _scratch.buffer = bytearray(_READ_AT_ONCE)
        view = memoryview(buffer)
        with opened(self.path, os.O_RDONLY) as descriptor:
            end = min(end, self.size)
            for position in range(start, end, _READ_AT_ONCE):
                os.preadv(descriptor, [view[: end - position]], position)

    def reserve(self, end: int) -> None:
        """Make sure that the blocks below `end` exist; raises OSError on a full disk."""
        end = min(end, self.size)
        if end <= self.reserved:
            return
        self._refuse_change()
        with opened(self.path, os.O_RDWR) as descriptor:
            os.posix_fallocate(descriptor, self.reserved, end - self.reserved)
        self.reserved = end

    def populate(self, start: int, end: int) -> None:
        """Map the pages of a reserved part for writing, ahead of their first use."""
        # A kernel older than 5.14 does not know the advice: pages fault in one by one then.
        self._advise(start, end, _MADV_POPULATE_WRITE)

    def release(self, end: int) -> None:
        """Take the pages below `end` out of this process's memory; the kernel keeps them.

        They count as ours no longer, and come back with their first use.
        """
        self._advise(0, end, _MADV_DONTNEED)

    def lock(self, start: int, end: int) -> None:
        """Map the pages of a reserved part and keep them in memory; OSError if not allowed."""
        lock_memory(self.ensure_mapped(), start, min(end, self.size), str(self.path))

    def unlock(self) -> None:
        """Let the kernel take pages again that `lock` kept."""
        mapping = self._map
        if mapping is not None:  # else its pages are not locked any more
            anchor = ctypes.c_char.from_buffer(mapping)
            _libc.munlock(ctypes.addressof(anchor), self.size)

    def _advise(self, start: int, end: int, advice: int) -> None:
        start, end = start & -_PAGE, min(end, self.size) & -_PAGE
        mapping = self._map
        if mapping is None:
            return  # without a mapping it has no page here
        if self.read_only:
            if start < end and advice == _MADV_DONTNEED:
                mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
            return
        if _madvise is not None and start < end:
            anchor = ctypes.c_char.from_buffer(mapping)
            _madvise(ctypes.addressof(anchor) + start, end - start, advice)

    def empty_from(self, position: int) -> None:
        """Fill everything from `position` on with zeros, without touching it byte by byte.

        Raises StoreError for a read-only file.
        """
        if position >= self.size:
            return
        self._refuse_change()
        # Not by two changes of its size: a kill between them would leave a file that no
        # start takes.
        with opened(self.path, os.O_RDWR) as descriptor:
            if not _punch_hole(descriptor, position, self.size - position):
                self._write_zeros(descriptor, position)
        self.reserved = min(self.reserved, position)

    def _write_zeros(self, descriptor: int, position: int) -> None:
        """The same where the file system knows no holes; what is empty stays so."""
        for start in range(position, self.size, _ZEROS):
            end = min(start + _ZEROS, self.size)
            if any(self.read(start, end)):
                os.pwrite(descriptor, bytes(end - start), start)

    def sync(self) -> None:
        """Wait until all that was written is on the disk.

        Raises ShortageError when that could not even be tried, OSError when it failed.
        """
        if self.read_only:
            return
        with opened(self.path, os.O_RDWR) as descriptor:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Let go of the mapping. Reading or writing afterwards raises ValueError."""
        files, self._files = self._files, None
        if files is not None:
            files.remove(self)
        self._map = None

    def leave(self) -> None:
        """This file is not part of the store any more: its mapping goes with the last reader."""
        if self._files is not None:
            self._files.remove(self)

    def delete(self) -> None:
        """Unmap and remove the file; StoreError for a read-only one."""
        self._refuse_change()
        self.close()
        self.unlink()

    def unlink(self) -> None:
        """Remove the file. Its bytes can be read until the last reference to this object goes."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _refuse_change(self) -> None:
        if self.read_only:
            raise StoreError(
                f"{self.path} would have to be changed, and is in one of "
                "readOnlyCommitLogStorePaths: move it to a directory of storePathCommitLog"
            )


def make_file(directory: Path, base: int, size: int) -> Path:
    """A new file full of zeros, sparse; an old one of that name is taken."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(base)
    if not _create_whole(path, size):
        with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            os.ftruncate(descriptor, size)
    return path


def lock_memory(mapping: mmap.mmap, start: int, end: int, name: str = "") -> None:
    """Make the pages of a mapping and keep them in memory; OSError if that is not allowed."""
    start &= -_PAGE
    anchor = ctypes.c_char.from_buffer(mapping)
    refused = _libc.mlock(ctypes.addressof(anchor) + start, end - start)
    # An error's traceback would keep the mapping from being closed.
    del anchor
    if refused:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def populate_memory(mapping: mmap.mmap, start: int, end: int) -> None:
    """Make the pages of a mapping, where the kernel knows how to."""
    start &= -_PAGE
    if _madvise is not None and start < end:
        anchor = ctypes.c_char.from_buffer(mapping)
        _madvise(ctypes.addressof(anchor) + start, end - start, _MADV_POPULATE_WRITE)


def _punch_hole(descriptor: int, start: int, length: int) -> bool:
    """Let a part of a file read as zeros, in one step; False where that is not possible."""
    if _fallocate is None:
        return False
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    return bool(_fallocate(descriptor, mode, start, length) == 0)


def _create_whole(path: Path, size: int) -> bool:
    """Let the file appear in its full size; False where that is not possible.

    RocketMQ refuses a store with a file of another size, so a kill must not leave one.
    """
    try:
        descriptor = open_file(path.parent, os.O_TMPFILE | os.O_RDWR)
    except OSError as error:
        if error.errno in _NO_NAMELESS_FILES:
            return False
        raise
    try:
        os.ftruncate(descriptor, size)
        # With a descriptor for the directory the system's link follows to the file itself.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except (FileExistsError, FileNotFoundError):
        return False  # what an interrupted creation left, or a system without /proc
    finally:
        close_file(descriptor)
    return True


def file_name(base: int) -> str:
    """RocketMQ's name of the file whose first byte has that offset: twenty digits."""
    return f"{base:020d}"
