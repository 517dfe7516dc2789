"""The key index: find the physical offsets of messages by topic and key.

A message's keys are its UNIQ_KEY and each word of its KEYS. The index is a sequence of
`IndexFile`s, and can always be rebuilt from the log: the same log gives the same bytes. Only the
files' names, which are creation times, differ.

Rules, all of them Java's
1. Records below the end of the index are not indexed again. Records that roll a transaction back,
   and incomplete ones, are never indexed.
2. A full file is followed by a new one when the next key of the same record, or the next record,
   arrives, even if that record has no keys.
3. A full file is fsynced in the background, and then its last store time goes into the
   checkpoint. After a crash, files that end later than the checkpoint are dropped and rebuilt,
   and so is a file that is not full, since it may have an entry without its slot.

`put` belongs to one thread, the index lane. `query`, `flush` and `delete_before` may run on any
other thread at the same time: the tuple of files is replaced, never changed, and a file lives as
long as it is being read.
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
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyromq.base.descriptors import ShortageError
from pyromq.base.sizes import MIB
from pyromq.protocol.java.string_hash import (
    continue_hash,
    index_key_hash,
    java_hash,
    java_hash_bytes,
)
from pyromq.protocol.java.string_hashes import continue_hashes, index_key_hashes, java_hashes
from pyromq.protocol.kernel import load
from pyromq.protocol.message.bulk import (
    Buffer,
    Longs,
    RecordColumns,
    Spans,
    framed_starts,
    read_columns,
    read_parts,
)
from pyromq.protocol.message.joined_properties import JoinedProperties, last_property
from pyromq.protocol.message.properties import KEYS, UNIQ_KEY
from pyromq.protocol.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from pyromq.store.index.file import IndexFile, IndexFileError

if TYPE_CHECKING:
    from pyromq.protocol.kernel.index_keys import IndexKeys

logger = logging.getLogger(__name__)

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()
_HASH_SIGN: Final = ord("#")
#: Up to this many records, plain Python beats numpy's fixed costs.
MAX_PLAIN_RECORDS: Final = 16
#: From this many records on, topics, unique keys and words are hashed separately.
_MIN_SEPARATE_RECORDS: Final = 512
#: Bytes of properties that are split at once. Properties that consist of separators or
#: one-letter keys take a hundred times their size in memory meanwhile.
MAX_JOINED_PROPERTIES: Final = MIB
_NAME_DIGITS: Final = 17
#: Retries of a full file's fsync if no descriptor is free.
_MAX_SYNC_RETRIES: Final = 600
_SYNC_RETRY_SECONDS: Final = 0.1


class KeyIndex:
    """All index files of a store. Call `load` first."""

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
        """`hash_slot_count`, `entry_count` and `max_results` are maxHashSlotNum, maxIndexNum
        and maxMsgsNumBatch. `on_file_synced` is called on a separate thread with the store time
        up to which full files are on disk.
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
        kernel = load("index_keys")
        self._keys: IndexKeys | None = None if kernel is None else kernel.IndexKeys()
        #: The store time up to which full files are on disk; 0 until one was synced.
        self.synced_timestamp = 0

    def load(self, *, drop_later_than: int | None = None) -> None:
        """Open the existing files.

        After a crash, `drop_later_than` is the checkpoint's index timestamp: files that end
        later, or are not full, may be incomplete on disk and are removed.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for path in sorted(self._directory.iterdir()):
            if _is_index_file(path):
                paths.append(path)
            else:
                logger.warning("ignoring %s: not an index file", path)
        files: list[IndexFile] = []
        # The index continues where its last file ends, so files after a dropped one go as well.
        is_whole = True
        for path in paths:
            file = self._open(path, paths) if is_whole else None
            if file is None:
                is_whole = False
                logger.warning("rebuilding index file %s: it, or one before it, is damaged", path)
                path.unlink()
            elif drop_later_than is not None and (
                file.end_timestamp > drop_later_than or not file.is_full
            ):
                is_whole = False
                logger.info("rebuilding index file %s: it may be incomplete on disk", path)
                file.delete()
            else:
                files.append(file)
        self._files = tuple(files)

    @property
    def end_offset(self) -> int:
        """Return the physical offset of the last indexed message; 0 without one."""
        files = self._files
        return files[-1].end_offset if files else 0

    @property
    def end_timestamp(self) -> int:
        """Return the store time of the last indexed message; 0 without one."""
        files = self._files
        return files[-1].end_timestamp if files else 0

    @property
    def entry_count(self) -> int:
        """Return the number of keys in all files."""
        return sum(max(file.entry_count - 1, 0) for file in self._files)

    def put(self, buffer: Buffer, starts: Sequence[int] | Longs) -> None:
        """Index the records that start at these positions of `buffer`.

        Large batches are cheap: a record costs less than 1 µs among 1,000, about 4 among 64, and
        20 or more alone. After an OSError (a full disk) the call can be repeated; only the record
        at the end of the index may then be indexed twice.
        """
        if self._closed:
            raise ValueError(f"the key index in {self._directory} is closed")
        if len(starts) <= MAX_PLAIN_RECORDS:
            self._put_few(buffer, map(int, starts))
        else:
            self._put_many(buffer, np.asarray(starts, np.int64))

    def put_span(self, span: Buffer, prefix: int = 0) -> int:
        """Index the consecutive records at the start of `span`; return where the last one ends.

        `prefix` is the number of bytes before each record (`protocol.message.entry`). Among 100
        records, one costs about 0.3 µs with the kernel. Errors are those of `put`.
        """
        keys = self._keys
        if keys is None:
            starts, end = framed_starts(span, prefix)
            if starts.size:
                self.put(span, starts)
            return end
        if self._closed:
            raise ValueError(f"the key index in {self._directory} is closed")
        position = 0
        while True:
            found = keys.read(span, position, self.end_offset, prefix)
            position, records, count, is_last_without, odd_size = found
            if records:
                self._append_read(keys, count, is_last_without=is_last_without)
            if odd_size:
                self._put_few(span, (position + prefix,))
                position += prefix + odd_size
            elif not records:
                return position

    def query(self, topic: str, key: str, max_count: int, begin: int, end: int) -> list[int]:
        """Return physical offsets of a key's messages stored from `begin` to `end`, newest first.

        The index has store times in whole seconds and hashes of keys, so the caller must check
        the messages. Returns at most `max_results`.
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
        """Fsync everything that was put."""
        self._wait_for_sync()
        files = self._files
        if files:
            files[-1].sync()

    def delete_before(self, physical_offset: int) -> int:
        """Remove files whose messages all lie before `physical_offset`; return how many.

        The last file always stays.
        """
        with self._files_lock:
            expired = tuple(
                itertools.takewhile(
                    lambda file: file.end_offset < physical_offset, self._files[:-1]
                )
            )
            self._files = self._files[len(expired) :]
        for file in expired:
            logger.info("index file %s removed: its messages expired", file.path)
            file.delete()
        return len(expired)

    def delete_behind(self, physical_offset: int) -> None:
        """Remove files that refer to messages at or after `physical_offset`, the log's end.

        Call it before the first `put`.
        """
        kept = tuple(
            itertools.takewhile(lambda file: file.end_offset < physical_offset, self._files)
        )
        for file in self._files[len(kept) :]:
            logger.warning("index file %s removed: it points past the log's end", file.path)
            file.delete()
        self._files = kept

    def close(self) -> None:
        """Close all files. Afterwards `put` raises ValueError and queries find nothing."""
        self._closed = True
        self._wait_for_sync()
        with self._files_lock:
            files, self._files = self._files, ()
        there = [file.path.exists() for file in files]
        kept = there.index(False) if False in there else len(files)
        for file in files[:kept]:
            file.close()
        # The next start could not tell that messages between two files are missing.
        for file in files[kept:]:
            file.delete()
        self._remove_foreign({file.path for file in files[:kept]})
        if kept < len(files):
            logger.error(
                "index file %s was removed by another process: the next start rebuilds the "
                "index from there",
                files[kept].path,
            )

    def _remove_foreign(self, own: set[Path]) -> None:
        """Remove files that another process created next to ours.

        A Java broker recovers a store before it checks the lock. The next start would continue
        after the messages in its files.
        """
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.iterdir()):
            if path not in own and _is_index_file(path):
                logger.error("index file %s removed: another process created it", path)
                path.unlink(missing_ok=True)

    def _open(self, path: Path, paths: list[Path]) -> IndexFile | None:
        """Open a file, or return None if it is damaged.

        Raises IndexFileError if all files have another size.
        """
        if path.stat().st_size == 0:
            return None
        try:
            file = IndexFile(path, self._slot_count, self._entry_limit)
        except IndexFileError:
            if len({each.stat().st_size for each in paths}) == 1:
                raise  # written with other settings
            return None
        if not file.is_sound or not (file.is_full or path == paths[-1]):
            file.close()
            return None
        if file.is_full:
            file.close()  # no more appends
        return file

    def _wait_for_sync(self) -> None:
        syncing = self._syncing
        if syncing is not None:
            syncing.join()

    def _put_few(self, buffer: Buffer, starts: Iterable[int]) -> None:
        """Do the work of `_put_many` without numpy."""
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
            fitting = slice(position, position + file.room)
            file.append_few(entries[fitting])
            position = fitting.stop
        if entries and row_of_last < len(records) - 1:
            self._file_for_next_record()

    def _put_many(self, buffer: Buffer, starts: Longs) -> None:
        for keys in read_keys(buffer, starts):
            self.put_keys(keys)

    def put_keys(self, keys: RecordKeys) -> None:
        """Index records whose keys are extracted already; see `put`."""
        end = self._file_for_next_record().end_offset
        hashes, offsets, timestamps, is_last_without = keys
        if not hashes.size:
            return
        # Each record is compared with the end of the index at that point, which is the
        # largest offset so far.
        ends = np.maximum.accumulate(offsets)
        again = offsets < np.maximum(ends, end, out=ends)
        if np.count_nonzero(again):
            is_last_without |= bool(again[-1])
            hashes, offsets, timestamps = hashes[~again], offsets[~again], timestamps[~again]
        position = 0
        while position < hashes.size:
            file = self._file_for_next_record()
            fitting = slice(position, position + file.room)
            file.append(hashes[fitting], offsets[fitting], timestamps[fitting])
            position = fitting.stop
        if hashes.size and is_last_without:
            self._file_for_next_record()

    def _append_read(self, keys: IndexKeys, count: int, *, is_last_without: bool) -> None:
        file = self._file_for_next_record()
        position = 0
        while position < count:
            fitting = min(file.room, count - position)
            file.append_read(keys, position, fitting)
            position += fitting
            if position < count or is_last_without:
                file = self._file_for_next_record()

    def _file_for_next_record(self) -> IndexFile:
        """Return the last file, or a new one if it is full."""
        files = self._files
        before = files[-1] if files else None
        if before is not None and not before.is_full:
            return before
        file = self._new_file(before)
        with self._files_lock:
            self._files = (*self._files, file)
        logger.info("index file %s created", file.path)
        if before is not None:
            before.close()  # no more appends; readers keep its mapping
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
            # Retries on a full disk must not leave a file each.
            path.unlink(missing_ok=True)
            raise
        return file

    def _new_path(self, before: IndexFile | None) -> Path:
        """Return a path named after the time, but always after the last file in sort order."""
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
        """Fsync a file after the previous one, so that a reported time covers all before it."""
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
            # The kernel may have dropped pages it could not write, and a second fsync would
            # not report that. Nothing is reported any more, so a restart rebuilds these files.
            self._sync_failed = True
            logger.exception("index file %s: fsync failed; check the disk", file.path)


