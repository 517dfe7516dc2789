"""The sink: write the rows of `df.write.format("rocketmq")` and `df.writeStream` as messages.

Each row becomes a message; `sink.options` lists the columns. A task encodes its Arrow batches
(`row_encoder`), sends several requests at a time (`sender`) and returns when brokers have stored
every row, so a committed batch is stored. Spark retries a task that failed, or whose batch failed,
with all of its rows: delivery is at least once. With `dedup=true` the rows of a retried task get
the same unique keys again, so that consumers can drop duplicates.

Spark creates writers when it plans a write, and pickles them for the tasks: they hold only values.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyromq.spark.option_values import OptionError
from pyromq.spark.sink.options import WriteOptions, check_columns
from pyromq.spark.sink.row_encoder import Limits, RowEncoder
from pyromq.spark.sink.sender import Sender, Sent
from pyromq.spark.sink.unique_rows import UniqueRows

logger = logging.getLogger(__name__)

#: Local properties of the tasks of a micro-batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
#: A rate limit lets this many seconds' worth of rows through at a time.
_RATE_INTERVAL_SECONDS: Final = 0.1
#: Oversleep by this much, so that rows that are due soon after share a batch.
_GATHER_SECONDS: Final = 0.02
#: Spark can cancel a task only between sleeps.
_MAX_SLEEP_SECONDS: Final = 1.0
_MICROSECONDS: Final = 1_000_000


@dataclass
class Written(WriterCommitMessage):
    """Totals of the rows that a task stored."""

    rows: int
    bytes: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a data frame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns. Raises OptionError and ValueError."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten: write with mode('append')")
        self.options = WriteOptions.parse(options)
        check_columns(schema, self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one partition."""
        partition = _partition()
        return _written(
            send_rows(
                iterator,
                self.options,
                unique_rows(self.options, self.options.write_id, partition),
                place=f" of partition {partition}",
            )
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what a failed write left behind."""
        logger.warning("write failed: %s", _leftover(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream: every row of them, in any output mode."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns. Raises OptionError and ValueError."""
        del overwrite  # the output mode `complete`: send all rows of the result again
        self.options = WriteOptions.parse(options)
        check_columns(schema, self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one partition of a micro-batch."""
        partition = _partition()
        query, batch = _property(_QUERY_ID), _property(_BATCH_ID)
        if self.options.dedup and not (query and batch):
            raise OptionError(
                "dedup=true is not possible here: Spark does not provide the ids of query and batch"
            )
        return _written(
            send_rows(
                iterator,
                self.options,
                unique_rows(self.options, query, batch, partition),
                place=f" of partition {partition} in batch {batch}",
            )
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what a failed micro-batch left behind."""
        logger.warning("batch %d failed: %s", batchId, _leftover(messages))


def send_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    unique: UniqueRows,
    *,
    place: str = "",
) -> Sent:
    """Store the rows of Arrow batches as messages. Raises RowError and SendError."""
    batches = let_through(batches, SendTimes())
    if options.max_rows_per_second is not None:
        batches = let_through(batches, RateLimit(options.max_rows_per_second))
    with Sender(options, place) as sender:
        encoder = RowEncoder(
            Limits(options.batch_bytes, options.max_message_size),
            unique,
            sender.queues_of,
            default_topic=options.topic,
            place=place,
        )
        for batch in batches:
            for request in encoder.encode(batch):
                sender.send(request)
        sender.flush()
        return sender.sent


def unique_rows(options: WriteOptions, *names: object) -> UniqueRows:
    """Return the unique keys for a task's rows: derived from `names` with `dedup`, else random."""
    return UniqueRows.of_task(*names) if options.dedup else UniqueRows.random()


class Gate(Protocol):
    """Releases a batch in slices, each when it is due."""

    def pass_on(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the slices of a batch."""


def let_through(batches: Iterable[pa.RecordBatch], gate: Gate) -> Iterator[pa.RecordBatch]:
    """Yield all batches through a gate."""
    for batch in batches:
        yield from gate.pass_on(batch)


class SendTimes:
    """Releases rows, in order, at the time in their column `sendAt`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep

    def pass_on(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the slices of a batch; rows without a time are not delayed."""
        position = batch.schema.get_field_index("sendAt")
        if position < 0:
            yield batch
            return
        times = batch.column(position).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        # To keep the order, a row waits for a later time of a row before it.
        due = np.maximum.accumulate(np.asarray(times.fill_null(0), np.int64))
        start = 0
        while start < batch.num_rows:
            now = self._clock()
            end = int(np.searchsorted(due, int(now * _MICROSECONDS), "right"))
            if end > start:
                yield batch.slice(start, end - start)
                start = end
            else:
                wait = due[start] / _MICROSECONDS - now + _GATHER_SECONDS
                self._sleep(min(wait, _MAX_SLEEP_SECONDS))


class RateLimit:
    """Releases at most `rows_per_second`, evenly; unused capacity does not accumulate."""

    def __init__(
        self,
        rows_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def pass_on(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the slices of a batch, each after the time that the previous ones take."""
        step = max(1, int(self._rate * _RATE_INTERVAL_SECONDS))
        for first in range(0, batch.num_rows, step):
            part = batch.slice(first, step)
            now = self._clock()
            if self._free_at > now:
                self._sleep(self._free_at - now)
            self._free_at = max(self._free_at, now) + part.num_rows / self._rate
            yield part


def _written(sent: Sent) -> Written:
    return Written(sent.rows, sent.bytes)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _property(name: str) -> str:
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else None) or ""


def _leftover(messages: list[WriterCommitMessage | None]) -> str:
    stored = sum(message.rows for message in messages if isinstance(message, Written))
    return f"{stored} rows of finished tasks are stored; a retry stores them again"
