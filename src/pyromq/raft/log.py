"""The log of a raft node: entries in DLedger's files, byte for byte as Java writes them.

An entry has an index (0, 1, 2, ... without gaps), a term that never falls, and a position: its
place in the stream of data files, which is equal on all nodes. A leader numbers and places new
entries (`append_bodies`); a follower appends entries as the leader placed them (`append`,
`append_raw`), and checks index, term and position before it writes anything.

Invariants
1. `begin_index` <= index <= `end_index` for every stored entry; both are -1 while there is none.
2. The log ends at `written`, the end of the last entry. A blank belongs to the entry after it, so
   the next entry is at `written`, or at the start of the next file.
3. Everything below `flushed` is on disk, entries up to `flushed_index` with their index units.
   `flushed` <= `written`; only a truncation moves either back.
4. After a crash at any moment, the next start finds the entries before or after the operation
   that was in progress. Only an append may be there in part: whole entries, from the first on. A
   start completes the truncation that a `truncation` file describes.
5. `committed_index` <= `end_index`, and never falls while the log runs, except through `rebuild`.

Differences to Java: truncated bytes are zeroed, so that they cannot come back; a log that begins in
the middle of a file survives a restart.

Owned by the loop's thread; nothing here waits, except for the disk: `truncate`, `rebuild` and
`start` fsync. `flush` is for the flush thread. Reads may come from any thread.
"""

from __future__ import annotations

import errno
import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pyromq.base.atomic_file import sync_directory
from pyromq.raft.checkpoint_file import CheckpointFile
from pyromq.raft.entry_files import EntryFiles, EntryIndex
from pyromq.raft.format import (
    DATA_DIRECTORY,
    HEADER_SIZE,
    INDEX_DIRECTORY,
    INDEX_FILE_SIZE,
    INDEX_UNIT_SIZE,
    CheckpointText,
    Columns,
    Entry,
    Place,
    Run,
    Truncation,
    decode_columns,
    decode_header,
    encode_units,
    join_entries,
)
from pyromq.raft.placement import (
    MAX_TERM,
    MismatchError,
    check_claims,
    check_entries,
    columns_of,
    continuing_units,
    place_entries,
    split_by_file,
)
from pyromq.raft.recovery import CHECKED_FILES, BodyCheck, Recovered, recover, report_damage
from pyromq.raft.room import EntryRoom
from pyromq.raft.truncation_file import TruncationFile
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)
_NO_ENTRY: Final = -1


@dataclass(frozen=True, slots=True)
class _End:
    """The log's end, in one value for readers on other threads."""

    #: Index and term of the last entry, -1 if there is none.
    index: int
    term: int
    position: int
    #: Index of the next entry.
    next_index: int


