"""Topics as an endless table: which offsets the next micro-batch has, and how it is read.

Spark keeps one reader for a whole query, in a Python process beside the driver, and asks it in
turn: `latestOffset` for the end of the next batch, `partitions` for its parts. `read` runs in the
tasks, with a copy of the reader that was made before anything was asked. What Spark keeps in its
checkpoint is `{"topic": {"broker:queue": offset}}`.

Invariants
1. What a batch reads follows from its two offsets alone: a batch that is run again after a crash
   reads the same. So a queue that is new appears in an end first, with its earliest offset, and is
   read from there by the next batch. So does the latest offset at which a query begins: Spark keeps
   the ends of batches, and asks again where the first one begins if it was not finished.
2. A queue's offset never moves over messages that were not read, but for losses, which are
   reported as `failOnDataLoss` wants. A queue whose broker is away keeps its offset.
3. An end below the start says that a queue has begun anew (its topic was deleted and made again):
   it is read from its first message.
4. The checkpoint decides. Offsets told to a consumer group are for people who look at lags; that
   they could not be told is a warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyromq.spark.options import LATEST_OFFSET, AtOffsets, Edge, Position, Topics
from pyromq.spark.origins.origin import Bounds, Origin, OriginError, Queue, QueueRange
from pyromq.spark.origins.retries import Backoff, with_retries
from pyromq.spark.reading.admission import bytes_per_offset, take_bytes, take_offsets
from pyromq.spark.reading.partitions import RangePartition, split
from pyromq.spark.reading.positions import (
    Losses,
    clip,
    find_queues,
    is_wanted,
    known_bounds,
    starting_offsets,
)
from pyromq.spark.reading.queue_offsets import (
    Offsets,
    OffsetsByTopic,
    name_queues,
    offsets_from_dict,
    offsets_to_dict,
)
from pyromq.spark.reading.ranges import ReadPlan, read_range

if TYPE_CHECKING:
    from pyromq.spark.origins.broker import BrokerOrigin

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what the options say, batch by batch."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._losses = Losses(plan.options.fail_on_data_loss)
        self._origin: Origin | None = None
        self._has_answered = False
        #: What queues had when they were last asked.
        self._bounds: dict[Queue, Bounds] = {}
        #: Queues that were there and are not, and have been waited for.
        self._gone: frozenset[Queue] = frozenset()
        #: Where a query with Trigger.AvailableNow ends.
        self._target: Offsets | None = None
        #: Where this process would begin, if that depends on when it is asked.
        self._latest_start: Offsets | None = None
        self._is_start_kept = True
        self._last_batch = -plan.options.max_trigger_delay
        #: What the consumer group was told.
        self._told: Offsets = {}

    def __getstate__(self) -> ReadPlan:
        return self._plan

    def __setstate__(self, plan: ReadPlan) -> None:
        self.__init__(plan)  # type: ignore[misc]  # a task's copy knows nothing of the driver's

    # What Spark calls, in the order of a query's life

    def initialOffset(self) -> OffsetsByTopic:  # noqa: N802
        """Where a query without a checkpoint begins."""
        offsets = self._ask(self._first_offsets, is_first=True)
        if _is_latest(self._plan.options.starting):
            self._latest_start, self._is_start_kept = offsets, False
        return offsets_to_dict(offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, nothing that comes later is there."""
        self._target = self._ask(self._last_offsets, is_first=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """That there is a limit; `latestOffset` knows all of them."""
        options = self._plan.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> OffsetsByTopic:
        """Where the batch that begins at `start` ends; `start` itself while there is none."""
        starts = offsets_from_dict(start)
        if not self._is_start_kept:
            # The first batch is empty: its end is in the checkpoint, whatever happens now.
            self._is_start_kept = True
            return start
        # Everything before the start has been processed. Spark commits a batch only when the
        # next one is there: in tools, the last one would seem to wait for ever.
        self._tell_group(starts)
        ends = self._ask(lambda origin: self._next_offsets(origin, starts, limit))
        return start if ends == starts else offsets_to_dict(ends)

    def reportLatestOffset(self) -> OffsetsByTopic | None:  # noqa: N802
        """How far the queues reach, for the query's progress."""
        return offsets_to_dict({queue: end for queue, (_, end) in self._bounds.items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch."""
        starts, ends = offsets_from_dict(start), offsets_from_dict(end)
        moved = {queue for queue, offset in starts.items() if ends.get(queue, offset) != offset}
        if starts == self._latest_start and all(ends[queue] < starts[queue] for queue in moved):
            return []  # the empty first batch of an earlier run: there is more now
        ranges = (
            self._ask(lambda origin: self._ranges(origin, starts, ends, moved)) if moved else []
        )
        options = self._plan.options
        return split(ranges, options.min_partitions, options.max_records_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; in a task."""
        assert isinstance(partition, RangePartition)
        return read_range(self._plan, partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will never ask again for what is before `end`."""
        self._tell_group(offsets_from_dict(end))

    def stop(self) -> None:
        """The query has ended."""
        self._close()

    # Helpers, in call order

    def _ask(self, question: Callable[[Origin], _Answer], *, is_first: bool = False) -> _Answer:
        """Ask the origin, which is opened anew after each failure.

        Servers that have once been there are waited for. The first questions of a new query
        fail soon instead: its addresses may be wrong.
        """

        def attempt() -> _Answer:
            if self._origin is None:
                self._origin = self._plan.options.source.open()
            try:
                answer = question(self._origin)
                self._has_answered = True
                return answer
            except (OriginError, OSError):
                self._close()
                raise

        options = self._plan.options
        is_patient = self._has_answered or not is_first
        patience = options.reconnect_timeout if is_patient else 0.0
        backoff = Backoff(options.fetch_retry_interval, options.fetch_retries, patience=patience)
        return with_retries(attempt, backoff)

    def _close(self) -> None:
        origin, self._origin = self._origin, None
        if origin is not None:
            origin.close()

    def _first_offsets(self, origin: Origin) -> Offsets:
        queues = find_queues(origin, self._plan.options.wanted)
        return starting_offsets(origin, self._plan.options, known_bounds(origin, queues))

    def _last_offsets(self, origin: Origin) -> Offsets:
        wanted = self._plan.options.wanted
        # Whether a topic that is missing is a mistake or a loss is seen when offsets are known.
        missing_topics = wanted.names if isinstance(wanted, Topics) else ()
        bounds = origin.bounds(find_queues(origin, wanted, missing_topics))
        return {queue: end for queue, (_, end) in bounds.items()}

    def _look(self, origin: Origin, known: Offsets) -> dict[Queue, Bounds]:
        """Which offsets the queues have now, those that are known and those that are new.

        Queues that were there and are not are waited for, once: as long as servers are where
        their brokers are away, and the query could not go on without them; else shortly.
        """
        options = self._plan.options
        topics = {queue.topic for queue in known}
        backoff = Backoff(
            options.fetch_retry_interval,
            options.fetch_retries,
            patience=options.reconnect_timeout if options.fail_on_data_loss else 0.0,
        )
        while True:
            self._bounds = origin.bounds(find_queues(origin, options.wanted, topics))
            gone = known.keys() - self._bounds.keys()
            new = gone - self._gone
            if not new:
                break
            away = {name for name in {queue.broker_name for queue in new} if origin.is_away(name)}
            problem = f"{name_queues(new)} is not there"
            if away:
                problem += f", NameServers do not know {', '.join(sorted(away))}"
            if not backoff.wait(problem, is_patient=bool(away)):
                break
        if gone - self._gone:
            self._losses.report(
                f"{name_queues(gone)}: the queue is not there any more, its broker is away or its "
                "topic was deleted"
            )
        self._gone = frozenset(gone)
        return self._bounds

    def _next_offsets(self, origin: Origin, starts: Offsets, limit: ReadLimit) -> Offsets:
        wanted = self._plan.options.wanted
        known = {queue: offset for queue, offset in starts.items() if is_wanted(queue, wanted)}
        bounds = self._look(origin, known)
        waiting = [
            self._waiting(queue, offset, bounds[queue])
            for queue, offset in known.items()
            if queue in bounds
        ]
        new = {
            queue: first
            for queue, (first, _) in bounds.items()
            if queue not in known and (self._target is None or queue in self._target)
        }
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(waiting, new, bounds):
                return starts
            waiting = self._limited(origin, waiting, limit)
        ends = {**known, **new, **{these.queue: these.end for these in waiting}}
        if ends != starts:
            self._last_batch = time.monotonic()
        return ends

    def _waiting(self, queue: Queue, offset: int, bounds: Bounds) -> QueueRange:
        """What has come in a queue since `offset`."""
        first, end = bounds
        if end < offset:
            self._losses.report(
                f"{queue}: offset {offset} was read up to, but the queue ends at {end}: it has "
                "begun anew"
            )
            offset = first
        elif offset < first:
            self._losses.report(
                f"{queue}: offsets {offset} to {first - 1} have expired before they were read"
            )
            offset = first
        if self._target is not None:
            end = min(end, self._target.get(queue, offset))
        return QueueRange(queue, offset, max(offset, end))

    def _should_wait(
        self, waiting: Sequence[QueueRange], new: Offsets, bounds: Mapping[Queue, Bounds]
    ) -> bool:
        """Whether a batch should be put off until more has come."""
        options = self._plan.options
        least = options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        count = sum(these.size for these in waiting)
        count += sum(bounds[queue].end - first for queue, first in new.items())
        waited = time.monotonic() - self._last_batch
        return count < least and waited < options.max_trigger_delay

    def _limited(
        self, origin: Origin, waiting: list[QueueRange], limit: ReadLimit
    ) -> list[QueueRange]:
        options = self._plan.options
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        if most is not None:
            waiting = take_offsets(waiting, most)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger
        if most is not None and waiting:
            waiting = take_bytes(waiting, most, bytes_per_offset(origin, waiting))
        return waiting

    def _ranges(
        self, origin: Origin, starts: Offsets, ends: Offsets, moved: set[Queue]
    ) -> list[QueueRange]:
        # A restarted query plans its last batch again before it asks for the next one.
        if not moved <= self._bounds.keys() | self._gone:
            self._look(origin, {queue: starts[queue] for queue in moved})
        ranges = []
        for queue in sorted(moved):
            bounds = self._bounds.get(queue)
            if bounds is None:
                self._losses.report(f"{queue}: the queue is not there any more")
                continue
            start, end = starts[queue], ends[queue]
            if end < start:
                self._losses.report(f"{queue}: the queue has begun anew, and ends at {end}")
                start = min(bounds.first, end)
            # What is behind the end as we know it has come since: tasks will see.
            known = Bounds(bounds.first, max(bounds.end, end))
            ranges.append(clip(QueueRange(queue, start, end), known, self._losses))
        return ranges

    def _tell_group(self, offsets: Offsets) -> None:
        group = self._plan.options.group
        news = {
            queue: offset
            for queue, offset in offsets.items()
            if self._told.get(queue) != offset and queue not in self._gone
        }
        if group is None or not news:
            return
        try:
            if self._origin is None:
                self._origin = self._plan.options.source.open()
            # A group goes with brokers only: the options have seen to that.
            cast("BrokerOrigin", self._origin).commit_offsets(group, news)
            self._told.update(news)
        except (OriginError, OSError) as error:
            self._close()
            logger.warning(
                "offsets were not committed for group %s, only to the checkpoint: %s", group, error
            )


def _is_latest(position: Position) -> bool:
    if isinstance(position, AtOffsets):
        return LATEST_OFFSET in position.offsets.values()
    return position is Edge.LATEST
