"""Find the queues and offsets of a read: compare its options with what an origin has.

    queues = find_queues(origin, options.wanted)
    bounds = origin.bounds(queues)
    starts = starting_offsets(origin, options, bounds)

Invariants
1. Options that give a position for each queue must name all queues that are read and no others, as
   in Kafka's connector, so that no queue is forgotten silently.
2. Offsets that a queue does not have, or no longer has, are data loss: `Losses` raises, or warns
   and continues, according to `failOnDataLoss`.

Runs in the driver's Python processes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Final

from pyromq.spark.options import (
    AtOffsets,
    AtTimes,
    Edge,
    Position,
    Queues,
    ReadOptions,
    Time,
    TopicPattern,
    Topics,
    Wanted,
)
from pyromq.spark.origins.origin import Bounds, Origin, OriginError, Queue, QueueRange
from pyromq.spark.reading.queue_offsets import Offsets, name_queues

logger = logging.getLogger(__name__)

_EDGES: Final = frozenset(edge.value for edge in Edge)


class PositionError(ValueError):
    """A position or queue that does not exist: which one, and what to do."""


class DataLossError(RuntimeError):
    """Messages of the read are missing. `failOnDataLoss=false` skips them."""


class Losses:
    """Handles losses: raises for the first one, or logs a warning for each."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def report(self, loss: object) -> None:
        """Raise DataLossError, or log a warning."""
        if self._fail:
            raise DataLossError(
                f"{loss}. Set failOnDataLoss=false to continue without these messages"
            )
        logger.warning("data loss: %s", loss)


#: What to do about a missing topic: for users of the source, and of the commands.
SOURCE_ADVICE: Final = "check the option subscribe, and that nameserver is the right cluster"
TOPIC_OPTION_ADVICE: Final = "check --topic, and that this is the right cluster or store"


def find_queues(
    origin: Origin,
    wanted: Wanted,
    known_topics: Collection[str] = (),
    *,
    advice: str = SOURCE_ADVICE,
) -> list[Queue]:
    """Return the queues to read, sorted.

    Raises PositionError for a missing topic, unless it is in `known_topics`, which existed before.
    """
    if isinstance(wanted, TopicPattern):
        topics = [topic for topic in origin.topics() if _matches(wanted, topic)]
        return [queue for topic in topics for queue in origin.queues(topic)]
    if isinstance(wanted, Queues):
        return _find_assigned(origin, wanted, known_topics)
    assert isinstance(wanted, Topics)
    found: list[Queue] = []
    for topic in sorted(wanted.names):
        queues = origin.queues(topic)
        if not queues and topic not in known_topics:
            raise PositionError(
                f"there is no topic {topic!r}, or none of its brokers is known: {advice}"
            )
        found += queues
    return found


def _find_assigned(origin: Origin, wanted: Queues, known_topics: Collection[str]) -> list[Queue]:
    topics = sorted({queue.topic for queue in wanted.queues})
    there = {queue for topic in topics for queue in origin.queues(topic)}
    missing = set(wanted.queues) - there
    if any(queue.topic not in known_topics for queue in missing):
        raise PositionError(
            f"option assign names missing queues ({name_queues(missing)}): check the broker names "
            "and queue ids"
        )
    return sorted(there.intersection(wanted.queues))


def is_wanted(queue: Queue, wanted: Wanted) -> bool:
    """Return whether the options select a queue, if it exists."""
    if isinstance(wanted, Queues):
        return queue in wanted.queues
    if isinstance(wanted, TopicPattern):
        return _matches(wanted, queue.topic)
    return queue.topic in wanted.names


def _matches(wanted: TopicPattern, topic: str) -> bool:
    # A pattern like .* is not meant to select retry and dead-letter topics.
    if topic.startswith("%") and "%" not in wanted.pattern:
        return False
    return re.fullmatch(wanted.pattern, topic) is not None


def known_bounds(origin: Origin, queues: Collection[Queue]) -> dict[Queue, Bounds]:
    """Return the offsets of each queue. Raises PositionError if one of them does not exist."""
    bounds = origin.bounds(queues)
    missing = set(queues) - bounds.keys()
    if missing:
        raise PositionError(
            f"queues do not exist ({name_queues(missing)}): check the broker names and queue ids"
        )
    return bounds


