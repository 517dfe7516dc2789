"""Read-only access to segment files, for checks.

Unlike `log.segments`, this rejects nothing: it reports files that do not fit, and reads the others.
Files are opened for each read, so that checking a store with very many queues holds no descriptors.
Used by the other modules of `offline`, each object on one thread.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pyromq.protocol.message.entry import ENTRIES, RECORDS, Framing
from pyromq.store.offline.violation import Violation, ViolationKind

_NAME_LENGTH = 20


class SegmentFiles:
    """The files of one log or queue, by the offset of their first byte."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        more: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        entries: Path | None = None,
    ) -> None:
        """Describe where the files are; with `segment_size` 0, use the size of most files.

        Files may also be in `more` directories, and in `read_only` ones, which a broker never
        writes to. Those of a raft group's log are in `entries`.
        """
        self.directory = directory
        self.segment_size = segment_size
        self.bases: list[int] = []
        self._read_only = tuple(read_only)
        self._entries = entries
        self._directories = (directory, *more, *read_only, *([] if entries is None else [entries]))
        self._paths: dict[int, Path] = {}

    def load(self) -> Iterator[Violation]:
        """List the directories; yield files that do not fit, and fill `bases` with the others."""
        found: list[tuple[Path, int]] = []
        paths = [
            path
            for directory in dict.fromkeys(self._directories)
            if directory.is_dir()
            for path in directory.iterdir()
        ]
        for path in sorted(paths, key=lambda path: path.name):
            name = path.name
            if len(name) == _NAME_LENGTH and name.isascii() and name.isdecimal() and path.is_file():
                found.append((path, path.stat().st_size))
            else:
                yield _file(path, "is not a segment: expected a name of twenty digits")
        if not self.segment_size:
            self.segment_size = usual_size(path for path, _ in found)
        for path, size in found:
            if size == 0 and path == found[-1][0]:
                continue  # its creation was interrupted; the next start removes it
            base = int(path.name)
            if size != self.segment_size:
                yield _file(path, f"has {size} bytes, expected {self.segment_size}")
            elif size == 0 or base % size:
                yield _file(path, f"has a name that is not a multiple of {size}")
            elif base in self._paths:
                yield _file(path, f"has the same offset as {self._paths[base]}")
            else:
                if self.bases and base != self.bases[-1] + size:
                    if self._all_read_only():
                        # The segments between have expired. A start ignores these as well.
                        self.bases.clear()
                        self._paths.clear()
                    else:
                        yield _file(path, f"does not follow {self.path(self.bases[-1]).name}")
                self.bases.append(base)
                self._paths[base] = path

    def add(self, base: int, path: Path) -> None:
        """Add a file by hand, for example one that is shorter than a segment."""
        self.bases.append(base)
        self._paths[base] = path

    def _all_read_only(self) -> bool:
        return all(path.parent in self._read_only for path in self._paths.values())

    @property
    def first_offset(self) -> int:
        """The offset of the first byte of the first file."""
        return self.bases[0] if self.bases else 0

    @property
    def end_offset(self) -> int:
        """The offset after the last file."""
        return self.bases[-1] + self.segment_size if self.bases else 0

    def path(self, offset: int) -> Path:
        """Return the file that holds, or would hold, the byte at `offset`."""
        base = offset - offset % max(self.segment_size, 1)
        return self._paths.get(base) or self.directory / f"{base:0{_NAME_LENGTH}d}"

    def framing(self, offset: int) -> Framing:
        """Return what is around the records of the file that holds `offset`."""
        if self._entries is None or self.path(offset).parent != self._entries:
            return RECORDS
        return ENTRIES

    def place(self, offset: int) -> tuple[Path, int]:
        """Return the file of `offset` and the position in it."""
        return self.path(offset), offset % max(self.segment_size, 1)

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`, within one file; nothing without a file."""
        path, position = self.place(offset)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, min(size, self.segment_size - position), position)
        finally:
            os.close(descriptor)


def usual_size(paths: Iterable[Path]) -> int:
    """Return the size that most of these files have; 0 without files."""
    sizes = Counter(path.stat().st_size for path in paths)
    return sizes.most_common(1)[0][0] if sizes else 0


def _file(path: Path, message: str) -> Violation:
    return Violation(ViolationKind.FILE, path, 0, message)