class RaftLog:
    """The entries of one node. `directory` is Java's `<root>/dledger-<id>`."""

    def __init__(
        self,
        directory: Path,
        *,
        data_file_size: int,
        index_file_size: int = INDEX_FILE_SIZE,
        data_directory: Path | None = None,
        first_position: int = 0,
        check_body: BodyCheck | None = None,
        accept_loss: bool = False,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`first_position` is where a new log begins, at the start of a file (`mixed_mode`).

        `check_body` tells at a start after a crash whether a body is complete. With `accept_loss`
        a log is cut at damage that would stop the start otherwise (`recovery`).
        """
        if first_position % data_file_size:
            raise ValueError(f"{first_position} is not at a multiple of {data_file_size}")
        self.directory = directory
        self.files = EntryFiles(
            data_directory or directory / DATA_DIRECTORY, data_file_size, open_files=open_files
        )
        self._index = EntryIndex(directory / INDEX_DIRECTORY, index_file_size)
        self._room = EntryRoom(self.files, self._index)
        self._first_position = first_position
        self._check_body = check_body
        self._accept_loss = accept_loss
        self._begin = Place(_NO_ENTRY, _NO_ENTRY, first_position, 0)
        self._end = _End(_NO_ENTRY, _NO_ENTRY, first_position, 0)
        self._flushed = first_position
        self._flushed_index = _NO_ENTRY
        self._committed = Place(_NO_ENTRY, _NO_ENTRY, 0, 0)
        self._checkpoints = CheckpointFile(directory)
        self._truncation = TruncationFile(directory)
        #: A start found that entries were lost which this node may have acknowledged: they were
        #: committed, or on disk. Until `caught_up`, over restarts.
        self.must_catch_up = False
        self._is_whole = True
        # Held while files are fsynced or removed.
        self._file_lock = threading.Lock()

    # Life

    def exists(self) -> bool:
        """Whether there are data files: an earlier start made them."""
        directory = self.files.directory
        return directory.is_dir() and any(path.name.isdecimal() for path in directory.iterdir())

    def start(self) -> None:
        """Load and repair the files. Raises StoreError if they cannot be trusted, or OSError."""
        self.files.load()
        self._index.load()
        self._complete_truncation()
        checkpoint = self._checkpoints.load()
        if self.files.files:
            recovered = recover(
                self.files,
                self._index,
                check_body=self._check_body,
                synced_index=checkpoint.synced_index,
                accept_loss=self._accept_loss,
            )
        else:
            recovered = Recovered(None, None, self._first_position, None)
        first, last = recovered.first, recovered.last
        self.must_catch_up = report_damage(self.directory, recovered, checkpoint)
        if first is not None and last is not None:
            self._begin = first
            self._end = _End(last.index, last.term, recovered.end, last.index + 1)
        else:
            self._begin = Place(_NO_ENTRY, _NO_ENTRY, recovered.end, 0)
            self._end = _End(_NO_ENTRY, _NO_ENTRY, recovered.end, 0)
        self.files.start()
        self._cut(recovered.end, self._end.next_index)
        self._index.drop_before(self.begin_index)
        # A kill may have left them in memory only.
        self.files.sync_last(CHECKED_FILES)
        self._index.sync_last(CHECKED_FILES)
        self._flushed, self._flushed_index = recovered.end, self.end_index
        self.commit(checkpoint.committed_index)
        if self.must_catch_up:
            self.save_checkpoint()  # the indexes that tell so are about to be replaced

    def stop(self) -> None:
        """Flush everything, save the checkpoint and unmap the files."""
        self.flush()
        self.save_checkpoint()
        self.files.stop()
        self._index.stop()

    @property
    def segments(self) -> Segments:
        """Return the data files."""
        return self.files.segments

    # Watermarks

    @property
    def begin_index(self) -> int:
        """Return the index of the first entry, -1 if there is none."""
        return self._begin.index

    @property
    def begin_position(self) -> int:
        """Return the position of the first entry, or of the next one if there is none."""
        return self._begin.position

    @property
    def end_index(self) -> int:
        """Return the index of the last entry, -1 if there is none."""
        return self._end.index

    @property
    def end_term(self) -> int:
        """Return the term of the last entry, -1 if there is none."""
        return self._end.term

    @property
    def next_index(self) -> int:
        """Return the index of the next entry."""
        return self._end.next_index

    @property
    def written(self) -> int:
        """Return the position after the last entry."""
        return self._end.position

    @property
    def flushed(self) -> int:
        """Return the position below which everything is on disk."""
        return self._flushed

    @property
    def flushed_index(self) -> int:
        """Return the index up to which every entry is on disk, -1 if none is."""
        return self._flushed_index

    @property
    def committed_index(self) -> int:
        """Return the index of the last entry that is known to be committed, -1 if none is."""
        return self._committed.index

    @property
    def committed_position(self) -> int:
        """Return the position after the last committed entry; 0 if none is."""
        return self._committed.end

    def commit(self, index: int) -> bool:
        """Note that entries up to `index` are committed; return whether that is news.

        As in Java, an index beyond the log's end stands for its end, and one below the known index
        or the log's begin is ignored.
        """
        index = min(index, self.end_index)
        if index <= self.committed_index or index < self.begin_index:
            return False
        self._committed = self.place(index)
        return True

    def commit_below(self, position: int) -> None:
        """Note that the entries which end at or below `position` are committed."""
        if self.end_index != _NO_ENTRY:
            self.commit(self.index_at(min(position, self.written)) - 1)

    # Appending

    def make_room(self, size: int) -> tuple[int, int]:
        """Return where entries of `size` bytes go, and the end of the room reserved there.

        Raises OSError, and changes nothing visible; an append into the room has all it needs.
        """
        return self._room.make(size, self.written, self.next_index)

    def reserve(self, sizes: Sequence[int]) -> list[int]:
        """Do the same for entries of these sizes, perhaps in several files; return positions."""
        return self._room.reserve(sizes, self.written, self.next_index)

    def positions(self, sizes: Sequence[int]) -> list[int]:
        """Return the positions that bodies of these sizes will get from `append_bodies`.

        A leader stores an entry's position in its body, so it must know it first.
        """
        whole = np.array(sizes, np.int64) + HEADER_SIZE
        positions: list[int] = place_entries(self.written, whole, self.files.file_size).tolist()
        return positions

    def append_bodies(self, term: int, bodies: Sequence[bytes | memoryview]) -> int:
        """Append new entries as the leader of `term`; return the index of the first one.

        Raises MismatchError for bodies that cannot be stored, OSError if the disk has no room;
        nothing is written then.
        """
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies)) + HEADER_SIZE
        terms = np.full(len(bodies), term, np.int64)
        positions = place_entries(self.written, sizes, self.files.file_size)
        columns = Columns(self.next_index, terms, positions, sizes)
        self.append_columns(columns, join_entries(columns, bodies))
        return columns.first_index

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries as a leader placed them.

        Raises MismatchError if they do not follow the last entry at their positions, OSError if
        the disk has no room; nothing is written then.
        """
        if not entries:
            return
        columns = columns_of(entries)
        self.append_columns(columns, join_entries(columns, [entry.body for entry in entries]))

    def append_raw(
        self, data: bytes | memoryview, *, expected: int = 0, max_term: int = MAX_TERM
    ) -> int:
        """Append the entries of a `Run`; return their number.

        Raises FormatError, or the errors of `append`, also if there are not `expected` entries or
        if a term exceeds `max_term`; nothing is written then.
        """
        if not data:
            return 0
        end, files = self._end, self.files
        first, position, stop = end.next_index, end.position, end.position + len(data)
        found = continuing_units(data, first, end.term, position, files.file_size)
        if not self._is_whole or end.index == _NO_ENTRY or found is None:
            columns = decode_columns(data)
            check_claims(len(columns.sizes), int(columns.terms[-1]), expected, max_term)
            self.append_columns(columns, data)
            return len(columns.sizes)
        count, term, units = found
        check_claims(count, term, expected, max_term)
        self._index.prepare(first, count)
        files.prepare([(position, stop)], position)
        files.write(position, data, position)
        self._index.write(first, units)
        self._end = _End(first + count - 1, term, stop, first + count)
        return count

    def append_columns(self, columns: Columns, data: bytes | memoryview) -> None:
        """Append entries whose headers, in `data`, are known to be those of the columns.

        Raises the errors of `append`; nothing is written then.
        """
        count = len(columns.sizes)
        if not count:
            return
        if not self._is_whole:
            raise OSError(errno.EIO, "a truncation failed: restart the node", str(self.directory))
        end, files, first = self._end, self.files, columns.first_index
        if first != end.next_index:
            raise MismatchError(f"entry {first} instead of {end.next_index}")
        rolls = check_entries(columns, end.position, end.term, files.file_size)
        written, units = end.position, encode_units(columns)
        parts = split_by_file(columns, data, rolls) if rolls else [(0, count, written, data)]
        self._index.prepare(first, count)
        files.prepare([(at, at + len(entries)) for _, _, at, entries in parts], written)
        for low, high, at, entries in parts:
            if files.base_of(at) != files.base_of(written):
                self._flush_before(files.base_of(written), first + low)
            files.write(at, entries, written)
            part = memoryview(units)[low * INDEX_UNIT_SIZE : high * INDEX_UNIT_SIZE]
            self._index.write(first + low, part)
            written = at + len(entries)
            if self.begin_index == _NO_ENTRY:
                self._begin = Place(first, int(columns.terms[0]), at, int(columns.sizes[0]))
            self._end = _End(first + high - 1, int(columns.terms[high - 1]), written, first + high)

    # Reading

    def place(self, index: int) -> Place:
        """Return where an entry is. Raises IndexError if it is not stored."""
        if not self._begin.index <= index <= self._end.index or index < 0:
            raise IndexError(f"entry {index} is not in {self._begin.index}..{self._end.index}")
        place = self._index.place(index)
        if place is None:
            raise IndexError(f"entry {index} left meanwhile, or its index unit is damaged")
        return place

    def term(self, index: int) -> int:
        """Return the term of an entry. Raises IndexError if it is not stored."""
        return self.place(index).term

    def entry(self, index: int) -> Entry:
        """Return an entry. Raises IndexError if it is not stored."""
        place = self.place(index)
        data = self.files.read(place.position, place.size)
        if len(data) != place.size or decode_header(data) != place:
            raise IndexError(f"entry {index} left meanwhile, or is damaged")
        return Entry(index, place.term, place.position, memoryview(data)[HEADER_SIZE:])

    def run(self, first: int, max_bytes: int, max_count: int = 4096) -> Run:
        """Return entries from `first` on: at least one, as many as fit, all of one data file.

        Raises IndexError if the first one is not stored.
        """
        files, end, start = self.files, self._end, self.place(first).position
        limit = min(start + max_bytes, files.base_of(start) + files.file_size)
        count = min(max_count, end.index - first + 1)
        stop = end.position if first + count > end.index else self.place(first + count - 1).end
        if stop > limit:
            indexes = range(first, first + count)
            fitting = bisect_right(indexes, limit, key=lambda index: self.place(index).end)
            count = max(1, fitting)
            stop = self.place(first + count - 1).end
        data = files.read(start, stop - start)
        if len(data) != stop - start:
            raise IndexError(f"entry {first} left meanwhile")
        return Run(first, count, start, data)

    def index_at(self, position: int) -> int:
        """Return the index of the first entry at or after `position`; at the end `next_index`."""
        indexes = range(max(0, self.begin_index), self.next_index)
        at = bisect_left(indexes, position, key=lambda index: self.place(index).position)
        return indexes.start + at

    def read(self, position: int, size: int) -> bytes:
        """Return raw bytes of the log, fewer at the end of a file or of the log."""
        return self.files.read(position, max(0, min(size, self.written - position)))

    # Removing

    def truncate(self, index: int) -> None:
        """Remove the entry `index` and all after it. Raises OSError, or IndexError beyond the log.

        A log that loses its first entry continues there, with the same index and position.
        """
        if index == self.next_index:
            return
        place = self.place(index)
        self._check_committed(index)
        if index == self.begin_index:
            self.rebuild(index, place.position)
            return
        before = self.place(index - 1)
        logger.info(
            "truncating %s at entry %d, position %d: dropping %d entries, %d bytes",
            self.directory,
            index,
            before.end,
            self.next_index - index,
            self.written - before.end,
        )
        with self._truncating(Truncation(index, before.end, rebuild=False)):
            # Readers on other threads first.
            self._end = _End(before.index, before.term, before.end, index)
            self._flushed = min(self._flushed, before.end)
            self._flushed_index = min(self._flushed_index, before.index)
            self._cut(before.end, index)

    def _check_committed(self, index: int) -> None:
        if index <= self.committed_index:
            raise StoreError(
                f"entry {index} of {self.directory} was to be removed, but entries up to "
                f"{self.committed_index} are committed: this log contradicts the leader's. Remove "
                "the directory of the node that is wrong, and let the group fill it again"
            )

    def truncate_to(self, entry: Entry) -> None:
        """Make `entry` the last one, as a TRUNCATE push of the leader demands.

        If it is stored, what follows it goes. Else it is the leader's first one, and this log
        begins with it: nobody has compared what is before it, which Java keeps if the positions
        fit. Raises OSError, MismatchError, or StoreError if a committed entry would be replaced.
        """
        index = entry.index
        if self._is_stored(entry):
            self.truncate(index + 1)
            return
        check_entries(columns_of([entry]), entry.position, _NO_ENTRY, self.files.file_size)
        self._check_committed(index)
        is_next = (index, entry.position) == (self.next_index, self.written)
        if self.begin_index != _NO_ENTRY or not is_next:
            self.rebuild(index, entry.position)
        self.append([entry])

    def _is_stored(self, entry: Entry) -> bool:
        try:
            return self.entry(entry.index) == entry
        except IndexError:
            return False

    def rebuild(self, index: int, position: int) -> None:
        """Remove all entries, and continue with entry `index` at `position`. Raises OSError.

        For a follower whose log and the leader's have no entry in common.
        """
        if index < 0 or position < 0:
            raise ValueError(f"entry {index} at position {position}")
        logger.info(
            "rebuilding %s from entry %d at position %d: dropping entries %d to %d",
            self.directory,
            index,
            position,
            self.begin_index,
            self.end_index,
        )
        with self._truncating(Truncation(index, position, rebuild=True)):
            self._begin = Place(_NO_ENTRY, _NO_ENTRY, position, 0)
            self._end = _End(_NO_ENTRY, _NO_ENTRY, position, index)
            self._committed = Place(_NO_ENTRY, _NO_ENTRY, 0, 0)
            self._flushed, self._flushed_index = position, _NO_ENTRY
            self.files.clear()
            self._cut(position, index)

    def take_first(self) -> MappedFile:
        """Detach the oldest data file, for the caller to remove; it can still be read.

        There must be another one, and all entries of this one must be committed. Index files that
        only point at files before it are removed.
        """
        files = self.files
        oldest = files.files[0]
        assert len(files.files) > 1, "the last file stays"
        assert oldest.base + oldest.size <= self.committed_position, "entries are not committed"
        with self._file_lock:
            first = files.header(oldest.base + oldest.size)
            if first is None:
                raise StoreError(f"{files.files[1].path} does not begin with an entry")
            # Not the units of this file: it is still there after a crash now.
            self._index.drop_before(self.begin_index)
            self._begin = first
            files.segments.take_first()
        return oldest

    # The disk

    def flush(self) -> None:
        """Fsync everything that is written. Called by the flush thread. Raises OSError."""
        with self._file_lock:
            self._sync_through(self._end)

    def caught_up(self) -> None:
        """Take note that the entries which a start found lost are there again."""
        self.must_catch_up = False

    def save_checkpoint(self) -> None:
        """Save the committed index and how much is on disk. Called by the flush thread."""
        with self._file_lock:
            self._checkpoints.save(self._checkpoint())

    def _checkpoint(self) -> CheckpointText:
        synced = self._flushed_index
        # After a power cut, nothing counts as committed that is not there any more.
        committed = min(self.committed_index, synced)
        return CheckpointText(self.end_index, committed, synced, self.must_catch_up)

    def _sync_through(self, end: _End) -> None:
        if self._flushed >= end.position:
            return
        self.files.sync(self._flushed, end.position)
        self._index.sync(max(self._flushed_index + 1, self.begin_index), end.next_index)
        self._flushed, self._flushed_index = end.position, end.index

    def _flush_before(self, position: int, index: int) -> None:
        """Fsync data below `position`, and units before `index`, unless all that is on disk."""
        if self._flushed < position:
            with self._file_lock:
                self.files.sync(self._flushed, position)
                self._index.sync(max(self._flushed_index + 1, 0), index)

    @contextmanager
    def _truncating(self, truncation: Truncation) -> Iterator[None]:
        """Remove entries such that a start after a crash completes what is begun."""
        with self._file_lock:
            self._truncation.begin(truncation)
            # A start will apply it, and would remove entries that are appended meanwhile.
            self._is_whole = False
            yield
            self._complete(self._checkpoint())
            self._is_whole = True

    def _complete(self, checkpoint: CheckpointText) -> None:
        # Before the file goes, since the truncation would not be applied again.
        self._checkpoints.save(checkpoint)
        for directory in (self.files.directory, self._index.segments.directory):
            if directory.is_dir():
                sync_directory(directory)
        self._truncation.end()

    def _complete_truncation(self) -> None:
        """Complete a truncation that a crash interrupted."""
        truncation = self._truncation.load()
        if truncation is None:
            return
        logger.warning("completing an interrupted truncation: %s", truncation)
        if truncation.rebuild:
            self.files.clear()
            self._index.cut(0)
        else:
            self.files.cut(truncation.next_position)
            self._index.cut(truncation.next_index)
        last = _NO_ENTRY if truncation.rebuild else truncation.next_index - 1
        end, committed, synced, must_catch_up = self._checkpoints.load()
        ends = min(end, last), min(committed, last), min(synced, last)
        self._complete(CheckpointText(*ends, must_catch_up))

    def _cut(self, position: int, next_index: int) -> None:
        """Let the files end at `position` and the index before `next_index`."""
        self.files.cut(position)
        self._index.cut(next_index)
        if self._begin.index == _NO_ENTRY:
            self._index.cut(0)
        self.files.follow(position)
