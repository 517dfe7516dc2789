"""Turn Spark's filters on queues, offsets, times and tags into a smaller read.

    wanted, left = push([EqualTo(("queueId",), 3), GreaterThan(("queueOffset",), 41)])

Queues and offsets are known before a record is read, so filters on topic, brokerName, queueId and
queueOffset are fully applied when the ranges are planned. Filters on storeTimestamp and tags only
narrow the ranges and what brokers send, and Spark still evaluates them for every row: a broker
finds times by binary search and tags by their hashes.

Invariant: a row that passes all filters is never dropped. A filter that is not understood (another
type of value, another shape) is left to Spark.

Pure; used by the driver when it plans a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from pyromq.protocol.filter.tags import SUBSCRIBE_ALL, parse_tags
from pyromq.spark.origins.origin import Origin, Queue, QueueRange

#: A message's time comes from its broker's clock, which may have been set back a little. A range
#: of times is extended by this at both ends.
CLOCK_SLACK_MILLISECONDS: Final = 10_000

RowCondition: TypeAlias = (
    EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
)

_NEVER_NULL: Final = frozenset(
    {
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "msgId",
        "body",
        "properties",
        "bornTimestamp",
        "storeTimestamp",
        "bornHost",
        "storeHost",
        "reconsumeTimes",
        "flag",
        "sysFlag",
        "physicalOffset",
    }
)
#: Above every offset.
_NO_END: Final = 2**63


@dataclass(frozen=True)
class WantedRows:
    """The rows that filters select; None means no restriction."""

    topics: frozenset[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    broker_names: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    #: Offsets from `start`, excluding `end`.
    start: int = 0
    end: int = _NO_END
    #: Store times in milliseconds, both inclusive.
    stored_from: int | None = None
    stored_to: int | None = None
    tags: frozenset[str] | None = None

    def has_queue(self, queue: Queue) -> bool:
        """Return whether rows of a queue can pass."""
        return (
            _has(self.topics, queue.topic)
            and all(map(queue.topic.startswith, self.topic_prefixes))
            and _has(self.broker_names, queue.broker_name)
            and _has(self.queue_ids, queue.queue_id)
        )

    def prune(self, origin: Origin, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """Return the parts of these ranges that can have rows that pass."""
        if self.tags is not None and not self.tags:
            return []
        left = [
            QueueRange(wanted.queue, max(wanted.start, self.start), min(wanted.end, self.end))
            for wanted in ranges
            if self.has_queue(wanted.queue)
        ]
        return self._prune_by_time(origin, [wanted for wanted in left if wanted.size > 0])

    def _prune_by_time(self, origin: Origin, ranges: list[QueueRange]) -> list[QueueRange]:
        queues = [wanted.queue for wanted in ranges]
        starts: dict[Queue, int] = {}
        ends: dict[Queue, int] = {}
        if queues and self.stored_from is not None:
            time = max(0, self.stored_from - CLOCK_SLACK_MILLISECONDS)
            starts = origin.offsets_at(dict.fromkeys(queues, time))
        if queues and self.stored_to is not None:
            time = max(0, self.stored_to + 1 + CLOCK_SLACK_MILLISECONDS)
            ends = origin.offsets_at(dict.fromkeys(queues, time))
        pruned = [
            QueueRange(
                wanted.queue,
                max(wanted.start, starts.get(wanted.queue, wanted.start)),
                min(wanted.end, ends.get(wanted.queue, wanted.end)),
            )
            for wanted in ranges
        ]
        return [wanted for wanted in pruned if wanted.size > 0]


def push(filters: Iterable[Filter]) -> tuple[WantedRows, list[Filter]]:
    """Return what all filters select together, and the filters that Spark must still evaluate."""
    wanted = WantedRows()
    left: list[Filter] = []
    for condition in filters:
        narrowed, done = _narrow(wanted, condition)
        wanted = narrowed
        if not done:
            left.append(condition)
    return wanted, left


def is_exact(condition: Filter) -> bool:
    """Return whether ranges, together with `row_conditions` in the tasks, apply it completely."""
    wanted, left = push([condition])
    return not left or (wanted != WantedRows() and bool(row_conditions([condition])))


def row_conditions(filters: Iterable[Filter]) -> tuple[RowCondition, ...]:
    """Return the filters that ranges cannot settle, so that tasks must compare values."""
    return tuple(
        condition
        for condition in filters
        if isinstance(condition, RowCondition)
        and condition.attribute in (("storeTimestamp",), ("tags",))
    )


def _narrow(wanted: WantedRows, condition: Filter) -> tuple[WantedRows, bool]:
    """Add a condition; also return whether it is now completely applied."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return wanted, False
    name = attribute[0]
    if isinstance(condition, IsNotNull):
        return wanted, name in _NEVER_NULL
    if name in ("topic", "brokerName", "queueId"):
        return _narrow_queues(wanted, name, condition)
    if name == "queueOffset":
        return _narrow_offsets(wanted, condition)
    if name == "storeTimestamp":
        return _narrow_times(wanted, condition), False
    if name == "tags":
        return _narrow_tags(wanted, condition), False
    return wanted, False


