"""The log of a broker in a raft group: entries that the group agrees on, each with one record.

The entries are in files of their own (`raft.log`), which only this broker's consensus writes and
truncates. The store sees what the group has committed: the `written` watermark is the end of the
last committed entry, and nothing above it is read, dispatched or indexed.

A broker that had a commit log before it joined a group keeps it (mixed mode): `JoinedSegments` is
the old segments and the files of entries as one stream. The old ones end at the divided offset, and
new records never go there.

Invariants
1. `written` <= the end of the entries, and never moves back.
2. `append` takes whole entries, only while this broker leads, and leaves `written` alone.
3. Old segments expire before the first file of entries does.

Owned by the loop's thread, as `commit_log`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pyromq.base.descriptors import ShortageError
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)


class EntryLog(Protocol):
    """What the store needs of a raft log; `raft.log.RaftLog` is one."""

    @property
    def segments(self) -> Segments:
        """The files of entries."""

    @property
    def written(self) -> int:
        """Position after the last entry."""

    @property
    def next_index(self) -> int:
        """Index of the next entry."""

    @property
    def committed_position(self) -> int:
        """Position after the last committed entry; 0 if none is."""

    @property
    def begin_position(self) -> int:
        """Position of the first entry, or of the next one if there is none."""

    def exists(self) -> bool:
        """Whether there are files of entries."""

    def start(self) -> None:
        """Load and repair the files. Raises StoreError or OSError."""

    def stop(self) -> None:
        """Flush everything and unmap the files."""

    def make_room(self, size: int) -> tuple[int, int]:
        """Return where `size` bytes of entries go, and the end of the room. Raises OSError."""

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Return where entries of these sizes go, and reserve room there. Raises OSError."""

    def append_raw(self, data: bytes | memoryview) -> int:
        """Append whole entries, for which there is room; return their number."""

    def commit_below(self, position: int) -> None:
        """Note that entries which end at or below `position` are committed."""

    def flush(self) -> None:
        """Fsync everything that is written. Raises OSError."""

    def take_first(self) -> MappedFile:
        """Detach the first file, all of whose entries are committed, for the caller to remove."""


class JoinedSegments(Segments):
    """Old segments, then files of entries, as one stream for readers."""

    __slots__ = ("_entries", "_old")

    def __init__(self, old: Segments) -> None:
        super().__init__(old.directory, old.segment_size)
        self._old = old
        self._entries: Segments | None = None

    def join(self, entries: Segments) -> None:
        """Let the files of entries follow the old segments."""
        self._entries = entries

    @property
    def old(self) -> Segments:
        """Return the old segments."""
        return self._old

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return all directories for new files."""
        return (self._old if self._entries is None else self._entries).directories

    @property
    def files(self) -> list[MappedFile]:
        """Return the files of both, oldest first."""
        if self._entries is None:
            return self._old.files
        if not self._old.files:
            return self._entries.files
        return [*self._old.files, *self._entries.files]

    @files.setter
    def files(self, files: list[MappedFile]) -> None:
        assert not files, "the parts keep their files"

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, or None."""
        if self._entries is None or offset < self._old.end_offset:
            return self._old.find(offset)
        return self._entries.find(offset)

    def load(self) -> None:
        """Map the old segments. Raises StoreError if they do not fit together."""
        self._old.load()

    def take_first(self) -> MappedFile:
        """Detach and return the first old segment."""
        return self._old.take_first()

    def close(self) -> None:
        """Unmap the old segments; the owner of the entries closes its files."""
        self._old.close()


class AgreedLog(CommitLog):
    """A commit log whose records are in entries that a group agrees on."""

    __slots__ = ("_entries", "_joined")

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        *,
        more: Sequence[Path] = (),
        read_only: Sequence[Path] = (),
        open_files: OpenFiles | None = None,
    ) -> None:
        super().__init__(
            directory, segment_size, more=more, read_only=read_only, open_files=open_files
        )
        self.segments = self._joined = JoinedSegments(self.segments)
        self._entries: EntryLog | None = None

    def adopt(self, entries: EntryLog) -> None:
        """Continue with these entries, which are loaded. Only the old segments may be loaded."""
        self._entries = entries
        self._entries_from = self._joined.old.end_offset
        self._joined.join(entries.segments)

    @property
    def entries(self) -> EntryLog:
        """Return the entries."""
        assert self._entries is not None, "no entries yet"
        return self._entries

    def start(self, end: int) -> None:
        """Continue at `end`, the end of the committed entries."""
        self.watermarks.reset(end)

    def stop(self) -> None:
        """Flush and unmap everything."""
        self.flush()
        self.entries.stop()
        self.segments.close()

    def agree(self, end: int, store_timestamp: int) -> None:
        """Let readers see the entries below `end`, which the group has committed."""
        self.watermarks.move_written(end, store_timestamp)

    def make_room(self, size: int) -> tuple[int, int]:
        """Return where the next entry goes, and the end of the room. Raises PutError."""
        try:
            return self.entries.make_room(size)
        except OSError as error:
            raise _no_room(size, error) from error

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Return where entries of these sizes go, perhaps in several files. Raises PutError."""
        try:
            return self.entries.reserve(sizes)
        except OSError as error:
            raise _no_room(sum(sizes), error) from error

    @property
    def append_position(self) -> int:
        """Return where the next append goes."""
        return self.entries.written

    def append(self, records: bytes | memoryview, store_timestamp: int) -> None:  # noqa: ARG002
        """Append whole entries, for which there is room."""
        self.entries.append_raw(records)

    def take_first(self) -> MappedFile:
        """Detach and return the first segment, for the caller to remove."""
        return self._joined.take_first() if self._joined.old.files else self.entries.take_first()

    def flush(self) -> None:
        """Fsync everything so far. Called by the flush thread."""
        marks = self.watermarks
        offset, timestamp = marks.written, marks.written_timestamp
        self.entries.flush()
        if marks.flushed < offset:
            marks.move_flushed(offset, timestamp)

    @property
    def min_offset(self) -> int:
        """Return the offset of the first byte that is still stored."""
        return self.segments.first_offset if self.segments.files else self.watermarks.written


def _no_room(size: int, error: OSError) -> PutError:
    if not isinstance(error, ShortageError):  # `descriptors` has logged it
        logger.error(
            "no room for %d bytes of entries, messages refused: %s; free disk space", size, error
        )
    return PutError(PutStatus.CREATE_MAPEDFILE_FAILED, str(error))
