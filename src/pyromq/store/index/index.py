"""The key index: from a topic and a key to the places of its messages in the log.

Keys of a message are its UNIQ_KEY and each word of its KEYS. The index is a row of
`IndexFile`s, each begun when the one before it was full, and can always be built again
from the log: same log, same bytes (the files' names, times of creation, aside).

Rules, all of them Java's
1. A record below the end of the index is not indexed again, one that rolls a
   transaction back never, one whose bytes are no whole record neither.
2. A new file begins with the first record after the last file became full, be that
   with one of the record's own keys or with the next record, whether it has keys or not.
3. The file that became full is synced in the background; its last store time then
   stands for the checkpoint. After a crash files that end later than the checkpoint
   says are dropped and built again, and so is one that is not full: an entry may be in
   it without its slot.

`put` belongs to one thread, the dispatcher's index lane; it is never called on the
loop. `query`, `flush` and `delete_before` may run on any other at the same time: the
list of files is replaced, never changed, and a file lives as long as anyone reads it.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.descriptors import ShortageError
from pyromq.protocol.java.string_hash import (
    continue_hash,
    index_key_hash,
    java_hash,
    java_hash_bytes,
)
from pyromq.protocol.java.string_hashes import continue_hashes, index_key_hashes, java_hashes
from pyromq.protocol.message.bulk import (
    Buffer,
    Longs,
    RecordColumns,
    Spans,
    read_columns,
    read_parts,
)
from pyromq.protocol.message.joined_properties import JoinedProperties, last_property
from pyromq.protocol.message.properties import KEYS, UNIQ_KEY
from pyromq.protocol.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from pyromq.store.index.file import IndexFile, IndexFileError

logger = logging.getLogger(__name__)

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()
_HASH_SIGN: Final = ord("#")
#: Up to this many records, plain Python is faster than numpy's fixed costs.
FEW_RECORDS: Final = 16
#: From so many on, topics and each kind of keys are hashed by themselves.
_MANY_RECORDS: Final = 512
#: Properties made of separators or of one-letter keys take a hundred times their size in
#: memory while they are cut up; more bytes than these are taken in several turns.
MAX_PROPERTIES_AT_ONCE: Final = 1024 * 1024
_NAME_DIGITS: Final = 17
#: A full file's sync waits so often, and so long, for a descriptor.
_SYNC_TRIES: Final = 600
_SECONDS_BETWEEN_TRIES: Final = 0.1


class KeyIndex:
    """All index files of a store. `load` comes before everything else."""

    def __init__(
        self,
        directory: Path,
        *,
        hash_slot_count: int = 5_000_000,
        entry_count: int = 20_000_000,
        max_results: int = 64,
        on_file_synced: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`hash_slot_count`, `entry_count` and `max_results` are maxHashSlotNum,
        maxIndexNum and maxMsgsNumBatch; `on_file_synced` hears, on a thread of its own,
        the store time up to which full files are on the disk.
        """
        self._directory = directory
        self._slot_count = hash_slot_count
        self._entry_limit = entry_count
        self._max_results = max_results
        self._on_file_synced = on_file_synced
        self._clock = clock
        self._files: tuple[IndexFile, ...] = ()
        self._files_lock = threading.Lock()
        self._syncing: threading.Thread | None = None
        self._sync_failed = False
        self._closed = False
        #: The store time up to which full files are on the disk, 0 while none was synced.
        self.synced_timestamp = 0

    def load(self, *, drop_later_than: int | None = None) -> None:
        """Open the files that are there.

        After a crash `drop_later_than` is the checkpoint's index timestamp: files that
        end later, or are not full, hold what the disk may not have, and are removed.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for path in sorted(self._directory.iterdir()):
            if _is_index_file(path):
                paths.append(path)
            else:
                logger.warning("%s is no index file, ignored", path)
        files: list[IndexFile] = []
        # The index goes on where its last file ends: what follows one that goes must go, too.
        is_whole = True
        for path in paths:
            file = self._open(path, paths) if is_whole else None
            if file is None:
                is_whole = False
                logger.warning("index file %s is damaged or follows one that is, built again", path)
                path.unlink()
            elif drop_later_than is not None and (
                file.end_timestamp > drop_later_than or not file.is_full
            ):
                is_whole = False
                logger.info("index file %s is not surely on the disk, built again", path)
                file.delete()
            else:
                files.append(file)
        self._files = tuple(files)

    @property
    def end_offset(self) -> int:
        """The physical offset of the last indexed message; 0 when there is none."""
        files = self._files
        return files[-1].end_offset if files else 0

    @property
    def end_timestamp(self) -> int:
        """The store time of the last indexed message; 0 when there is none."""
        files = self._files
        return files[-1].end_timestamp if files else 0

    @property
    def entry_count(self) -> int:
        """How many keys the files hold."""
        return sum(max(file.entry_count - 1, 0) for file in self._files)

    def put(self, buffer: Buffer, starts: Sequence[int] | Longs) -> None:
        """Index the records of the log that begin at these positions of `buffer`.

        Large batches are cheap: from 1,000 records on, one costs less than 1 µs, of 64
        about 4, alone 20 and more. After an OSError (a full disk) the same batch may be put
        again; only the record at the end of the index can then be in it twice.
        """
        if self._closed:
            raise ValueError(f"the key index in {self._directory} is closed")
        if len(starts) <= FEW_RECORDS:
            self._put_few(buffer, map(int, starts))
        else:
            self._put_many(buffer, np.asarray(starts, np.int64))

    def query(self, topic: str, key: str, max_count: int, begin: int, end: int) -> list[int]:
        """Physical offsets of a key's messages stored from `begin` to `end`, newest first.

        Store times are kept in whole seconds, and keys only as hashes: the caller looks at
        the messages themselves. At most `max_results` come back, whatever is asked for.
        """
        key_hash = index_key_hash(java_hash(f"{topic}#{key}"))
        wanted = min(max_count, self._max_results)
        offsets: list[int] = []
        for file in reversed(self._files):
            if len(offsets) >= wanted:
                break
            if file.covers(begin, end):
                found = file.find(key_hash, begin, end)
                offsets.extend(itertools.islice(found, wanted - len(offsets)))
            if file.begin_timestamp < begin:
                break
        return offsets

    def flush(self) -> None:
        """Wait until everything that was put is on the disk."""
        self._wait_for_sync()
        files = self._files
        if files:
            files[-1].sync()

    def delete_before(self, physical_offset: int) -> int:
        """Remove the files all of whose messages lie before `physical_offset`.

        The last file always stays. Returns how many went.
        """
        with self._files_lock:
            expired = tuple(
                itertools.takewhile(
                    lambda file: file.end_offset < physical_offset, self._files[:-1]
                )
            )
            self._files = self._files[len(expired) :]
        for file in expired:
            logger.info("index file %s removed: its messages left the log", file.path)
            file.delete()
        return len(expired)

    def delete_behind(self, physical_offset: int) -> None:
        """Remove the files that know of messages at or behind `physical_offset`.

        Before anything is put: the log was found to end there.
        """
        kept = tuple(
            itertools.takewhile(lambda file: file.end_offset < physical_offset, self._files)
        )
        for file in self._files[len(kept) :]:
            logger.warning("index file %s knows of messages behind the log's end", file.path)
            file.delete()
        self._files = kept

    def close(self) -> None:
        """Let go of all files; nothing may be put afterwards, and queries find nothing."""
        self._closed = True
        self._wait_for_sync()
        with self._files_lock:
            files, self._files = self._files, ()
        there = [file.path.exists() for file in files]
        kept = there.index(False) if False in there else len(files)
        for file in files[:kept]:
            file.close()
        # Nothing would tell the next start that messages between two files are missing.
        for file in files[kept:]:
            file.delete()
        self._remove_foreign({file.path for file in files[:kept]})
        if kept < len(files):
            logger.error(
                "index file %s was removed by another process: the index is built again from "
                "there at the next start",
                files[kept].path,
            )

    def _remove_foreign(self, own: set[Path]) -> None:
        """Remove files that another process made beside ours: a Java broker, which recovers a
        store before it looks at its lock. The next start would continue behind what they hold.
        """
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.iterdir()):
            if path not in own and _is_index_file(path):
                logger.error("index file %s was made by another process: removed", path)
                path.unlink(missing_ok=True)

    def _open(self, path: Path, paths: list[Path]) -> IndexFile | None:
        """One file; None when it is damaged. Raises IndexFileError when all have another size."""
        if path.stat().st_size == 0:
            return None
        try:
            file = IndexFile(path, self._slot_count, self._entry_limit)
        except IndexFileError:
            if len({each.stat().st_size for each in paths}) == 1:
                raise  # other settings
            return None
        if not file.is_sound or not (file.is_full or path == paths[-1]):
            file.close()
            return None
        if file.is_full:
            file.close()  # nothing is appended any more
        return file

    def _wait_for_sync(self) -> None:
        syncing = self._syncing
        if syncing is not None:
            syncing.join()

    def _put_few(self, buffer: Buffer, starts: Iterable[int]) -> None:
        """`_put_many` without numpy."""
        records = [record for start in starts if (record := read_parts(buffer, start)) is not None]
        if not records:
            return
        end = self._file_for_next_record().end_offset
        entries: list[tuple[int, int, int]] = []
        row_of_last = 0
        for row, record in enumerate(records):
            offset = record.physical_offset
            if offset < end or record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            keys = last_property(record.properties, _KEYS).split(b" ")
            keys.insert(0, last_property(record.properties, _UNIQ_KEY))
            beginning = _hash_of_topic(record.topic)
            for key in keys:
                if key:
                    key_hash = index_key_hash(continue_hash(beginning, key))
                    entries.append((key_hash, offset, record.store_timestamp))
                    end, row_of_last = offset, row
        position = 0
        while position < len(entries):
            file = self._file_for_next_record()
            part = slice(position, position + file.room)
            file.append_few(entries[part])
            position = part.stop
        if entries and row_of_last < len(records) - 1:
            self._file_for_next_record()

    def _put_many(self, buffer: Buffer, starts: Longs) -> None:
        for keys in read_keys(buffer, starts):
            self.put_keys(keys)

    def put_keys(self, keys: RecordKeys) -> None:
        """Index records whose keys are known already; as `put` in all else."""
        end = self._file_for_next_record().end_offset
        hashes, offsets, timestamps, is_last_without = keys
        if not hashes.size:
            return
        # Each record is held against the end of the index at its turn, which is the
        # largest offset up to it.
        ends = np.maximum.accumulate(offsets)
        again = offsets < np.maximum(ends, end, out=ends)
        if np.count_nonzero(again):
            is_last_without |= bool(again[-1])
            hashes, offsets, timestamps = hashes[~again], offsets[~again], timestamps[~again]
        position = 0
        while position < hashes.size:
            file = self._file_for_next_record()
            part = slice(position, position + file.room)
            file.append(hashes[part], offsets[part], timestamps[part])
            position = part.stop
        if hashes.size and is_last_without:
            self._file_for_next_record()

    def _file_for_next_record(self) -> IndexFile:
        """The last file, or a new one behind it when that is full."""
        files = self._files
        before = files[-1] if files else None
        if before is not None and not before.is_full:
            return before
        file = self._new_file(before)
        with self._files_lock:
            self._files = (*self._files, file)
        logger.info("index file %s begun", file.path)
        if before is not None:
            before.close()  # nothing is appended any more; readers have its mapping
            self._sync_in_background(before)
        return file

    def _new_file(self, before: IndexFile | None) -> IndexFile:
        path = self._new_path(before)
        try:
            file = IndexFile(path, self._slot_count, self._entry_limit)
            try:
                file.reserve()
                if before is not None:
                    file.continue_from(before)
            except BaseException:
                file.close()
                raise
        except BaseException:
            # Whoever tries again on a full disk must not leave a file each time.
            path.unlink(missing_ok=True)
            raise
        return file

    def _new_path(self, before: IndexFile | None) -> Path:
        """A name after the time, and in any case behind the last file's: files sort by name."""
        now = datetime.fromtimestamp(self._clock())
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        if before is not None:
            name = max(name, int(before.path.name) + 1)
        return self._directory / f"{name:0{_NAME_DIGITS}d}"

    def _sync_in_background(self, file: IndexFile) -> None:
        thread = threading.Thread(
            target=self._sync_full_file,
            args=(file, self._syncing),
            name="pyromq-index-sync",
            daemon=True,
        )
        self._syncing = thread
        thread.start()

    def _sync_full_file(self, file: IndexFile, before: threading.Thread | None) -> None:
        """Files are synced one after the other: a reported time holds for all before it."""
        if before is not None:
            before.join()
        if self._sync_failed:
            return
        try:
            _sync_patiently(file)
            if not file.path.exists() and file in self._files:
                raise FileNotFoundError(errno.ENOENT, "removed by another process", str(file.path))
            self.synced_timestamp = max(self.synced_timestamp, file.end_timestamp)
            if self._on_file_synced is not None:
                self._on_file_synced(self.synced_timestamp)
        except OSError:
            # What the kernel could not write it may have dropped, and a second sync would
            # not tell: nothing is reported any more, so a restart builds these files again.
            self._sync_failed = True
            logger.exception("index file %s could not be synced; check the disk", file.path)


