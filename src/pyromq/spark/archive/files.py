"""Write messages to Parquet files, in a task of the archive job, without the JVM.

    files = ParquetFiles(staging, FileSettings())
    archive_ranges(origin, [QueueRange(queue, 0, 1_000_000)], files)
    files.close()                                  # files.staged, files.lost

Each file contains messages of one topic and one hour (of storeTimestamp, UTC), from any number of
queues, in queue order. `topic` is not a column: it is part of the directory name, as Spark does it,
and `pyarrow.parquet.read_table` rejects a column that appears in both.

Invariants
1. Each offset of a range is either a row or in `lost`, once. An origin that returns other offsets
   is rejected.
2. A file in `staged` is complete and fsynced. File names are unique to each attempt of a task; no
   file is written twice.
3. Memory is bounded by `_MAX_BUFFERED_BYTES` of decoded messages and one block.

Measured, in µs per row of 256 bytes on one core: with pyarrow's defaults 0.9 with snappy, 1.5 with
zstd; without dictionaries for columns of distinct values 0.6; without statistics for those 0.5.
zstd alone takes 0.6 for bodies that it compresses no better than snappy. So increasing numbers are
delta-encoded, distinct texts are stored plainly, and everything is compressed with zstd, except
bodies of which a sample favours snappy.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyromq.base.atomic_file import sync_file
from pyromq.base.process_memory import keep_memory
from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.bulk import Longs
from pyromq.spark.archive.defaults import AUTO, FILE_BYTES
from pyromq.spark.archive.directory import STAGED_SUFFIX, StagedFile
from pyromq.spark.arrow import RecordDecoder
from pyromq.spark.columns import COLUMN_NAMES, RAW
from pyromq.spark.origins.origin import LostRecords, Origin, OriginError, QueueRange

#: The columns of a file.
FILE_COLUMNS: Final = tuple(name for name in COLUMN_NAMES if name != "topic")
#: The metadata key of a file's topic, in case the file is separated from its directory.
TOPIC_KEY: Final = b"pyromq.topic"

_MAX_ROW_GROUP_ROWS: Final = 128 * 1024
_MAX_ROW_GROUP_BYTES: Final = 64 * MIB
_MAX_BUFFERED_BYTES: Final = 256 * MIB
_MAX_OPEN_FILES: Final = 16
_ZSTD_LEVEL: Final = 1
_MAX_SAMPLE_BYTES: Final = 128 * KIB
#: zstd is slower than snappy: use it if its output is smaller than this share of snappy's.
_MAX_ZSTD_RATIO: Final = 0.7

#: The reason of a loss without another reason.
_NOT_RETURNED: Final = "the broker or the store did not return them"

_REPEATING: Final = (
    "brokerName",
    "queueId",
    "tags",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "flag",
    "sysFlag",
)
_GROWING: Final = ("queueOffset", "bornTimestamp", "storeTimestamp", "physicalOffset")
_WITH_STATISTICS: Final = ("brokerName", "queueId", "tags", *_GROWING)
_MICROSECONDS_PER_HOUR: Final = 3600 * 1_000_000


@dataclass(frozen=True)
class FileSettings:
    """How to write files."""

    include_properties: str = RAW
    compression: str = AUTO
    #: A new file starts at this many bytes of decoded messages; a file is smaller when compressed.
    file_bytes: int = FILE_BYTES


def archive_ranges(origin: Origin, ranges: Iterable[QueueRange], files: ParquetFiles) -> None:
    """Write the messages of ranges; `files.lost` lists those that could not be read."""
    keep_memory()
    for wanted in ranges:
        decoder = RecordDecoder(
            FILE_COLUMNS, files.settings.include_properties, wanted.queue.broker_name
        )
        account = _Account(wanted, files.lost)
        for block in origin.blocks(wanted):
            if isinstance(block, LostRecords):
                account.lose(block.end, block.reason)
                continue
            for decoded in decoder.decode_parts(block):
                account.take(_numbers(decoded.batch, "queueOffset"), decoded.damaged)
                files.add(wanted.queue.topic, decoded.batch)
        account.lose(wanted.end, _NOT_RETURNED)


class _Account:
    """Keeps track of the offsets of a range that were read or lost."""

    def __init__(self, wanted: QueueRange, lost: list[LostRecords]) -> None:
        self._wanted = wanted
        self._next = wanted.start
        self._lost = lost

    def take(self, offsets: Longs, damaged: list[str]) -> None:
        """Record offsets that were read, in this order."""
        if not offsets.size:
            return
        first, last = int(offsets[0]), int(offsets[-1])
        steps = offsets[1:] - offsets[:-1]
        if first < self._next or last >= self._wanted.end or (steps < 1).any():
            raise OriginError(
                f"{self._wanted.queue}: received offsets {first} to {last} instead of {self._next} "
                f"to {self._wanted.end - 1} in order: nothing of that is archived"
            )
        reason = "; ".join(damaged) or _NOT_RETURNED
        self.lose(first, reason)
        for gap in (steps > 1).nonzero()[0].tolist():
            self._next = int(offsets[gap]) + 1
            self.lose(int(offsets[gap + 1]), reason)
        self._next = last + 1

    def lose(self, end: int, reason: str) -> None:
        """Record that all further offsets below `end` are lost."""
        if end > self._wanted.end:
            raise OriginError(
                f"{self._wanted.queue}: offsets up to {end - 1} are reported as lost, but "
                f"{self._wanted.end - 1} is the last one requested"
            )
        if end > self._next:
            self._lost.append(LostRecords(self._wanted.queue, self._next, end, reason))
            self._next = end


class ParquetFiles:
    """The files of one attempt of a task. `close` completes them."""

    def __init__(self, staging: Path, settings: FileSettings, prefix: str = "") -> None:
        self.settings = settings
        self.staged: list[StagedFile] = []
        self.lost: list[LostRecords] = []
        self._staging = staging
        self._prefix = f"{prefix}{uuid.uuid4().hex[:12]}"
        self._open: dict[_Place, _OpenFile] = {}
        self._buffered = 0
        self._made = 0

    def add(self, topic: str, batch: pa.RecordBatch) -> None:
        """Write messages of a topic to the files of their hours."""
        if not batch.num_rows:
            return
        hours = _numbers(batch, "storeTimestamp") // _MICROSECONDS_PER_HOUR
        bounds = [0, *((hours[1:] != hours[:-1]).nonzero()[0] + 1).tolist(), batch.num_rows]
        for start, end in itertools.pairwise(bounds):
            self._add(_Place(topic, int(hours[start])), batch.slice(start, end - start))

    def add_table(self, topic: str, hour: str, table: pa.Table) -> None:
        """Write messages of one known hour."""
        for batch in table.to_batches():
            self._add(_Place(topic, int(np.datetime64(_iso(hour), "h").astype(int))), batch)

    def close(self) -> None:
        """Complete all files."""
        for place in list(self._open):
            self._finish(place)

    def _add(self, place: _Place, batch: pa.RecordBatch) -> None:
        # Keep the files in the order of their last write.
        file = self._open.pop(place, None) or self._begin(place, batch)
        self._open[place] = file
        size = batch.nbytes
        file.add(batch, size)
        self._buffered += size
        if file.rows >= _MAX_ROW_GROUP_ROWS or file.bytes >= _MAX_ROW_GROUP_BYTES:
            self._buffered -= file.write()
        if file.written >= self.settings.file_bytes:
            self._finish(place)
        while self._buffered > _MAX_BUFFERED_BYTES:
            self._buffered -= max(self._open.values(), key=lambda each: each.bytes).write()

    def _begin(self, place: _Place, first: pa.RecordBatch) -> _OpenFile:
        if len(self._open) >= _MAX_OPEN_FILES:
            self._finish(next(iter(self._open)))
        self._made += 1
        path = self._staging / f"{self._prefix}-{self._made:04}{STAGED_SUFFIX}"
        return _OpenFile(path, place, _codecs(first, self.settings.compression))

    def _finish(self, place: _Place) -> None:
        file = self._open.pop(place)
        self._buffered -= file.write()
        self.staged.append(file.close())


class _Place(NamedTuple):
    topic: str
    #: Hours since 1970.
    hour: int


@dataclass
class _OpenFile:
    """A file being written, one row group at a time."""

    path: Path
    place: _Place
    codecs: dict[str, str]
    #: Buffered, not written yet.
    rows: int = 0
    bytes: int = 0
    #: Written, in bytes before compression.
    written: int = 0
    written_rows: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _writer: Any = None

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += size

    def write(self) -> int:
        """Write the buffer as a row group; return the number of bytes freed."""
        freed = self.bytes
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            with self._naming_the_file():
                if self._writer is None:
                    self._writer = self._open(table.schema)
                self._writer.write_table(table, row_group_size=table.num_rows)
            self.written += freed
            self.written_rows += self.rows
        self._batches, self.rows, self.bytes = [], 0, 0
        return freed

    def close(self) -> StagedFile:
        with self._naming_the_file():
            self._writer.close()
            sync_file(self.path)
        return StagedFile(
            self.place.topic,
            _hour_name(self.place.hour),
            str(self.path),
            self.written_rows,
            self.path.stat().st_size,
        )

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """Add the path to errors of Arrow, which do not contain it."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                error.errno, f"{reason}: free some space, or check the disk", str(self.path)
            ) from error

    def _open(self, schema: pa.Schema) -> Any:
        levels = {name: _ZSTD_LEVEL for name, codec in self.codecs.items() if codec == "zstd"}
        writer = pq.ParquetWriter(
            str(self.path),
            schema,
            compression=self.codecs,
            compression_level=levels or None,
            use_dictionary=[name for name in _REPEATING if name in schema.names],
            column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
            write_statistics=list(_WITH_STATISTICS),
            store_schema=False,
        )
        writer.add_key_value_metadata({TOPIC_KEY: self.place.topic.encode()})
        return writer


