"""A store file of fixed size, mapped into memory as a whole.

Invariants
1. Bytes are written only below `reserved`, where disk blocks exist: a full disk raises OSError
   when room is reserved, and never SIGBUS in the middle of a copy.
2. A mapping is never closed, only dereferenced: it lives as long as a reader holds it. A file can
   therefore be closed, removed or unmapped at any time.
3. A file that belongs to `OpenFiles` is mapped on first use and may be unmapped when idle. Any
   other file stays mapped until `close`.
4. The only descriptor held is the mapping's own.
5. A read-only file is mapped for reading, so this process cannot change it.

The loop's thread writes. `populate`, `lock`, `unlock` (allocation thread) and `sync` (flush thread)
release the GIL while the kernel works.
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
from pyromq.base.sizes import MIB
from pyromq.store.log.open_files import FileHolder, OpenFiles
from pyromq.store.results import StoreError

_MADV_DONTNEED: Final = 4
_MADV_POPULATE_WRITE: Final = 23
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_PAGE: Final = 4096
#: Errors of file systems without O_TMPFILE.
_NO_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
#: Bytes per call when zeros are written, or pages are read in.
_MAX_ZEROS: Final = MIB
_MAX_READ: Final = MIB
#: `mincore` reports residency in the lowest bit of each byte.
_LOWEST_BITS: Final = bytes(value & 1 for value in range(256))
#: A read buffer per thread.
_scratch: Final = threading.local()
_libc = ctypes.CDLL(None, use_errno=True)
# Through ctypes, because mmap.madvise() holds the GIL while the kernel creates pages: 1.8 ms per
# MiB of a new file.
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
    """A mapped file. Its name is the offset of its first byte."""

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
        """With `files`, map it on first use; `holder` may veto unmapping it."""
        self.path = path
        self.size = size
        self.base = int(path.name)
        self.reserved = reserved
        self.read_only = read_only
        #: Used since it was mapped, or since the last search for a victim.
        self.used = False
        self._files = files
        self._holder = holder
        self._map: mmap.mmap | None = None
        if files is None:
            self._map = self.new_mapping()

    @classmethod
    def create(cls, directory: Path, base: int, size: int) -> MappedFile:
        """Create a file of zeros, sparse until `reserve` is called."""
        return cls(make_file(directory, base, size), size, reserved=0)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> MappedFile:
        """Open an existing file. Its blocks count as missing until `reserve` is called."""
        return cls(path, path.stat().st_size, reserved=0, read_only=read_only)

    def new_mapping(self) -> mmap.mmap:
        """Return a new mapping of the whole file. Raises OSError."""
        access = mmap.ACCESS_READ if self.read_only else mmap.ACCESS_WRITE
        with opened(self.path, os.O_RDONLY if self.read_only else os.O_RDWR) as descriptor:
            return map_file(descriptor, self.size, access)

    def set_mapping(self, mapping: mmap.mmap) -> None:
        """Use this mapping from now on. Called by `OpenFiles`."""
        self._map = mapping

    def unmap(self) -> bool:
        """Drop the mapping; return False if the holder needs it. Called by `OpenFiles`."""
        if self._holder is not None and not self._holder.let_go():
            return False
        self._map = None
        return True

    def ensure_mapped(self) -> mmap.mmap:
        """Return the mapping, and create it if needed. Raises OSError, or ValueError if closed."""
        mapping = self._map
        if mapping is not None:
            return mapping
        files = self._files
        if files is None:
            raise ValueError(f"{self.path} is closed")
        return files.map(self)

    def keep_mapped(self) -> None:
        """Map the file and keep it mapped until `hand_to`. Raises OSError."""
        self.ensure_mapped()
        if self._files is not None:
            self._files.remove(self)
            self._files = None

    def hand_to(self, files: OpenFiles | None) -> None:
        """Allow `files` to unmap this file from now on."""
        if files is not None:
            self._files = files
            files.add(self)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Copy `data` to `position`, where the caller has reserved room."""
        mapping = self._map
        if mapping is None:
            mapping = self.ensure_mapped()
        else:
            self.used = True
        mapping[position : position + len(data)] = data

    def write_large(self, position: int, data: bytes | memoryview) -> None:
        """Copy a large amount of `data` to `position`, where the caller has reserved room.

        Through the file instead of the mapping: the kernel then fills new pages without zeroing
        them first, and without a page fault for each.
        """
        rest = memoryview(data)
        with opened(self.path, os.O_WRONLY) as descriptor:
            while rest:
                written = os.pwrite(descriptor, rest, position)
                position += written
                rest = rest[written:]

    def read(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes from `start` to `end`."""
        mapping = self._map
        if mapping is None:
            mapping = self.ensure_mapped()
        else:
            self.used = True
        return mapping[start:end]

    def lend(self) -> mmap.mmap | None:
        """Return the mapping for one read without copying to Python, or None if there is none.

        Valid until the caller's thread runs other code. For the compiled kernel.
        """
        self.used = True
        return self._map

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end` without copying, for large reads.

        The view has its own mapping, which lives as long as the view: the file may be closed and
        removed meanwhile. Raises FileNotFoundError if it is removed already.
        """
        before = start % mmap.ALLOCATIONGRANULARITY
        if start >= min(end, self.size):
            return memoryview(b"")
        size = min(end, self.size) - start
        with opened(self.path, os.O_RDONLY) as descriptor:
            mapping = map_file(descriptor, before + size, mmap.ACCESS_READ, start - before)
        return memoryview(mapping)[before:]

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Copy the bytes from `start` on into `buffer`, and return how many, for large reads.

        Without the GIL, and cheaper than `view` if the caller does not read every byte. Raises
        FileNotFoundError if the file is removed already.
        """
        with opened(self.path, os.O_RDONLY) as descriptor:
            return os.preadv(descriptor, [buffer], start)

    def read_many(self, places: tuple[int, ...], sizes: tuple[int, ...]) -> list[bytes]:
        """Return copies of the records at these offsets of the stream, all in this file."""
        data, base = self.ensure_mapped(), self.base
        self.used = True
        if base == 0:
            return [data[at : at + size] for at, size in zip(places, sizes, strict=True)]
        return [data[at - base : at - base + size] for at, size in zip(places, sizes, strict=True)]

    def is_in_memory(self, start: int, end: int) -> bool:
        """Whether `start` to `end` can be read without waiting for the disk."""
        start, end = start & -_PAGE, min(end, self.size)
        if _mincore is None or start >= end:
            return True
        if self.read_only:
            return False  # a read-only mapping exposes no address; such files are old anyway
        pages = ctypes.create_string_buffer(-(-(end - start) // _PAGE))
        anchor = ctypes.c_char.from_buffer(self.ensure_mapped())
        if _mincore(ctypes.addressof(anchor) + start, end - start, pages) != 0:
            return True  # unknown: just read
        return b"\0" not in pages.raw.translate(_LOWEST_BITS)

    def bring_in(self, start: int, end: int) -> None:
        """Have the kernel read `start` to `end` into its cache, without holding the GIL."""
        # Large reads, so that the GIL is reacquired rarely, into one buffer that is never used.
        buffer = getattr(_scratch, "buffer", None)
        if buffer is None:
            buffer = _scratch.buffer = bytearray(_MAX_READ)
        view = memoryview(buffer)
        with opened(self.path, os.O_RDONLY) as descriptor:
            end = min(end, self.size)
            for position in range(start, end, _MAX_READ):
                os.preadv(descriptor, [view[: end - position]], position)

    def reserve(self, end: int) -> None:
        """Reserve the blocks below `end`. Raises OSError if the disk is full."""
        end = min(end, self.size)
        if end <= self.reserved:
            return
        self._refuse_change()
        with opened(self.path, os.O_RDWR) as descriptor:
            os.posix_fallocate(descriptor, self.reserved, end - self.reserved)
        self.reserved = end

    def populate(self, start: int, end: int) -> None:
        """Create the pages of a reserved range ahead of their first use."""
        # Kernels before 5.14 ignore the advice: their pages fault in one by one.
        self._advise(start, end, _MADV_POPULATE_WRITE)

    def release(self, end: int) -> None:
        """Drop the pages below `end` from this process's memory.

        The kernel keeps them in its cache, and they return with their next use.
        """
        self._advise(0, end, _MADV_DONTNEED)

    def lock(self, start: int, end: int) -> None:
        """Lock the pages of a reserved range in memory. Raises OSError if not permitted."""
        lock_memory(self.ensure_mapped(), start, min(end, self.size), str(self.path))

    def unlock(self) -> None:
        """Unlock all pages."""
        mapping = self._map
        if mapping is not None:  # unmapping has unlocked them otherwise
            anchor = ctypes.c_char.from_buffer(mapping)
            _libc.munlock(ctypes.addressof(anchor), self.size)

    def _advise(self, start: int, end: int, advice: int) -> None:
        start, end = start & -_PAGE, min(end, self.size) & -_PAGE
        mapping = self._map
        if mapping is None:
            return  # an unmapped file has no pages here
        if self.read_only:
            if start < end and advice == _MADV_DONTNEED:
                mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
            return
        if _madvise is not None and start < end:
            anchor = ctypes.c_char.from_buffer(mapping)
            _madvise(ctypes.addressof(anchor) + start, end - start, advice)

    def empty_from(self, position: int) -> None:
        """Zero everything from `position` on by punching a hole where possible.

        Raises StoreError for a read-only file.
        """
        if position >= self.size:
            return
        self._refuse_change()
        # Not by truncating and extending: a kill in between would leave a file of a wrong size,
        # which a start refuses.
        with opened(self.path, os.O_RDWR) as descriptor:
            if not _punch_hole(descriptor, position, self.size - position):
                self._write_zeros(descriptor, position)
        self.reserved = min(self.reserved, position)

    def _write_zeros(self, descriptor: int, position: int) -> None:
        """Zero the rest on a file system without holes. Leaves zeros untouched."""
        for start in range(position, self.size, _MAX_ZEROS):
            end = min(start + _MAX_ZEROS, self.size)
            if any(self.read(start, end)):
                os.pwrite(descriptor, bytes(end - start), start)

    def sync(self) -> None:
        """Fsync everything that was written.

        Raises ShortageError if no descriptor was free to try it, OSError if it failed.
        """
        if self.read_only:
            return
        with opened(self.path, os.O_RDWR) as descriptor:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Drop the mapping. Reads and writes raise ValueError afterwards."""
        files, self._files = self._files, None
        if files is not None:
            files.remove(self)
        self._map = None

    def leave(self) -> None:
        """Leave the store: the mapping lives until the last reader drops it."""
        if self._files is not None:
            self._files.remove(self)

    def delete(self) -> None:
        """Unmap and remove the file. Raises StoreError for a read-only one."""
        self._refuse_change()
        self.close()
        self.unlink()

    def unlink(self) -> None:
        """Remove the file. Its bytes stay readable while this object is referenced."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _refuse_change(self) -> None:
        if self.read_only:
            raise StoreError(
                f"{self.path} must be changed, but is in one of readOnlyCommitLogStorePaths: "
                "move it to a directory of storePathCommitLog"
            )


def make_file(directory: Path, base: int, size: int) -> Path:
    """Create a sparse file of zeros, or reuse an existing one of that name."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(base)
    if not _create_whole(path, size):
        with opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            os.ftruncate(descriptor, size)
    return path


def lock_memory(mapping: mmap.mmap, start: int, end: int, name: str = "") -> None:
    """Lock the pages of a mapping in memory. Raises OSError if not permitted."""
    start &= -_PAGE
    anchor = ctypes.c_char.from_buffer(mapping)
    refused = _libc.mlock(ctypes.addressof(anchor) + start, end - start)
    # In a traceback it would keep the mapping from being closed.
    del anchor
    if refused:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def populate_memory(mapping: mmap.mmap, start: int, end: int) -> None:
    """Create the pages of a mapping, if the kernel supports it."""
    start &= -_PAGE
    if _madvise is not None and start < end:
        anchor = ctypes.c_char.from_buffer(mapping)
        _madvise(ctypes.addressof(anchor) + start, end - start, _MADV_POPULATE_WRITE)


def _punch_hole(descriptor: int, start: int, length: int) -> bool:
    """Zero a range of a file atomically; return False if the file system cannot."""
    if _fallocate is None:
        return False
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    return bool(_fallocate(descriptor, mode, start, length) == 0)


def _create_whole(path: Path, size: int) -> bool:
    """Create the file atomically in its full size; return False if the file system cannot.

    RocketMQ refuses a store with a file of another size, so a kill must not leave one.
    """
    try:
        descriptor = open_file(path.parent, os.O_TMPFILE | os.O_RDWR)
    except OSError as error:
        if error.errno in _NO_TMPFILE:
            return False
        raise
    try:
        os.ftruncate(descriptor, size)
        # A directory descriptor makes os.link() call linkat(), which can follow this link.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except (FileExistsError, FileNotFoundError):
        return False  # left over from an interrupted creation, or no /proc
    finally:
        close_file(descriptor)
    return True


def file_name(base: int) -> str:
    """Return RocketMQ's name for the file that starts at this offset: twenty digits."""
    return f"{base:020d}"
