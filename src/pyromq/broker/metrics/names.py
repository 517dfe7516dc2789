"""Texts of labels: RocketMQ 5.x' values for systems, versions, consume modes and message types.

Pure. Used by the collectors.
"""

from __future__ import annotations

from typing import Final

from pyromq.protocol import names
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC

#: Topics whose messages come from the broker, not from producers.
NOT_FROM_PRODUCERS: Final = (names.RETRY_TOPIC_PREFIX, names.DEAD_LETTER_TOPIC_PREFIX)
#: The number of V4_0_0_SNAPSHOT; from there on each version has two numbers.
_FIRST_NUMBER: Final = 212


def boolean(value: bool) -> str:
    """Return a truth value as a label has it."""
    return "true" if value else "false"


def is_system(topic: str, group: str = "") -> bool:
    """Return whether topic or group belong to the system."""
    return names.is_system_topic(topic) or (bool(group) and names.is_system_group(group))


def message_type(topic: str, *, is_ordered: bool) -> str:
    """Return the type of a topic's messages; 4.9 does not know it for each message."""
    if topic == SCHEDULE_TOPIC:
        return "delay"
    if topic in (TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC):
        return "transaction"
    return "fifo" if is_ordered else "normal"


def version_name(number: int) -> str:
    """Return the name of a client's version number, such as `v4_9_7`."""
    index, is_release = divmod(number - _FIRST_NUMBER, 2)
    if not 0 <= index < 600:
        return str(number)
    name = f"v{4 + index // 100}_{index // 10 % 10}_{index % 10}"
    return name if is_release else f"{name}_snapshot"
