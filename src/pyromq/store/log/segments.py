"""A sequence of equal-sized mapped files that hold one stream of bytes.

The commit log and each consume queue are such streams. The byte at offset n is in the file with
the largest base not above n. Files follow one another without a gap, and only the oldest ones are
removed.

Rules for files found in a directory
1. Names of twenty digits belong to the stream; all others are ignored, with a log line each.
2. A last file with a wrong size is left from an interrupted creation: it is removed if it is
   empty and refused otherwise, as in RocketMQ.
3. A gap between files, or a base that is not a multiple of the size, is refused.
4. A stream may be spread over several directories. Files of read-only directories are mapped for
   reading only, and never changed or removed. They are ignored if the rest of the stream does not
   continue from them, because the files in between have expired.

`files` belongs to the loop's thread. It grows in place, but shrinks at its front only by being
replaced, so that another thread can keep using the list it took.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyromq.store.log.mapped_file import MappedFile, make_file
from pyromq.store.log.open_files import FileHolder, OpenFiles
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

#: Shared: an empty set takes 216 bytes, and a store may have 100,000 streams.
_NOWHERE: Final[frozenset[Path]] = frozenset()


class Segments:
    """The files of one stream, oldest first."""

    __slots__ = (
        "_holder",
        "_more",
        "_open_files",
        "_read_only",
        "avoided",
        "directory",
        "files",
        "segment_size",
    )

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        more: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        open_files: OpenFiles | None = None,
        holder: FileHolder | None = None,
    ) -> None:
        """`more` are further directories for new files, `read_only` hold old ones.

        With `open_files`, files are mapped on demand; `holder` may veto unmapping one.
        """
        self._open_files = open_files
        self._holder = holder
        self.directory = directory
        self._more = tuple(more)
        self._read_only = tuple(read_only)
        #: Directories on nearly full disks, which get a new file only if all are.
        self.avoided: frozenset[Path] = _NOWHERE
        self.segment_size = segment_size
        self.files: list[MappedFile] = []

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return all directories for new files."""
        return (self.directory, *self._more)

    def directory_for(self, base: int) -> Path:
        """Return the directory of the file that starts at `base`: round robin, as in Java."""
        if not self._more:
            return self.directory
        directories = self.directories
        candidates = sorted(set(directories) - self.avoided) or sorted(directories)
        return candidates[base // self.segment_size % len(candidates)]

    def load(self) -> None:
        """Map the existing files. Raises StoreError if they do not fit together."""
        paths = self._find_paths()
        for path in paths:
            size = path.stat().st_size
            if size == 0 and path == paths[-1]:
                if path.parent in self._read_only:
                    logger.warning("ignoring %s: empty file in a read-only directory", path)
                    continue
                logger.warning("removing %s: empty, left from an interrupted creation", path)
                path.unlink()
                continue
            if size != self.segment_size:
                raise StoreError(
                    f"{path} has {size} bytes, not {self.segment_size}: set the segment size "
                    "that the store was written with, or move the file away"
                )
            file = self._file(path, read_only=path.parent in self._read_only)
            if file.base % self.segment_size:
                raise StoreError(
                    f"{path} is not at a multiple of {self.segment_size}: set the segment size "
                    "that the store was written with, or move the file away"
                )
            if self.files and file.base != self.files[-1].base + self.segment_size:
                if all(before.read_only for before in self.files):
                    logger.warning(
                        "%s does not follow %s: ignoring the read-only files before it",
                        path,
                        self.files[-1].path,
                    )
                    self.close()
                    self.files.append(file)
                    continue
                raise StoreError(
                    f"{path} does not follow {self.files[-1].path.name}: "
                    "restore the missing file in between"
                )
            self.files.append(file)

    @property
    def first_offset(self) -> int:
        """Return the offset of the first byte that is still stored."""
        return self.files[0].base if self.files else 0

    @property
    def end_offset(self) -> int:
        """Return the offset after the last file."""
        return self.files[-1].base + self.segment_size if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, or None."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.segment_size
        return files[index] if 0 <= index < len(files) else None

    def between(self, start: int, end: int) -> list[MappedFile]:
        """Return the files that hold bytes from `start` to `end`. Any thread."""
        files = self.files
        if not files or start >= end:
            return []
        base, size = files[0].base, self.segment_size
        return files[max(0, (start - base) // size) : max(0, (end - base + size - 1) // size)]

    def add(self, file: MappedFile) -> None:
        """Append the next file."""
        self.files.append(file)

    def create_next(self, first_base: int = 0) -> MappedFile:
        """Create and append the next file, or the first one at `first_base`."""
        base = self.end_offset if self.files else first_base
        file = self._file(make_file(self.directory_for(base), base, self.segment_size))
        self.files.append(file)
        return file

    def take_first(self) -> MappedFile:
        """Detach and return the first file, which can still be read."""
        first = self.files[0]
        first.leave()
        self.files = self.files[1:]
        return first

    def drop_after(self, offset: int) -> None:
        """Remove the files that start after `offset`."""
        removed = 0
        while self.files and self.files[-1].base > offset:
            self.files.pop().delete()
            removed += 1
        if removed:
            logger.warning(
                "removed %d files of %s after offset %d: no valid data",
                removed,
                self.directory,
                offset,
            )

    def close(self) -> None:
        """Unmap all files."""
        for file in self.files:
            file.close()
        self.files.clear()

    def delete(self) -> None:
        """Remove all files, and their directory if it is empty then."""
        # The list first, so that a reader on another thread can tell why a file is gone.
        files, self.files = self.files, []
        for file in files:
            file.delete()
        remove_if_empty(self.directory)

    def _file(self, path: Path, *, read_only: bool = False) -> MappedFile:
        return MappedFile(
            path,
            self.segment_size,
            reserved=0,
            read_only=read_only,
            files=self._open_files,
            holder=self._holder,
        )

    def _find_paths(self) -> list[Path]:
        """Return the stream's files of all directories, in order."""
        found: dict[str, Path] = {}
        for directory in dict.fromkeys((*self.directories, *self._read_only)):
            if not directory.is_dir():
                if directory in self._read_only:
                    logger.warning("ignoring %s: not a directory", directory)
                continue
            for path in directory.iterdir():
                if not self._belongs(path):
                    continue
                other = found.setdefault(path.name, path)
                if other is not path:
                    raise StoreError(f"{other} and {path} have the same offset: move one away")
        return [found[name] for name in sorted(found)]

    def _belongs(self, path: Path) -> bool:
        name = path.name
        if len(name) == 20 and name.isascii() and name.isdecimal() and path.is_file():
            return True
        logger.warning("ignoring %s: not a segment of this store", path)
        return False


def remove_if_empty(directory: Path) -> None:
    """Remove a directory unless it has files. Needs no descriptor."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
