"""Read a topic as a table: the offsets that it has when Spark plans the query, in parallel.

`partitions` runs once for each query, in a planning process of the driver; `read` runs in the
tasks. The reader travels between them by pickle and holds only values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyromq.spark.origins.retries import Backoff, with_retries
from pyromq.spark.reading.filters import WantedRows, push
from pyromq.spark.reading.partitions import RangePartition, split
from pyromq.spark.reading.positions import batch_ranges
from pyromq.spark.reading.push_down import is_safe
from pyromq.spark.reading.ranges import ReadPlan, log_ranges, read_log, read_range

if TYPE_CHECKING:
    from pyromq.spark.origins.store import LogRange


class LogPartition(InputPartition):
    """The range of a store's log that one task reads."""

    def __init__(self, wanted: LogRange) -> None:
        self.wanted = wanted


def batch_reader(plan: ReadPlan) -> BatchReader:
    """Return the reader for this version of Spark: see `push_down`."""
    return PushingBatchReader(plan) if is_safe(pyspark.__version__) else BatchReader(plan)


class BatchReader(DataSourceReader):
    """Reads the messages that the options select, narrowed by the option `where`."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._wanted_rows = WantedRows()
        self._narrow(plan.options.where)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of all queues that can have rows for the query."""
        options = self._plan.options
        if options.commit_log_only:
            return [LogPartition(wanted) for wanted in log_ranges(self._plan)]
        backoff = Backoff(options.fetch_retry_interval, options.fetch_retries)
        return with_retries(self._range_partitions, backoff) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        if isinstance(partition, LogPartition):
            return read_log(self._plan, partition.wanted)
        if isinstance(partition, RangePartition):
            return read_range(self._plan, partition.wanted)
        # Spark needs at least one partition, even if there is nothing to read.
        return iter(())

    def _narrow(self, filters: Sequence[Filter]) -> None:
        """Restrict the read to rows that can pass these filters."""
        self._wanted_rows, _ = push(filters)
        tags = self._wanted_rows.tags
        if tags is not None:
            if self._plan.options.tags:
                tags &= self._plan.options.tags
                self._wanted_rows = replace(self._wanted_rows, tags=tags)
            self._plan = replace(self._plan, pushed_tags=tags)

    def _range_partitions(self) -> list[RangePartition]:
        options = self._plan.options
        with closing(options.source.open()) as origin:
            ranges = self._wanted_rows.prune(origin, batch_ranges(origin, options))
        return split(ranges, options.min_partitions, options.max_records_per_partition)


class PushingBatchReader(BatchReader):
    """Reads the messages that the options select, narrowed by the query's filters."""

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802
        """Take over filters of a query; called by Spark."""
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> list[Filter]:
        options = self._plan.options
        if options.commit_log_only:
            return filters
        self._narrow((*options.where, *filters))
        return push(filters)[1]


class _PushFilters:
    """The method `pushFilters`, disguised as the inherited one.

    By default (spark.sql.python.filterPushdown.enabled=false) Spark rejects a reader that
    overrides `pushFilters`, which it detects by comparing `__func__`. A topic must be readable
    in any session. If push-down is enabled, Spark simply calls it.
    """

    def __init__(self, push_filters: Callable[[list[Filter]], list[Filter]]) -> None:
        self._push = push_filters
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._push(filters)