def _narrow_queues(wanted: WantedRows, name: str, condition: Filter) -> tuple[WantedRows, bool]:
    """Add a condition on a queue's topic, broker or id."""
    if name == "topic" and isinstance(condition, StringStartsWith):
        prefixes = (*wanted.topic_prefixes, condition.value)
        return replace(wanted, topic_prefixes=prefixes), True
    values = _values(condition, int if name == "queueId" else str)
    if values is None:
        return wanted, False
    if name == "topic":
        return replace(wanted, topics=_both(wanted.topics, values)), True
    if name == "brokerName":
        return replace(wanted, broker_names=_both(wanted.broker_names, values)), True
    return replace(wanted, queue_ids=_both(wanted.queue_ids, values)), True


def _narrow_offsets(wanted: WantedRows, condition: Filter) -> tuple[WantedRows, bool]:
    values = _values(condition, int)
    if values is not None:
        if not values:
            return replace(wanted, end=0), True
        wanted = _between(wanted, min(values), max(values) + 1)
        return wanted, max(values) - min(values) + 1 == len(values)
    value: Any = getattr(condition, "value", None)
    if not _is(value, int):
        return wanted, False
    if isinstance(condition, GreaterThan):
        return _between(wanted, value + 1, _NO_END), True
    if isinstance(condition, GreaterThanOrEqual):
        return _between(wanted, value, _NO_END), True
    if isinstance(condition, LessThan):
        return _between(wanted, 0, value), True
    if isinstance(condition, LessThanOrEqual):
        return _between(wanted, 0, value + 1), True
    return wanted, False


def _between(wanted: WantedRows, start: int, end: int) -> WantedRows:
    return replace(wanted, start=max(wanted.start, start), end=min(wanted.end, end))


def _narrow_times(wanted: WantedRows, condition: Filter) -> WantedRows:
    value: Any = getattr(condition, "value", None)
    times: Sequence[Any] = value if isinstance(condition, In) else (value,)
    if not times or not all(isinstance(time, datetime) and time.tzinfo for time in times):
        return wanted
    # A filter may be finer than a millisecond: round outwards.
    milliseconds = [int(time.timestamp() * 1000 // 1) for time in times]
    earliest, latest = min(milliseconds), max(milliseconds) + 1
    if isinstance(condition, EqualTo | EqualNullSafe | In):
        return _stored(_stored(wanted, earliest, None), None, latest)
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return _stored(wanted, earliest, None)
    if isinstance(condition, LessThan | LessThanOrEqual):
        return _stored(wanted, None, latest)
    return wanted


def _stored(wanted: WantedRows, earliest: int | None, latest: int | None) -> WantedRows:
    if earliest is not None:
        known = wanted.stored_from
        wanted = replace(wanted, stored_from=earliest if known is None else max(known, earliest))
    if latest is not None:
        known = wanted.stored_to
        wanted = replace(wanted, stored_to=latest if known is None else min(known, latest))
    return wanted


def _narrow_tags(wanted: WantedRows, condition: Filter) -> WantedRows:
    values = _values(condition, str)
    if values is None or not all(map(_is_one_tag, values)):
        return wanted
    return replace(wanted, tags=_both(wanted.tags, values))


def _is_one_tag(text: str) -> bool:
    """Return whether a text, used as a tag expression, selects exactly this tag."""
    return text not in ("", SUBSCRIBE_ALL) and bool(text.strip("|")) and _parsed(text) == {text}


def _parsed(text: str) -> frozenset[str]:
    try:
        return parse_tags(text)
    except ValueError:
        return frozenset()


def _values(condition: Filter, kind: type) -> frozenset[Any] | None:
    """Return the values that a column may have; None for another kind of condition."""
    if isinstance(condition, In):
        # NULL among the values matches nothing.
        values = [value for value in condition.value if value is not None]
    elif isinstance(condition, EqualTo | EqualNullSafe):
        values = [condition.value]
    else:
        return None
    return frozenset(values) if all(_is(value, kind) for value in values) else None


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _both(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _has(known: frozenset[Any] | None, value: object) -> bool:
    return known is None or value in known
