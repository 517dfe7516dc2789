"""Queue offsets as JSON: in options, in a stream's checkpoint and in its progress.

    {"Orders": {"broker-a:0": 42, "broker-a:1": 17, "broker-b:0": 0}}

The key of a queue is its broker's name, a colon and the queue id. Keys are sorted, so that equal
offsets give equal text: Spark compares the text. Pure; used by the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from pyromq.base.log_lines import first_few
from pyromq.spark.origins.origin import Queue

Offsets: TypeAlias = dict[Queue, int]
OffsetsByTopic: TypeAlias = dict[str, dict[str, int]]

_MAX_OFFSET: Final = 2**63 - 1
#: Queues that an error names.
_MAX_NAMED_QUEUES: Final = 5


class OffsetsError(ValueError):
    """Invalid offsets or queues; the message shows an example."""


def offsets_to_dict(offsets: Mapping[Queue, int]) -> OffsetsByTopic:
    """Return offsets as Spark stores them: by topic and queue key, sorted."""
    by_topic: OffsetsByTopic = {}
    for queue in sorted(offsets):
        by_topic.setdefault(queue.topic, {})[queue_key(queue)] = offsets[queue]
    return by_topic


def offsets_from_dict(by_topic: Mapping[str, Any]) -> Offsets:
    """Undo `offsets_to_dict`. Raises OffsetsError."""
    return {
        queue: _offset(queue, value)
        for topic, by_key in by_topic.items()
        for queue, value in _entries(topic, by_key)
    }


def offsets_from_json(text: str) -> Offsets:
    """Parse offsets that a user wrote. Raises OffsetsError."""
    return offsets_from_dict(_json_object(text, '{"topic": {"broker-a:0": 42}}'))


def queues_from_json(text: str) -> list[Queue]:
    """Parse `{"topic": ["broker-a:0", "broker-a:1"]}`; sorted. Raises OffsetsError."""
    expected = '{"topic": ["broker-a:0", "broker-a:1"]}'
    queues: set[Queue] = set()
    for topic, keys in _json_object(text, expected).items():
        if not isinstance(keys, list):
            raise OffsetsError(f"topic {topic!r} needs a list of queues: expected {expected}")
        queues.update(parse_queue_key(topic, key) for key in keys)
    return sorted(queues)


def queue_key(queue: Queue) -> str:
    """Return the key of a queue, such as `broker-a:0`."""
    return f"{queue.broker_name}:{queue.queue_id}"


def parse_queue_key(topic: str, key: object) -> Queue:
    """Undo `queue_key`. A broker's name may contain colons. Raises OffsetsError."""
    if isinstance(key, str):
        broker_name, _, number = key.rpartition(":")
        if broker_name and number.isascii() and number.isdigit():
            return Queue(topic, broker_name, int(number))
    raise OffsetsError(
        f"{key!r:.80} of topic {topic!r} is not a queue: expected broker name and queue id, for "
        "example broker-a:0"
    )


def name_queues(queues: Iterable[Queue]) -> str:
    """Return the first few queues as text, and the number of the others."""
    return first_few(sorted(queues), _MAX_NAMED_QUEUES)


def _json_object(text: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OffsetsError(f"invalid JSON ({error}): expected {expected}") from error
    if not isinstance(value, dict) or not value:
        raise OffsetsError(f"not a JSON object with topics: expected {expected}")
    return value


def _entries(topic: str, by_key: object) -> list[tuple[Queue, object]]:
    if not isinstance(by_key, Mapping):
        raise OffsetsError(
            f'topic {topic!r} needs queues with offsets: expected {{"topic": {{"broker-a:0": 42}}}}'
        )
    return [(parse_queue_key(topic, key), value) for key, value in by_key.items()]


def _offset(queue: Queue, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_OFFSET:
        raise OffsetsError(f"{value!r:.40} for queue {queue} is not an offset: expected a number")
    return value
