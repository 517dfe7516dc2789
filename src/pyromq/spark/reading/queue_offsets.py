"""Offsets of queues as JSON: in options, in a stream's checkpoint and in its progress.

    {"Orders": {"broker-a:0": 42, "broker-a:1": 17, "broker-b:0": 0}}

A queue's key is its broker's name, a colon and its number. Keys are written in order, so
equal offsets are equal text: Spark compares the text. Pure; used by the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from pyromq.spark.origins.origin import Queue

Offsets: TypeAlias = dict[Queue, int]
OffsetsByTopic: TypeAlias = dict[str, dict[str, int]]

_LARGEST = 2**63 - 1


class OffsetsError(ValueError):
    """Text or values that are no offsets of queues; the message shows what is expected."""


def offsets_to_dict(offsets: Mapping[Queue, int]) -> OffsetsByTopic:
    """Offsets as Spark keeps them: by topic and queue key, in order."""
    by_topic: OffsetsByTopic = {}
    for queue in sorted(offsets):
        by_topic.setdefault(queue.topic, {})[queue_key(queue)] = offsets[queue]
    return by_topic


def offsets_from_dict(by_topic: Mapping[str, Any]) -> Offsets:
    """What `offsets_to_dict` made; raises OffsetsError for anything else."""
    return {
        queue: _offset(queue, value)
        for topic, by_key in by_topic.items()
        for queue, value in _entries(topic, by_key)
    }


def offsets_from_json(text: str) -> Offsets:
    """Offsets that a user wrote."""
    return offsets_from_dict(_json_object(text, '{"topic": {"broker-a:0": 42}}'))


def queues_from_json(text: str) -> list[Queue]:
    """Queues that a user wrote: `{"topic": ["broker-a:0", "broker-a:1"]}`; sorted."""
    expected = '{"topic": ["broker-a:0", "broker-a:1"]}'
    queues: set[Queue] = set()
    for topic, keys in _json_object(text, expected).items():
        if not isinstance(keys, list):
            raise OffsetsError(f"topic {topic!r} has no list of queues: expected {expected}")
        queues.update(parse_queue_key(topic, key) for key in keys)
    return sorted(queues)


def queue_key(queue: Queue) -> str:
    """`broker-a:0`"""
    return f"{queue.broker_name}:{queue.queue_id}"


def parse_queue_key(topic: str, key: object) -> Queue:
    """The queue of a topic that `queue_key` names; a broker's name may have colons."""
    if isinstance(key, str):
        broker_name, _, number = key.rpartition(":")
        if broker_name and number.isascii() and number.isdigit():
            return Queue(topic, broker_name, int(number))
    raise OffsetsError(
        f"{key!r:.80} of topic {topic!r} is no queue: expected a broker's name and the queue's "
        "number, as broker-a:0"
    )


def name_queues(queues: Iterable[Queue], most: int = 5) -> str:
    """The names of some queues for a message: the first few, and how many more."""
    names = [str(queue) for queue in sorted(queues)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OffsetsError(f"it is no JSON ({error}): expected {expected}") from error
    if not isinstance(value, dict) or not value:
        raise OffsetsError(f"it is no JSON object with topics: expected {expected}")
    return value


def _entries(topic: str, by_key: object) -> list[tuple[Queue, object]]:
    if not isinstance(by_key, Mapping):
        raise OffsetsError(
            f"topic {topic!r} has no queues with offsets: "
            'expected {"topic": {"broker-a:0": 42}}'
        )
    return [(parse_queue_key(topic, key), value) for key, value in by_key.items()]


def _offset(queue: Queue, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        raise OffsetsError(f"{value!r:.40} of queue {queue} is no offset: expected a number")
    return value