def _is_index_file(path: Path) -> bool:
    return path.name.isascii() and path.name.isdigit() and path.is_file()


def _sync_patiently(file: IndexFile) -> None:
    """Sync a file; a sync that could not even be tried is tried again, for a while."""
    for _ in range(_SYNC_TRIES):
        try:
            file.sync()
        except ShortageError:
            time.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            return
    file.sync()


class RecordKeys(NamedTuple):
    """The keys of one record or more, in the order of the index."""

    hashes: NDArray[np.int32]
    #: Of the records that the keys belong to: where they stand, and when they were stored.
    offsets: Longs
    timestamps: Longs
    #: Whether the last record has no key.
    is_last_without: bool


def read_keys(buffer: Buffer, starts: Longs) -> Iterator[RecordKeys]:
    """The keys of the whole records among those that begin at `starts`, in bounded memory."""
    columns = read_columns(buffer, starts)
    if np.count_nonzero(columns.valid) < starts.size:
        columns = read_columns(buffer, starts[columns.valid])
    yield from keys_in(buffer, columns, join_properties(buffer, columns))


def keys_in(
    buffer: Buffer, columns: RecordColumns, properties: JoinedProperties | None
) -> Iterator[RecordKeys]:
    """The same of records that are read, and all whole; `properties` as they were joined."""
    records = columns.starts.size
    if not records:
        return
    if properties is None and records > 1:
        for half in (slice(0, records // 2), slice(records // 2, records)):
            part = columns.rows(half)
            yield from keys_in(buffer, part, join_properties(buffer, part))
        return
    rows, hashes = keys_of_records(buffer, columns, properties)
    yield RecordKeys(
        hashes,
        columns.column("physical_offset")[rows],
        columns.column("store_timestamp")[rows],
        not rows.size or int(rows[-1]) < records - 1,
    )


def join_properties(buffer: Buffer, columns: RecordColumns) -> JoinedProperties | None:
    """The properties of all these records, joined; None when they are too many at once."""
    if int(np.add.reduce(columns.properties.lengths)) > MAX_PROPERTIES_AT_ONCE:
        return None
    return JoinedProperties(buffer, columns.properties)


def keys_of_records(
    buffer: Buffer, columns: RecordColumns, properties: JoinedProperties | None = None
) -> tuple[Longs, NDArray[np.int32]]:
    """The hashes of all keys in the order of the index, and the row that each belongs to."""
    properties = properties or JoinedProperties(buffer, columns.properties)
    unique_rows, unique = properties.find(_UNIQ_KEY)
    word_rows, words = properties.find_words(_KEYS)
    topics = columns.topics
    data = np.frombuffer(buffer, np.uint8)
    records = topics.starts.size
    kinds = [topics, unique, words]
    if records < _MANY_RECORDS:
        # Topics and keys in one go: for small batches it is the number of calls that costs.
        kinds = [Spans(*map(np.concatenate, zip(*kinds, strict=True)))]
    # Otherwise it is the width, and that of a kind is mostly the same in all rows.
    parts = [java_hashes(data, *spans) for spans in kinds]
    hashes = np.concatenate([part[0] for part in parts])
    units = np.concatenate([part[1] for part in parts])
    beginnings = hashes[:records] * np.uint32(31) + np.uint32(_HASH_SIGN)
    rows = np.concatenate((unique_rows, word_rows))
    keys = continue_hashes(beginnings[rows], hashes[records:], units[records:])
    order = rows.argsort(kind="stable")
    rows = rows[order]
    ordered = index_key_hashes(keys)[order]
    rolled_back = columns.heads["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK
    if np.count_nonzero(rolled_back):
        indexed = ~rolled_back[rows]
        rows, ordered = rows[indexed], ordered[indexed]
    return rows, ordered


@functools.lru_cache(maxsize=1024)
def _hash_of_topic(topic: bytes) -> int:
    """The hash of a topic and the sign between it and a key."""
    return java_hash_bytes(topic) * 31 + _HASH_SIGN