def _is_index_file(path: Path) -> bool:
    return path.name.isascii() and path.name.isdigit() and path.is_file()


def _sync_patiently(file: IndexFile) -> None:
    """Fsync a file; retry for a while if no descriptor is free."""
    for _ in range(_MAX_SYNC_RETRIES):
        try:
            file.sync()
        except ShortageError:
            time.sleep(_SYNC_RETRY_SECONDS)
        else:
            return
    file.sync()


class RecordKeys(NamedTuple):
    """Keys of one or more records, in index order."""

    hashes: NDArray[np.int32]
    #: Physical offset and store timestamp of each key's record.
    offsets: Longs
    timestamps: Longs
    #: Whether the last record has no key.
    is_last_without: bool


def read_keys(buffer: Buffer, starts: Longs) -> Iterator[RecordKeys]:
    """Yield the keys of the complete records that start at `starts`, in bounded memory."""
    columns = read_columns(buffer, starts)
    if np.count_nonzero(columns.valid) < starts.size:
        columns = read_columns(buffer, starts[columns.valid])
    yield from keys_in(buffer, columns, join_properties(buffer, columns))


def keys_in(
    buffer: Buffer, columns: RecordColumns, properties: JoinedProperties | None
) -> Iterator[RecordKeys]:
    """Yield the keys of decoded, complete records; `properties` is None if not joined yet."""
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
    """Join the properties of all these records, or return None if they are too large."""
    if int(np.add.reduce(columns.properties.lengths)) > MAX_JOINED_PROPERTIES:
        return None
    return JoinedProperties(buffer, columns.properties)


def keys_of_records(
    buffer: Buffer, columns: RecordColumns, properties: JoinedProperties | None = None
) -> tuple[Longs, NDArray[np.int32]]:
    """Return the record's row and the hash of each key, in index order."""
    properties = properties or JoinedProperties(buffer, columns.properties)
    unique_rows, unique = properties.find(_UNIQ_KEY)
    word_rows, words = properties.find_words(_KEYS)
    topics = columns.topics
    data = np.frombuffer(buffer, np.uint8)
    records = topics.starts.size
    kinds = [topics, unique, words]
    if records < _MIN_SEPARATE_RECORDS:
        # In a small batch the number of calls dominates, so hash topics and keys together.
        kinds = [Spans(*map(np.concatenate, zip(*kinds, strict=True)))]
    # In a large one the longest string does, and strings of one kind have similar lengths.
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
    """Return the hash of `topic#`, the prefix of every indexed key."""
    return java_hash_bytes(topic) * 31 + _HASH_SIGN