def _codecs(batch: pa.RecordBatch, compression: str) -> dict[str, str]:
    """Return the compression of each column, by its path in the file."""
    paths = []
    for column in batch.schema:
        if pa.types.is_map(column.type):
            paths += [f"{column.name}.key_value.key", f"{column.name}.key_value.value"]
        else:
            paths.append(column.name)
    codecs = dict.fromkeys(paths, "zstd" if compression == AUTO else compression)
    if compression == AUTO and not _prefers_zstd(batch.column("body")):
        codecs["body"] = "snappy"
    return codecs


def _prefers_zstd(bodies: pa.Array) -> bool:
    sample = b"".join(
        body.as_buffer().to_pybytes()[:_MAX_SAMPLE_BYTES]
        for body in bodies[: max(1, min(len(bodies), _MAX_SAMPLE_BYTES // 256))]
    )[:_MAX_SAMPLE_BYTES]
    if not sample:
        return True
    zstd = pa.Codec("zstd", _ZSTD_LEVEL).compress(sample)
    return bool(zstd.size < pa.Codec("snappy").compress(sample).size * _MAX_ZSTD_RATIO)


def _numbers(batch: pa.RecordBatch, name: str) -> Longs:
    """Return a column of 64-bit numbers or times without copying it."""
    column = batch.column(name)
    numbers: Longs = column.view(pa.int64()).to_numpy()
    return numbers


def _hour_name(hour: int) -> str:
    """Return the name of an hour in directory names, which all readers treat as text."""
    return str(np.datetime64(hour, "h")).replace("T", "-")


def _iso(hour_name: str) -> str:
    day, _, hour = hour_name.rpartition("-")
    return f"{day}T{hour}"
