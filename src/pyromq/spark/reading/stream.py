"""Read topics as a stream: choose the offsets of the next micro-batch, and read it.

Spark keeps one reader for a whole query, in a Python process beside the driver, and calls
`latestOffset` for the end of the next batch and then `partitions`. `read` runs in the tasks, with
a copy of the reader that was pickled before the first call. The checkpoint stores
`{"topic": {"broker:queue": offset}}`.

Invariants
1. The two offsets of a batch alone determine what it reads, so a batch that is repeated after a
   crash reads the same messages. Therefore a new queue first appears in the end of a batch, with
   its earliest offset, and the next batch reads it from there. The same holds for the latest offset
   at which a query starts: Spark stores the ends of batches only, and asks for the start again if
   the first batch did not finish.
2. A queue's offset never skips unread messages, other than losses, which are reported according to
   `failOnDataLoss`. A queue whose broker is away keeps its offset.
3. An end below the start means that a queue was reset (its topic was deleted and recreated): it is
   read from its first message.
4. The checkpoint decides. Offsets committed to a consumer group only serve tools that show its lag;
   a failure to commit them is a warning.
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
    """Reads the messages that the options select, batch by batch."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan
        self._losses = Losses(plan.options.fail_on_data_loss)
        self._origin: Origin | None = None
        self._has_answered = False
        #: The offsets of all queues when they were last requested.
        self._bounds: dict[Queue, Bounds] = {}
        #: Those that a replica told, which may lack messages at both ends.
        self._lagging: frozenset[Queue] = frozenset()
        #: Queues that have disappeared, and did not return while the reader waited.
        self._gone: frozenset[Queue] = frozenset()
        #: Where a query with Trigger.AvailableNow ends.
        self._target: Offsets | None = None
        #: Where a query that starts at the latest offset would start in this process.
        self._latest_start: Offsets | None = None
        self._is_start_stored = True
        self._last_batch = -plan.options.max_trigger_delay
        #: The offsets committed to the consumer group.
        self._committed: Offsets = {}

    def __getstate__(self) -> ReadPlan:
        return self._plan

    def __setstate__(self, plan: ReadPlan) -> None:
        self.__init__(plan)  # type: ignore[misc]  # a task starts without the driver's state

    # Called by Spark, in the order of a query's life.

    def initialOffset(self) -> OffsetsByTopic:  # noqa: N802
        """Return the start of a query without a checkpoint."""
        offsets = self._ask(self._first_offsets, is_first=True)
        if _is_latest(self._plan.options.starting):
            self._latest_start, self._is_start_stored = offsets, False
        return offsets_to_dict(offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Ignore everything that arrives from now on."""
        self._target = self._ask(self._last_offsets, is_first=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits, if there is any; `latestOffset` applies all of them."""
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
        """Return the end of the batch that starts at `start`, or `start` if there is none yet."""
        starts = offsets_from_dict(start)
        if not self._is_start_stored:
            # An empty first batch: it puts the start into the checkpoint.
            self._is_start_stored = True
            return start
        # Everything before the start has been processed. Spark calls `commit` for a batch only
        # when the next one exists, so tools would show the last one as lag forever.
        self._commit_to_group(starts)
        ends = self._ask(lambda origin: self._next_offsets(origin, starts, limit))
        return start if ends == starts else offsets_to_dict(ends)

    def reportLatestOffset(self) -> OffsetsByTopic | None:  # noqa: N802
        """Return the end of all queues, for the query's progress."""
        return offsets_to_dict({queue: end for queue, (_, end) in self._bounds.items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch."""
        starts, ends = offsets_from_dict(start), offsets_from_dict(end)
        moved = {queue for queue, offset in starts.items() if ends.get(queue, offset) != offset}
        if starts == self._latest_start and all(ends[queue] < starts[queue] for queue in moved):
            return []  # the empty first batch of an earlier run; the queues have grown since
        ranges = (
            self._ask(lambda origin: self._ranges(origin, starts, ends, moved)) if moved else []
        )
        options = self._plan.options
        return split(ranges, options.min_partitions, options.max_records_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; called in a task."""
        assert isinstance(partition, RangePartition)
        return read_range(self._plan, partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group: Spark will never read messages before `end` again."""
        self._commit_to_group(offsets_from_dict(end))

    def stop(self) -> None:
        """Close the origin at the end of the query."""
        self._close()

    # Helpers, in call order.

    def _ask(self, question: Callable[[Origin], _Answer], *, is_first: bool = False) -> _Answer:
        """Query the origin, which is reopened after each failure.

        Wait for servers that have responded before. The first queries of a new stream fail
        early instead, because the address may be wrong.
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
        # Accept missing topics here. Later, known offsets tell a mistake from a loss.
        missing_topics = wanted.names if isinstance(wanted, Topics) else ()
        bounds = origin.bounds(find_queues(origin, wanted, missing_topics))
        return {queue: end for queue, (_, end) in bounds.items()}

    def _look(self, origin: Origin, known: Offsets) -> dict[Queue, Bounds]:
        """Return the current offsets of all queues, known and new ones.

        Wait once for queues that disappeared: for `reconnectTimeout` if their brokers are away
        and the query would otherwise fail, else only for the configured retries.
        """
        options = self._plan.options
        topics = {queue.topic for queue in known}
        backoff = Backoff(
            options.fetch_retry_interval,
            options.fetch_retries,
            patience=options.reconnect_timeout if options.fail_on_data_loss else 0.0,
        )
        while True:
            found = find_queues(origin, options.wanted, topics)
            self._bounds, self._lagging = origin.latest_bounds(found)
            gone = known.keys() - self._bounds.keys()
            new = gone - self._gone
            if not new:
                break
            away = {name for name in {queue.broker_name for queue in new} if origin.is_away(name)}
            problem = f"queues not found: {name_queues(new)}"
            if away:
                problem += f"; the NameServers do not know {', '.join(sorted(away))}"
            if not backoff.wait(problem, is_patient=bool(away)):
                break
        if gone - self._gone:
            self._losses.report(
                f"queues disappeared ({name_queues(gone)}): their broker is away or their topic "
                "was deleted"
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
            if queue not in known
            and queue not in self._lagging
            and (self._target is None or queue in self._target)
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
        """Return the backlog of a queue from `offset` on."""
        first, end = bounds
        if queue in self._lagging and not first <= offset <= end:
            end = offset  # wait for the master, which may have these offsets
        elif end < offset:
            self._losses.report(
                f"{queue}: the stream is at offset {offset}, but the queue ends at {end}: it was "
                "reset, its topic deleted and recreated"
            )
            offset = first
        elif offset < first:
            self._losses.report(f"{queue}: offsets {offset} to {first - 1} have expired unread")
            offset = first
        if self._target is not None:
            end = min(end, self._target.get(queue, offset))
        return QueueRange(queue, offset, max(offset, end))

    def _should_wait(
        self, waiting: Sequence[QueueRange], new: Offsets, bounds: Mapping[Queue, Bounds]
    ) -> bool:
        """Return whether to delay the batch until more messages have arrived."""
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
        # A restarted query repeats its last batch before it calls `latestOffset`.
        if not moved <= self._bounds.keys() | self._gone:
            self._look(origin, {queue: starts[queue] for queue in moved})
        ranges = []
        for queue in sorted(moved):
            bounds = self._bounds.get(queue)
            if bounds is None:
                self._losses.report(f"{queue}: the queue disappeared")
                continue
            start, end = starts[queue], ends[queue]
            if end < start:
                self._losses.report(f"{queue}: the queue was reset and ends at {end}")
                start = min(bounds.first, end)
            if queue in self._lagging:
                ranges.append(QueueRange(queue, start, end))  # the task waits for the master
                continue
            # Offsets above the last known end have arrived since; the task will find them.
            known = Bounds(bounds.first, max(bounds.end, end))
            ranges.append(clip(QueueRange(queue, start, end), known, self._losses))
        return ranges

    def _commit_to_group(self, offsets: Offsets) -> None:
        group = self._plan.options.group
        news = {
            queue: offset
            for queue, offset in offsets.items()
            if self._committed.get(queue) != offset and queue not in self._gone
        }
        if group is None or not news:
            return
        try:
            if self._origin is None:
                self._origin = self._plan.options.source.open()
            # The options reject a group without brokers.
            cast("BrokerOrigin", self._origin).commit_offsets(group, news)
            self._committed.update(news)
        except (OriginError, OSError) as error:
            self._close()
            logger.warning(
                "commit to group %s failed, its lag is out of date (the checkpoint is not "
                "affected): %s",
                group,
                error,
            )


def _is_latest(position: Position) -> bool:
    if isinstance(position, AtOffsets):
        return LATEST_OFFSET in position.offsets.values()
    return position is Edge.LATEST