def starting_offsets(
    origin: Origin, options: ReadOptions, bounds: Mapping[Queue, Bounds]
) -> Offsets:
    """Return the first offset to read in each queue; explicit ones are not checked for loss."""
    starting = options.starting
    if isinstance(starting, AtOffsets):
        _check_all(starting.offsets, bounds, "startingOffsets")
    elif isinstance(starting, AtTimes):
        _check_all(starting.times, bounds, "startingOffsetsByTimestamp")
    offsets = _offsets(origin, starting, bounds)
    if isinstance(starting, Time | AtTimes) and not options.start_at_end_if_nothing_later:
        nothing = [queue for queue, offset in offsets.items() if offset >= bounds[queue].end]
        if nothing:
            raise PositionError(
                f"no message was stored at or after the starting time in {name_queues(nothing)}: "
                "give an earlier time, or set startingOffsetsByTimestampStrategy=latest to start "
                "at the end of such queues"
            )
    return offsets


def ending_offsets(origin: Origin, options: ReadOptions, bounds: Mapping[Queue, Bounds]) -> Offsets:
    """Return the offset in each queue at which the read ends, excluding later arrivals."""
    ending = options.ending
    if isinstance(ending, AtOffsets):
        _check_all(ending.offsets, bounds, "endingOffsets")
    elif isinstance(ending, AtTimes):
        _check_all(ending.times, bounds, "endingOffsetsByTimestamp")
    return _offsets(origin, ending, bounds)


def batch_ranges(origin: Origin, options: ReadOptions) -> list[QueueRange]:
    """Return the range of each queue that a batch reads, without empty ones."""
    queues = find_queues(origin, options.wanted)
    bounds = known_bounds(origin, queues)
    starts = starting_offsets(origin, options, bounds)
    ends = ending_offsets(origin, options, bounds)
    losses = Losses(options.fail_on_data_loss)
    ranges = [
        clip(QueueRange(queue, starts[queue], ends[queue]), bounds[queue], losses)
        for queue in queues
    ]
    return [wanted for wanted in ranges if wanted.size > 0]


def clip(wanted: QueueRange, bounds: Bounds, losses: Losses) -> QueueRange:
    """Return the part of a range that a queue has; report the rest as lost."""
    queue, start, end = wanted
    if end <= start:
        return QueueRange(queue, start, start)
    if start < bounds.first:
        losses.report(
            f"{queue}: offsets {start} to {min(end, bounds.first) - 1} have expired, the queue "
            f"starts at {bounds.first}"
        )
    if end > bounds.end:
        losses.report(
            f"{queue}: offsets {max(start, bounds.end)} to {end - 1} do not exist, the queue "
            f"ends at {bounds.end}"
        )
    start = max(start, bounds.first)
    return QueueRange(queue, start, max(start, min(end, bounds.end)))


def _check_all(named: Offsets, queues: Collection[Queue], option: str) -> None:
    missing = set(queues) - named.keys()
    if missing:
        raise PositionError(
            f"option {option} does not name {name_queues(missing)}: it must name all queues "
            "(-2 is the earliest offset, -1 the latest)"
        )
    superfluous = named.keys() - set(queues)
    if superfluous:
        raise PositionError(
            f"option {option} names queues that do not exist or are not read: "
            f"{name_queues(superfluous)}"
        )


def _offsets(origin: Origin, position: Position, bounds: Mapping[Queue, Bounds]) -> Offsets:
    if isinstance(position, Edge):
        return {queue: _edge(position.value, bounds[queue]) for queue in bounds}
    if isinstance(position, AtOffsets):
        return {
            queue: _edge(offset, bounds[queue]) if offset in _EDGES else offset
            for queue, offset in position.offsets.items()
        }
    if isinstance(position, Time):
        times = dict.fromkeys(bounds, position.milliseconds)
    else:
        times = position.times
    found = origin.offsets_at(times)
    missing = times.keys() - found.keys()
    if missing:
        raise OriginError(
            f"no broker returned offsets by time for {name_queues(missing)}: retry when the "
            "brokers are back"
        )
    # The time may be before the first message that has not expired, or after the last one.
    return {
        queue: min(max(found[queue], bounds[queue].first), bounds[queue].end) for queue in times
    }


def _edge(offset: int, bounds: Bounds) -> int:
    return bounds.first if offset == Edge.EARLIEST.value else bounds.end
