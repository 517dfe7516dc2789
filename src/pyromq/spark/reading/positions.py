"""Where to begin and to end in each queue: what the options ask for, held against an origin.

    queues = find_queues(origin, options.wanted)
    bounds = origin.bounds(queues)
    starts = starting_offsets(origin, options, bounds)

Invariants
1. What is said of queues one by one is said of all of them and of no others, as in Kafka's
   connector: a queue that was forgotten is no queue that may be passed over.
2. Offsets that a queue does not have (any more) are data loss: `Losses` raises, or warns
   and goes on with what there is, as `failOnDataLoss` wants.

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
    """A position that cannot be had: the queue, what was asked, what is possible."""


class DataLossError(RuntimeError):
    """Messages that were asked for are not there; `failOnDataLoss=false` goes on without."""


class Losses:
    """What happens to losses: the first one is raised, or each is a warning."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def report(self, loss: object) -> None:
        """Raise DataLossError, or warn."""
        if self._fail:
            raise DataLossError(
                f"{loss}. With failOnDataLoss=false the read goes on without these messages"
            )
        logger.warning("data loss: %s", loss)


#: What to do about a topic that is not there: for users of the source, and of the commands.
SOURCE_ADVICE: Final = "check option subscribe, and that nameserver names the right cluster"
TOPIC_OPTION_ADVICE: Final = "check --topic, and that it is the right cluster or store"


def find_queues(
    origin: Origin,
    wanted: Wanted,
    known_topics: Collection[str] = (),
    *,
    advice: str = SOURCE_ADVICE,
) -> list[Queue]:
    """The queues that are wanted, sorted.

    Raises PositionError for a topic that is not there, unless it is one of the known ones,
    which have been there before.
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
            f"option assign names {name_queues(missing)}, which is not there: check the names of "
            "brokers and the numbers of queues"
        )
    return sorted(there.intersection(wanted.queues))


def is_wanted(queue: Queue, wanted: Wanted) -> bool:
    """Whether a queue is one of those that are wanted, if it is there."""
    if isinstance(wanted, Queues):
        return queue in wanted.queues
    if isinstance(wanted, TopicPattern):
        return _matches(wanted, queue.topic)
    return queue.topic in wanted.names


def _matches(wanted: TopicPattern, topic: str) -> bool:
    # Who writes .* does not think of what waits for its retry, nor of dead letters.
    if topic.startswith("%") and "%" not in wanted.pattern:
        return False
    return re.fullmatch(wanted.pattern, topic) is not None


def known_bounds(origin: Origin, queues: Collection[Queue]) -> dict[Queue, Bounds]:
    """Which offsets each queue has; raises PositionError when one of them is not there."""
    bounds = origin.bounds(queues)
    missing = set(queues) - bounds.keys()
    if missing:
        raise PositionError(
            f"there is no queue {name_queues(missing)}: check the names of brokers and the "
            "numbers of queues"
        )
    return bounds


def starting_offsets(
    origin: Origin, options: ReadOptions, bounds: Mapping[Queue, Bounds]
) -> Offsets:
    """Where to begin in each queue; what was named in the options is not checked for loss."""
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
                f"nothing was stored at or after the time of the start in {name_queues(nothing)}: "
                "take an earlier time, or begin at the end of such queues with "
                "startingOffsetsByTimestampStrategy=latest"
            )
    return offsets


def ending_offsets(origin: Origin, options: ReadOptions, bounds: Mapping[Queue, Bounds]) -> Offsets:
    """Where to end in each queue: before these offsets, and before what comes meanwhile."""
    ending = options.ending
    if isinstance(ending, AtOffsets):
        _check_all(ending.offsets, bounds, "endingOffsets")
    elif isinstance(ending, AtTimes):
        _check_all(ending.times, bounds, "endingOffsetsByTimestamp")
    return _offsets(origin, ending, bounds)


def batch_ranges(origin: Origin, options: ReadOptions) -> list[QueueRange]:
    """What a batch reads of each queue, without queues of which it reads nothing."""
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
    """What a queue has of a range; the rest of it is lost."""
    queue, start, end = wanted
    if end <= start:
        return QueueRange(queue, start, start)
    if start < bounds.first:
        losses.report(
            f"{queue}: offsets {start} to {min(end, bounds.first) - 1} have expired, the first "
            f"one is {bounds.first}"
        )
    if end > bounds.end:
        losses.report(
            f"{queue}: offsets {max(start, bounds.end)} to {end - 1} are not there, the last one "
            f"is {bounds.end - 1}"
        )
    start = max(start, bounds.first)
    return QueueRange(queue, start, max(start, min(end, bounds.end)))


def _check_all(named: Offsets, queues: Collection[Queue], option: str) -> None:
    missing = set(queues) - named.keys()
    if missing:
        raise PositionError(
            f"option {option} says nothing of {name_queues(missing)}: it must name all queues "
            "(-2 is the earliest offset, -1 the latest)"
        )
    superfluous = named.keys() - set(queues)
    if superfluous:
        raise PositionError(
            f"option {option} names {name_queues(superfluous)}, which is not there or not read"
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
            f"no offsets by time were given for {name_queues(missing)}: ask again when their "
            "brokers are there"
        )
    # A time before the first message that is left, or after the last one.
    return {
        queue: min(max(found[queue], bounds[queue].first), bounds[queue].end) for queue in times
    }


def _edge(offset: int, bounds: Bounds) -> int:
    return bounds.first if offset == Edge.EARLIEST.value else bounds.end
