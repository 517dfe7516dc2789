"""The sink: what `df.write.format("rocketmq")` and `df.writeStream` do with rows.

Each row is a message; `write_options` has the columns. A task encodes its Arrow batches
(`row_encoder`), sends them several requests at a time (`sender`) and comes back when brokers
have stored every row. So what a committed batch has is stored. A task that fails, or whose
batch fails, is run again by Spark and sends its rows again: at least once. With `dedup=true`
the rows of such a task have the unique keys that they had before, by which consumers know
them.

Writers are made when a write is planned, and travel to the tasks: they hold values only.
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

from pyromq.spark.options import OptionError
from pyromq.spark.sink.options import WriteOptions, check_columns
from pyromq.spark.sink.row_encoder import Limits, RowEncoder
from pyromq.spark.sink.sender import Sender, Sent
from pyromq.spark.sink.unique_rows import UniqueRows

logger = logging.getLogger(__name__)

#: What Spark tells the tasks of a micro-batch about it.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
#: How long rows are gathered for one step of a limited rate, in seconds.
_STEP_SECONDS: Final = 0.1
#: How long the first of some rows waits for others that are due.
_COMPANY_SECONDS: Final = 0.02
#: A task that was cancelled is seen to be so in between.
_LONGEST_SLEEP: Final = 1.0
_MICROSECONDS: Final = 1_000_000


@dataclass
class Written(WriterCommitMessage):
    """What a task has stored."""

    rows: int
    bytes: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a data frame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns; raises OptionError and ValueError."""
        if overwrite:
            raise OptionError(
                "a topic cannot be overwritten, only added to: write with mode('append')"
            )
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
        """Say what a write that failed has left."""
        logger.warning("a write failed: %s", _leftover(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream; in any output mode each row is sent."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns; raises OptionError and ValueError."""
        del overwrite  # the output mode `complete`: all rows of the result are sent anew
        self.options = WriteOptions.parse(options)
        check_columns(schema, self.options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one partition of a micro-batch."""
        partition = _partition()
        query, batch = _property(_QUERY_ID), _property(_BATCH_ID)
        if self.options.dedup and not (query and batch):
            raise OptionError(
                "dedup=true is not possible here: Spark does not say which query and batch this is"
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
        """Say what a micro-batch that failed has left."""
        logger.warning("batch %d failed: %s", batchId, _leftover(messages))


def send_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    unique: UniqueRows,
    *,
    place: str = "",
) -> Sent:
    """Store the rows of Arrow batches as messages and say how many; raises for what cannot be."""
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
    """The unique keys of a task's rows: by these names with `dedup`."""
    return UniqueRows.of_task(*names) if options.dedup else UniqueRows.random()


class Gate(Protocol):
    """Hands on a batch in parts, each when its time has come."""

    def pass_on(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The parts of a batch."""


def let_through(batches: Iterable[pa.RecordBatch], gate: Gate) -> Iterator[pa.RecordBatch]:
    """All batches, as a gate lets them pass."""
    for batch in batches:
        yield from gate.pass_on(batch)


class SendTimes:
    """Lets rows through when the time in their column `sendAt` has come, in their order."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep

    def pass_on(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch in parts; at once where no row has a time."""
        position = batch.schema.get_field_index("sendAt")
        if position < 0:
            yield batch
            return
        times = batch.column(position).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        # A row that comes behind a later one waits with it.
        due = np.maximum.accumulate(np.asarray(times.fill_null(0), np.int64))
        start = 0
        while start < batch.num_rows:
            now = self._clock()
            end = int(np.searchsorted(due, int(now * _MICROSECONDS), "right"))
            if end > start:
                yield batch.slice(start, end - start)
                start = end
            else:
                # Somewhat later than the first of them, for company.
                wait = due[start] / _MICROSECONDS - now + _COMPANY_SECONDS
                self._sleep(min(wait, _LONGEST_SLEEP))


class RateLimit:
    """Lets so many rows through in a second, evenly; what was not used is not saved up."""

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
        """A batch in parts, each when the ones before it have had their time."""
        step = max(1, int(self._rate * _STEP_SECONDS))
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
    return f"{stored} rows of tasks that ended are stored, and come again when it is repeated"
