"""The work of a task, for batches and streams: open the origin, decode its blocks, report losses.

    yield from read_range(plan, QueueRange(queue, 0, 1000))

`ReadPlan` travels to the tasks: plain values, no sockets. Each read opens an origin of its own
and closes it, also when Spark stops early (`limit`).

Invariant: batches have exactly the columns of the plan, at most `arrow.BATCH_ROWS` rows and,
unless one body is larger, `arrow.BATCH_BYTES` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyromq.base.process_memory import keep_memory
from pyromq.client.consumer.subscription import Subscription
from pyromq.spark.arrow import RecordDecoder, batches
from pyromq.spark.options import ReadOptions, TopicPattern, Topics
from pyromq.spark.origins.opening import StoreSource
from pyromq.spark.origins.origin import LostRecords, QueueRange, RecordBlock
from pyromq.spark.reading.filters import RowCondition, row_conditions
from pyromq.spark.reading.positions import Losses

if TYPE_CHECKING:
    from pyromq.spark.origins.store import LogRange, StoreOrigin


#: Do not list the gaps of a filtered block that spans more offsets than this.
_MAX_LISTED_SPAN: Final = 1_000_000


@dataclass(frozen=True)
class ReadPlan:
    """The work of all tasks: the options, the columns, and the tags that brokers filter by."""

    options: ReadOptions
    columns: tuple[str, ...]
    #: The columns that the user's schema declares NOT NULL.
    not_null: frozenset[str] = frozenset()
    #: Tags from filters that tasks or Spark check again.
    pushed_tags: frozenset[str] = frozenset()

    @property
    def subscription(self) -> Subscription | None:
        """The subscription for brokers; None: all messages."""
        tags, pushed = self.options.tags, self.pushed_tags
        if self.options.sql is not None:
            return Subscription.sql(self.options.sql)
        if tags or pushed:
            wanted = tags & pushed if tags and pushed else tags or pushed
            return Subscription.tags(" || ".join(sorted(wanted)))
        return None


def read_range(plan: ReadPlan, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of a queue."""
    with closing(plan.options.source.open(plan.subscription)) as origin:
        found = origin.blocks(wanted)
        yield from _decoded(plan, found, wanted.queue.broker_name, str(wanted.queue))


def log_ranges(plan: ReadPlan) -> list[LogRange]:
    """Return the ranges of a store's log, one for each task of a read without queues."""
    with closing(_open_store(plan.options)) as origin:
        return origin.log_ranges()


def read_log(plan: ReadPlan, wanted: LogRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of a store's log."""
    topics = plan.options.wanted
    names = topics.names if isinstance(topics, Topics) else None
    with closing(_open_store(plan.options)) as origin:
        found = origin.log_blocks(wanted, names)
        yield from _decoded(plan, found, origin.broker_name, f"commit log of {origin.broker_name}")


def _open_store(options: ReadOptions) -> StoreOrigin:
    assert isinstance(options.source, StoreSource)
    return options.source.open()


def _decoded(
    plan: ReadPlan, found: Iterable[RecordBlock | LostRecords], broker_name: str, place: str
) -> Iterator[pa.RecordBatch]:
    keep_memory()
    losses = Losses(plan.options.fail_on_data_loss)
    rows = _RowFilter(plan)
    decoder = RecordDecoder(
        rows.columns, plan.options.include_properties, broker_name, plan.not_null
    )
    for block in found:
        if isinstance(block, LostRecords):
            losses.report(block)
            continue
        for decoded in decoder.decode_parts(block):
            if decoded.damaged:
                where = _damaged_offsets(block)
                for damage in decoded.damaged:
                    losses.report(f"{place}, {where}: {damage}")
            yield from batches(rows.select(decoded.batch))


def _damaged_offsets(block: RecordBlock) -> str:
    """Describe the offsets that damaged records may have: those that are missing in the block."""
    whole = RecordDecoder(("queueOffset",)).decode(block).batch.column("queueOffset").to_pylist()
    if not whole:
        return f"{block.starts.size} records, none of them whole"
    first, last = min(whole), max(whole)
    is_listed = last - first < _MAX_LISTED_SPAN
    missing = sorted(set(range(first, last)) - set(whole))[:5] if is_listed else []
    gaps = f", missing {', '.join(map(str, missing))}" if missing else ""
    return f"offsets {first} to {last}{gaps}"


class _RowFilter:
    """Filters rows exactly where an origin filters roughly or not at all.

    Brokers filter tags by hash; store files are not filtered; the log contains all topics. The
    columns that this needs are decoded in addition to the plan's, and dropped.
    """

    def __init__(self, plan: ReadPlan) -> None:
        options = plan.options
        self._wanted_columns = list(plan.columns)
        self._tags = pa.array(sorted(options.tags), pa.string()) if options.tags else None
        by_pattern = options.commit_log_only and isinstance(options.wanted, TopicPattern)
        self._matches = (
            re.compile(options.wanted.pattern).fullmatch
            if by_pattern and isinstance(options.wanted, TopicPattern)
            else None
        )
        self._where = row_conditions(options.where)
        needed = {
            **dict.fromkeys(condition.attribute[0] for condition in self._where),
            **({"tags": None} if self._tags is not None else {}),
            **({"topic": None} if self._matches is not None else {}),
        }
        self.columns = [*plan.columns, *(name for name in needed if name not in plan.columns)]

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows, with the plan's columns."""
        if self._tags is not None:
            batch = batch.filter(pc.is_in(batch.column("tags"), self._tags))
        for condition in self._where:
            batch = batch.filter(_holds(condition, batch))
        if self._matches is not None:
            topics = batch.column("topic")
            matching = [topic for topic in topics.unique().to_pylist() if self._matches(topic)]
            batch = batch.filter(pc.is_in(topics, pa.array(matching, pa.string())))
        return batch.select(self._wanted_columns)


def _holds(condition: RowCondition, batch: pa.RecordBatch) -> pa.Array:
    """Return the rows for which a condition holds; null, which `filter` drops, for null values."""
    column = batch.column(condition.attribute[0])
    if isinstance(condition, In):
        return pc.is_in(column, pa.array(condition.value, column.type))
    return _COMPARE[type(condition)](column, pa.scalar(condition.value, column.type))


_COMPARE: Final = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
