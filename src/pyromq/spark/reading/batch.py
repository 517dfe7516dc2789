"""A topic as a table: the offsets that it has when the query is planned, read in parallel.

`partitions` runs once for each query, in a process of the driver's; `read` in the tasks. The
reader travels between them by pickle and holds values only.
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
    """A part of a store's log, for one task."""

    def __init__(self, wanted: LogRange) -> None:
        self.wanted = wanted


def batch_reader(plan: ReadPlan) -> BatchReader:
    """The reader for this version of Spark: see `push_down`."""
    return PushingBatchReader(plan) if is_safe(pyspark.__version__) else BatchReader(plan)


class BatchReader(DataSourceReader):
    """Reads what the options say, less what the option `where` rules out."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._wanted_rows = WantedRows()
        self._narrow(plan.options.where)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of all queues that can have rows for the query."""
        options = self._plan.options
        if options.commit_log_only:
            return [LogPartition(wanted) for wanted in log_ranges(self._plan)]
        backoff = Backoff(options.fetch_retry_interval, options.fetch_retries)
        return with_retries(self._range_partitions, backoff) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        if isinstance(partition, LogPartition):
            return read_log(self._plan, partition.wanted)
        if isinstance(partition, RangePartition):
            return read_range(self._plan, partition.wanted)
        # Spark wants a part also where there is nothing to read.
        return iter(())

    def _narrow(self, filters: Sequence[Filter]) -> None:
        """Read only what can pass these filters."""
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
    """Reads what the options say, less what a query's filters rule out."""

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802
        """Spark's way to say which rows a query wants."""
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> list[Filter]:
        options = self._plan.options
        if options.commit_log_only:
            return filters
        self._narrow((*options.where, *filters))
        return push(filters)[1]


class _PushFilters:
    """The method `pushFilters`, which looks like the inherited one.

    Spark refuses a reader with a `pushFilters` of its own when
    spark.sql.python.filterPushdown.enabled is false, which it is by default: it compares
    `__func__`. A topic must be readable in any session. Where filters are pushed, Spark
    simply calls it.
    """

    def __init__(self, push_filters: Callable[[list[Filter]], list[Filter]]) -> None:
        self._push = push_filters
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._push(filters)
