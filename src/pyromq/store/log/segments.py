"""A run of equal-sized mapped files that together hold one stream of bytes.

The commit log and each consume queue are such streams. A stream's byte at offset n
is in the file whose base is the largest one not above n; files follow one another
without a gap, and only the first ones are ever removed.

Rules for what is found in a directory
1. Only names of twenty digits belong to the stream; anything else is left alone and
   named in one log line.
2. A last file of length zero or of a wrong size is what an interrupted creation
   left: it is removed when it is empty, refused otherwise, as RocketMQ does.
3. A gap between files, or a base that is no multiple of the size, is refused.
4. A stream may lie in several directories, each file in one of them. Those of read-only
   directories are mapped for reading only, and never changed or removed; where the rest
   of the stream does not go on from them, because what stood between has expired, they
   are left alone.

`files` belongs to the loop's thread. It grows in place, but loses its first ones only by
being replaced: whoever took the list on another thread can go on with it.
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

#: One for all: an empty set takes 216 bytes, and there are streams by the hundred thousand.
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
        """`more` are further directories for new files, `read_only` those of old ones.

        With `open_files` files are mapped when they are used; `holder` is asked before one is
        unmapped.
        """
        self._open_files = open_files
        self._holder = holder
        self.directory = directory
        self._more = tuple(more)
        self._read_only = tuple(read_only)
        #: Directories that get no new file while another one can: their disks are nearly full.
        self.avoided: frozenset[Path] = _NOWHERE
        self.segment_size = segment_size
        self.files: list[MappedFile] = []

    @property
    def directories(self) -> tuple[Path, ...]:
        """All directories that new files can come to."""
        return (self.directory, *self._more)

    def directory_for(self, base: int) -> Path:
        """Where the file that begins at `base` is made: Java's choice, one after the other."""
        if not self._more:
            return self.directory
        directories = self.directories
        open_ones = sorted(set(directories) - self.avoided) or sorted(directories)
        return open_ones[base // self.segment_size % len(open_ones)]

    def load(self) -> None:
        """Map what is there; raises StoreError where the files do not fit together."""
        paths = self._find_paths()
        for path in paths:
            size = path.stat().st_size
            if size == 0 and path == paths[-1]:
                if path.parent in self._read_only:
                    logger.warning("%s is empty: left alone", path)
                    continue
                logger.warning("%s is empty, an interrupted creation: removed", path)
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
                    f"{path} begins at no multiple of {self.segment_size}: set the segment size "
                    "that the store was written with, or move the file away"
                )
            if self.files and file.base != self.files[-1].base + self.segment_size:
                if all(before.read_only for before in self.files):
                    logger.warning(
                        "%s does not follow %s: the read-only files before it are left alone",
                        path,
                        self.files[-1].path,
                    )
                    self.close()
                    self.files.append(file)
                    continue
                raise StoreError(
                    f"{path} does not follow {self.files[-1].path.name}: a file between is missing"
                )
            self.files.append(file)

    @property
    def first_offset(self) -> int:
        """The offset of the first byte that is still there."""
        return self.files[0].base if self.files else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last file."""
        return self.files[-1].base + self.segment_size if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the byte at `offset`."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.segment_size
        return files[index] if 0 <= index < len(files) else None

    def add(self, file: MappedFile) -> None:
        """Append the next file."""
        self.files.append(file)

    def create_next(self, first_base: int = 0) -> MappedFile:
        """Make and append the next file, or the first one at `first_base`."""
        base = self.end_offset if self.files else first_base
        file = self._file(make_file(self.directory_for(base), base, self.segment_size))
        self.files.append(file)
        return file

    def take_first(self) -> MappedFile:
        """The first file, which is no longer part of the stream now; it can still be read."""
        first = self.files[0]
        first.leave()
        self.files = self.files[1:]
        return first

    def drop_after(self, offset: int) -> None:
        """Remove the files that begin behind `offset`."""
        removed = 0
        while self.files and self.files[-1].base > offset:
            self.files.pop().delete()
            removed += 1
        if removed:
            logger.warning(
                "%s: %d files behind offset %d hold nothing valid: removed",
                self.directory,
                removed,
                offset,
            )

    def close(self) -> None:
        """Unmap all files."""
        for file in self.files:
            file.close()
        self.files.clear()

    def delete(self) -> None:
        """Remove all files and, when it is empty then, their directory."""
        # First the list: a reader on another thread then knows why a file is gone.
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
        """The stream's files in all directories, by their offsets."""
        found: dict[str, Path] = {}
        for directory in dict.fromkeys((*self.directories, *self._read_only)):
            if not directory.is_dir():
                if directory in self._read_only:
                    logger.warning("%s is no directory: nothing is read from there", directory)
                continue
            for path in directory.iterdir():
                if not self._belongs(path):
                    continue
                other = found.setdefault(path.name, path)
                if other is not path:
                    raise StoreError(
                        f"{other} and {path} hold the same part of the store: move one away"
                    )
        return [found[name] for name in sorted(found)]

    def _belongs(self, path: Path) -> bool:
        name = path.name
        if len(name) == 20 and name.isascii() and name.isdecimal() and path.is_file():
            return True
        logger.warning("%s is no segment of this store: left alone", path)
        return False


def remove_if_empty(directory: Path) -> None:
    """Remove a directory, unless something is in it. Needs no descriptor."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
