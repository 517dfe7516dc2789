"""Decode and validate the tables that a replica copies from its master.

The answer of a master counts as hostile input: it may be garbled, or come from a process that took
over the master's address. A function here returns a table that its owner can take over as it is, or
raises CopyError or BodyError.

    | answer                           | table                                            |
    | -------------------------------- | ------------------------------------------------ |
    | GET_ALL_TOPIC_CONFIG             | topics with their version; has SELF_TEST_TOPIC   |
    | GET_ALL_SUBSCRIPTIONGROUP_CONFIG | groups with their version; has a group           |
    | GET_ALL_CONSUMER_OFFSET          | `topic@group` -> queue id -> offset              |
    | GET_ALL_DELAY_OFFSET             | delay level -> queue offset                      |

1. An answer without the expected object is refused: taken for an empty table, it would wipe the
   replica's.
2. A value out of range refuses the whole answer.
3. An entry whose name is unusable is left out: RocketMQ's brokers accept names from heartbeats that
   could leave the store's directory, and one of them must not stop the copy of all others.

Limits on the number of entries are left to the tables. The filters and deletions of a pyromq master
are decoded by `state.filters` and `state.deleted_topics`.

Pure. `services.metadata_sync` calls these functions in a thread: a large table takes a second.
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyromq.broker.config import MAX_QUEUES
from pyromq.protocol.java.fastjson import parse_json
from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.names import MAX_GROUP_LENGTH, RETRY_TOPIC_PREFIX, SELF_TEST_TOPIC
from pyromq.protocol.wire.bodies import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

Table = TypeVar("Table")

#: The highest permission: priority, read, write and inherit.
MAX_PERMISSION: Final = 15
#: Separates topic and group in a key of the offsets.
SEPARATOR: Final = "@"
#: Around and between the pairs in the compact JSON of the offsets.
_HEAD, _BETWEEN, _TAIL = b'{"offsetTable":{', b"},", b"}}}"
#: Pairs that are parsed in one call: a call on a large table would hold the GIL for a second.
_PAIRS_PER_PARSE: Final = 1024
#: No configuration has more delay levels.
_MAX_DELAY_LEVEL: Final = 1000
#: The retry topic of a group with the longest name.
_MAX_NAME_LENGTH: Final = MAX_GROUP_LENGTH + len(RETRY_TOPIC_PREFIX)
#: Safe as a directory. Wider than the rule for clients: names of brokers and clusters are topics.
_USABLE: Final = re.compile(r"(?!\.)[!-.0-\[\]-~]+")


class CopyError(ValueError):
    """A table of the master that cannot be taken over; the message says why."""


class Copy(NamedTuple, Generic[Table]):
    """A valid table, and the names of the entries that were left out of it."""

    table: Table
    left_out: list[str]


def is_usable(name: str) -> bool:
    """Return whether a topic or group of the master can be one of the replica."""
    return len(name) <= _MAX_NAME_LENGTH and _USABLE.fullmatch(name) is not None


def parsed(body: bytes, *fields: str, standard_json: bool = True) -> dict[str, Any]:
    """Return the JSON object of an answer, which must have these fields. Raises ValueError."""
    value = parse_json(body, standard_json=standard_json)
    for field in fields:
        if not isinstance(value, dict) or not isinstance(value.get(field), dict):
            raise CopyError(f"the answer has no {field}: {shorten(body)}")
    return value  # type: ignore[no-any-return]


def copied_topics(body: bytes) -> Copy[TopicConfigSerializeWrapper]:
    """Decode GET_ALL_TOPIC_CONFIG. Raises ValueError."""
    wrapper = TopicConfigSerializeWrapper.from_value(
        parsed(body, "topicConfigTable", "dataVersion")
    )
    topics, left_out = _usable(wrapper.topic_config_table)
    for name, topic in topics.items():
        fault = _topic_fault(name, topic)
        if fault is not None:
            raise CopyError(f"topic {name}: {fault}")
    if SELF_TEST_TOPIC not in topics:
        raise CopyError(f"{len(topics)} topics without {SELF_TEST_TOPIC}, which every broker has")
    return Copy(TopicConfigSerializeWrapper(topics, wrapper.data_version), left_out)


def copied_groups(body: bytes) -> Copy[SubscriptionGroupWrapper]:
    """Decode GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Raises ValueError."""
    wrapper = SubscriptionGroupWrapper.from_value(
        parsed(body, "subscriptionGroupTable", "dataVersion")
    )
    groups, left_out = _usable(wrapper.subscription_group_table)
    for name, group in groups.items():
        fault = _group_fault(name, group)
        if fault is not None:
            raise CopyError(f"group {name}: {fault}")
    if not groups:
        raise CopyError("no groups, but every broker has some of its own")
    return Copy(SubscriptionGroupWrapper(groups, wrapper.data_version), left_out)


class OffsetCopy(NamedTuple):
    """The valid offsets that changed, and the pairs that were left out of them."""

    table: dict[str, dict[int, int]]
    left_out: list[str]
    #: Hashes of the JSON of all pairs, for the next copy.
    pieces: frozenset[int]


def copied_offsets(body: bytes, known: frozenset[int] = frozenset()) -> OffsetCopy:
    """Decode GET_ALL_CONSUMER_OFFSET. Raises ValueError.

    Pairs whose JSON was in the last copy, with these `pieces`, are skipped: decoding takes 60 us
    per pair, and most groups commit in few of them.
    """
    pieces = _pieces_of(body)
    table: dict[str, dict[int, int]] = {}
    hashes = [hash(piece) for piece in pieces]
    changed = [piece for piece, number in zip(pieces, hashes, strict=True) if number not in known]
    try:
        for start in range(0, len(changed), _PAIRS_PER_PARSE):
            batch = _BETWEEN.join(changed[start : start + _PAIRS_PER_PARSE])
            table |= _decoded_offsets(_HEAD + batch + _TAIL)
    except ValueError:
        pieces = []  # not cut between two pairs
    if not pieces:
        table, hashes = _decoded_offsets(body), []
    offsets, left_out = {}, []
    for key, queues in table.items():
        topic, _, group = key.partition(SEPARATOR)
        if not (is_usable(topic) and is_usable(group)):
            left_out.append(key)
            continue
        for queue_id, offset in queues.items():
            if not 0 <= queue_id < MAX_QUEUES or offset < -1:
                raise CopyError(f"{key}: offset {offset} of queue {queue_id}")
        offsets[key] = queues
    return OffsetCopy(offsets, left_out, frozenset(hashes))


def _pieces_of(body: bytes) -> list[bytes]:
    """Return the JSON of each pair in the compact form of both brokers; nothing for others."""
    if not (body.startswith(_HEAD) and body.endswith(_TAIL) and len(body) > len(_HEAD + _TAIL)):
        return []
    return body[len(_HEAD) : -len(_TAIL)].split(_BETWEEN)


def _decoded_offsets(body: bytes) -> dict[str, dict[int, int]]:
    value = parsed(body, "offsetTable", standard_json=False)
    return ConsumerOffsetSerializeWrapper.from_value(value).offset_table


def copied_delay_offsets(body: bytes) -> dict[int, int]:
    """Decode GET_ALL_DELAY_OFFSET. Raises ValueError."""
    value = parsed(body, "offsetTable", standard_json=False)
    table = DelayOffsetSerializeWrapper.from_value(value).offset_table
    for level, offset in table.items():
        if not 0 < level <= _MAX_DELAY_LEVEL or offset < 0:
            raise CopyError(f"offset {offset} of delay level {level}")
    return table


def _usable(table: dict[str, Table]) -> tuple[dict[str, Table], list[str]]:
    left_out = [name for name in table if not is_usable(name)]
    if left_out:
        table = {name: item for name, item in table.items() if is_usable(name)}
    return table, left_out


def _topic_fault(name: str, topic: TopicConfig) -> str | None:
    if topic.topic_name != name:
        return f"its topicName is {shorten(topic.topic_name)}"
    if not (0 <= topic.read_queue_nums <= MAX_QUEUES and 0 <= topic.write_queue_nums <= MAX_QUEUES):
        return f"{topic.read_queue_nums} and {topic.write_queue_nums} queues, limit {MAX_QUEUES}"
    if not 0 <= topic.perm <= MAX_PERMISSION:
        return f"permission {topic.perm}, limit {MAX_PERMISSION}"
    return None


def _group_fault(name: str, group: SubscriptionGroupConfig) -> str | None:
    if group.group_name != name:
        return f"its groupName is {shorten(group.group_name)}"
    if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
        return f"{group.retry_queue_nums} retry queues, limit {MAX_QUEUES}"
    return None
