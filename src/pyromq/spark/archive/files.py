"""Messages to Parquet files: what a task of the archive does, without the JVM.

    files = ParquetFiles(staging, FileSettings())
    archive_ranges(origin, [QueueRange(queue, 0, 1_000_000)], files)
    files.close()                                  # files.staged, files.lost

Each file holds messages of one topic and one hour (of storeTimestamp, UTC), of any number
of queues, those of a queue in their order. `topic` is no column: the directory has it, as
Spark writes it, too (and `pyarrow.parquet.read_table` takes no column that is in both).

Invariants
1. Each offset of a range is a row or in `lost`, and never both or twice: an origin that
   gives others is refused.
2. A file in `staged` is whole and on the disk. Files have names of their own in each
   attempt of a task; none is written twice.
3. Memory: `_BUFFERED_BYTES` of decoded messages and one block, whatever the ranges hold.

What was measured (µs a row of 256 bytes, one core): all columns as pyarrow does by default
0.9 with snappy, 1.5 with zstd; without dictionaries for columns whose values differ anyway
0.6; without statistics of those 0.5; zstd for bodies that it makes no smaller than snappy
does costs 0.6 alone. So numbers that grow are stored as differences, texts that differ as
they are, everything is compressed with zstd, and bodies with snappy where a sample says so.
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

from pyromq.base.process_memory import keep_memory
from pyromq.protocol.message.bulk import Longs
from pyromq.spark.archive.directory import STAGED_SUFFIX, StagedFile
from pyromq.spark.archive.durable_files import sync_file
from pyromq.spark.arrow import RecordDecoder
from pyromq.spark.columns import COLUMN_NAMES, RAW
from pyromq.spark.origins.origin import LostRecords, Origin, OriginError, QueueRange

#: The columns of a file.
FILE_COLUMNS: Final = tuple(name for name in COLUMN_NAMES if name != "topic")
#: Where a file keeps its topic, for who finds it alone.
TOPIC_KEY: Final = b"pyromq.topic"

#: By what a sample says, zstd or snappy for bodies; zstd for everything else.
AUTO: Final = "auto"
COMPRESSIONS: Final = (AUTO, "zstd", "snappy", "none")
DEFAULT_FILE_BYTES: Final = 512 * 1024 * 1024

_ROW_GROUP_ROWS: Final = 128 * 1024
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_BUFFERED_BYTES: Final = 256 * 1024 * 1024
_OPEN_FILES: Final = 16
_ZSTD_LEVEL: Final = 1
_SAMPLE_BYTES: Final = 128 * 1024
#: zstd takes its time where it pays: where it leaves less than this part of what snappy leaves.
_WORTH: Final = 0.7

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
_MICROSECONDS_OF_HOUR: Final = 3600 * 1_000_000


@dataclass(frozen=True)
class FileSettings:
    """How files are written."""

    include_properties: str = RAW
    compression: str = AUTO
    #: Of decoded messages: a file may be smaller on the disk. Above, another one is begun.
    file_bytes: int = DEFAULT_FILE_BYTES


def archive_ranges(origin: Origin, ranges: Iterable[QueueRange], files: ParquetFiles) -> None:
    """Write the messages of ranges; `files.lost` has those that were not to be had."""
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
        account.lose(wanted.end, "the broker or the store did not give them")


class _Account:
    """Which offsets of a range have come, and which have not."""

    def __init__(self, wanted: QueueRange, lost: list[LostRecords]) -> None:
        self._wanted = wanted
        self._next = wanted.start
        self._lost = lost

    def take(self, offsets: Longs, damaged: list[str]) -> None:
        """These offsets have come, in this order."""
        if not offsets.size:
            return
        first, last = int(offsets[0]), int(offsets[-1])
        steps = offsets[1:] - offsets[:-1]
        if first < self._next or last >= self._wanted.end or (steps < 1).any():
            raise OriginError(
                f"{self._wanted.queue}: offsets {first} to {last} came when {self._next} to "
                f"{self._wanted.end - 1} were asked for, in order: nothing is archived of that"
            )
        reason = "; ".join(damaged) or "the broker or the store did not give them"
        self.lose(first, reason)
        for gap in (steps > 1).nonzero()[0].tolist():
            self._next = int(offsets[gap]) + 1
            self.lose(int(offsets[gap + 1]), reason)
        self._next = last + 1

    def lose(self, end: int, reason: str) -> None:
        """Nothing comes before `end`."""
        if end > self._wanted.end:
            raise OriginError(
                f"{self._wanted.queue}: offsets up to {end - 1} are said to be lost, "
                f"{self._wanted.end - 1} is the last one that was asked for"
            )
        if end > self._next:
            self._lost.append(LostRecords(self._wanted.queue, self._next, end, reason))
            self._next = end


class ParquetFiles:
    """The files of one attempt of a task. `close` finishes them; without, they are litter."""

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
        hours = _numbers(batch, "storeTimestamp") // _MICROSECONDS_OF_HOUR
        bounds = [0, *((hours[1:] != hours[:-1]).nonzero()[0] + 1).tolist(), batch.num_rows]
        for start, end in itertools.pairwise(bounds):
            self._add(_Place(topic, int(hours[start])), batch.slice(start, end - start))

    def add_table(self, topic: str, hour: str, table: pa.Table) -> None:
        """Write messages that are known to be of one hour."""
        for batch in table.to_batches():
            self._add(_Place(topic, int(np.datetime64(_iso(hour), "h").astype(int))), batch)

    def close(self) -> None:
        """Finish all files."""
        for place in list(self._open):
            self._finish(place)

    def _add(self, place: _Place, batch: pa.RecordBatch) -> None:
        # The one that was written to last stands last.
        file = self._open.pop(place, None) or self._begin(place, batch)
        self._open[place] = file
        size = batch.nbytes
        file.add(batch, size)
        self._buffered += size
        if file.rows >= _ROW_GROUP_ROWS or file.bytes >= _ROW_GROUP_BYTES:
            self._buffered -= file.write()
        if file.written >= self.settings.file_bytes:
            self._finish(place)
        while self._buffered > _BUFFERED_BYTES:
            self._buffered -= max(self._open.values(), key=lambda each: each.bytes).write()

    def _begin(self, place: _Place, first: pa.RecordBatch) -> _OpenFile:
        if len(self._open) >= _OPEN_FILES:
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
    #: Since 1970.
    hour: int


@dataclass
class _OpenFile:
    """A file that is being written, a row group at a time."""

    path: Path
    place: _Place
    codecs: dict[str, str]
    #: Not written yet.
    rows: int = 0
    bytes: int = 0
    #: Bytes of decoded messages, and their rows.
    written: int = 0
    written_rows: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _writer: Any = None

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += size

    def write(self) -> int:
        """Write what is held as a row group; returns how many bytes that were."""
        freed = self.bytes
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            with self._saying_where():
                if self._writer is None:
                    self._writer = self._open(table.schema)
                self._writer.write_table(table, row_group_size=table.num_rows)
            self.written += freed
            self.written_rows += self.rows
        self._batches, self.rows, self.bytes = [], 0, 0
        return freed

    def close(self) -> StagedFile:
        with self._saying_where():
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
    def _saying_where(self) -> Iterator[None]:
        """Arrow says what is wrong with a disk, but not with which."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(
                error.errno, f"{reason}: make room, or look what is wrong there", str(self.path)
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
    """How each column is compressed, by its path in the file."""
    paths = []
    for column in batch.schema:
        if pa.types.is_map(column.type):
            paths += [f"{column.name}.key_value.key", f"{column.name}.key_value.value"]
        else:
            paths.append(column.name)
    codecs = dict.fromkeys(paths, "zstd" if compression == AUTO else compression)
    if compression == AUTO and not _is_worth_zstd(batch.column("body")):
        codecs["body"] = "snappy"
    return codecs


def _is_worth_zstd(bodies: pa.Array) -> bool:
    sample = b"".join(
        body.as_buffer().to_pybytes()[:_SAMPLE_BYTES]
        for body in bodies[: max(1, min(len(bodies), _SAMPLE_BYTES // 256))]
    )[:_SAMPLE_BYTES]
    if not sample:
        return True
    zstd = pa.Codec("zstd", _ZSTD_LEVEL).compress(sample)
    return bool(zstd.size < pa.Codec("snappy").compress(sample).size * _WORTH)


def _numbers(batch: pa.RecordBatch, name: str) -> Longs:
    """A column of 64-bit numbers or times, without a copy."""
    column = batch.column(name)
    numbers: Longs = column.view(pa.int64()).to_numpy()
    return numbers


def _hour_name(hour: int) -> str:
    """An hour since 1970 as directories are named: all readers take it for text."""
    return str(np.datetime64(hour, "h")).replace("T", "-")


def _iso(hour_name: str) -> str:
    day, _, hour = hour_name.rpartition("-")
    return f"{day}T{hour}"
