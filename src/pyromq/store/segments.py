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

Owned by the loop's thread.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pyromq.store.mapped_file import MappedFile
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)


class Segments:
    """The files of one stream, oldest first."""

    __slots__ = ("directory", "files", "segment_size")

    def __init__(self, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self.files: list[MappedFile] = []

    def load(self) -> None:
        """Map what is there; raises StoreError where the files do not fit together."""
        if not self.directory.is_dir():
            return
        paths = sorted(path for path in self.directory.iterdir() if self._belongs(path))
        for path in paths:
            size = path.stat().st_size
            if size == 0 and path == paths[-1]:
                logger.warning("%s is empty, an interrupted creation: removed", path)
                path.unlink()
                continue
            if size != self.segment_size:
                raise StoreError(
                    f"{path} has {size} bytes, not {self.segment_size}: set the segment size "
                    "that the store was written with, or move the file away"
                )
            file = MappedFile.open(path)
            if file.base % self.segment_size:
                raise StoreError(
                    f"{path} begins at no multiple of {self.segment_size}: set the segment size "
                    "that the store was written with, or move the file away"
                )
            if self.files and file.base != self.files[-1].base + self.segment_size:
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
        file = MappedFile.create(self.directory, base, self.segment_size)
        self.files.append(file)
        return file

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
        for file in self.files:
            file.delete()
        self.files.clear()
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _belongs(self, path: Path) -> bool:
        name = path.name
        if len(name) == 20 and name.isascii() and name.isdecimal() and path.is_file():
            return True
        logger.warning("%s is no segment of this store: left alone", path)
        return False
