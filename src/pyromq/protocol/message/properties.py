"""Encode and decode message properties: `name \\x01 value \\x02 name \\x01 value ...` in UTF-8.

Rules
1. The separator after the last property is optional (Java omits it).
2. As in Java, text without `\\x01`, or with an empty name or value, is skipped. If a name occurs
   twice, the last one wins.
3. At most 32,767 bytes fit in a record.

Pure. Hot paths search the text itself; other callers use dictionaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
MAX_PROPERTIES: Final = 0x7FFF

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
CLUSTER: Final = "CLUSTER"
UNIQ_KEY: Final = "UNIQ_KEY"
TRAN_MSG: Final = "TRAN_MSG"
#: The original queue offset of a half message that the broker wrote back to the half topic.
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
#: Seconds during which the broker does not check a transaction with its producer.
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP: Final = "PGROUP"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
CORRELATION_ID: Final = "CORRELATION_ID"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
#: How long the requester waits for a reply, in milliseconds. In requests and replies.
TTL: Final = "TTL"
#: When the requester received the reply (ms since the epoch).
ARRIVE_TIME: Final = "ARRIVE_TIME"
#: The kind of message; `REPLY` marks a reply.
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
#: Names the dead letter that a message is a copy of. pyromq's own.
RESENT_FROM: Final = "PYROMQ_RESENT_FROM"
KEY_SEPARATOR: Final = " "

#: A property's name and separator, to search for it in the text.
TAGS_START: Final = TAGS + NAME_VALUE_SEPARATOR
WAIT_START: Final = WAIT + NAME_VALUE_SEPARATOR
DELAY_START: Final = DELAY + NAME_VALUE_SEPARATOR
CLUSTER_START: Final = CLUSTER + NAME_VALUE_SEPARATOR
UNIQ_KEY_START: Final = UNIQ_KEY + NAME_VALUE_SEPARATOR
TRAN_MSG_START: Final = TRAN_MSG + NAME_VALUE_SEPARATOR
#: Clients send this by default: the broker responds after the flush that its settings require.
WAIT_TRUE: Final = WAIT_START + "true"


def decode_properties(text: str | bytes) -> dict[str, str]:
    """Decode properties into a dictionary. As in Java, invalid UTF-8 becomes U+FFFD."""
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    properties: dict[str, str] = {}
    for item in text.split(PROPERTY_SEPARATOR):
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


class PropertyPicker:
    """Finds a few properties of a record without decoding the others."""

    __slots__ = ("_needles",)

    def __init__(self, names: Iterable[str]) -> None:
        self._needles = [(name, f"\x02{name}\x01".encode()) for name in names]

    def pick(self, raw: bytes) -> dict[str, str]:
        """Return the wanted properties that exist, with the values of `decode_properties`."""
        text = b"".join((b"\x02", raw, b"\x02"))
        found = {}
        for name, needle in self._needles:
            start = text.rfind(needle)
            while start >= 0:
                value_start = start + len(needle)
                value = text[value_start : text.index(b"\x02", value_start)]
                if value:
                    found[name] = str(value, "utf-8", "replace")
                    break
                start = text.rfind(needle, 0, start)
        return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties for a record or a request, like Java without a separator at the end."""
    return PROPERTY_SEPARATOR.join(
        f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()
    ).encode()


def property_pattern(names: Iterable[str]) -> str:
    """Return a regular expression that matches any of these properties in a text.

    A match includes the separator before the property. The value is not captured.
    """
    alternatives = "|".join(map(re.escape, names))
    separator = PROPERTY_SEPARATOR
    return f"(?:^|{separator})(?:{alternatives}){NAME_VALUE_SEPARATOR}[^{separator}]*"


def waits_for_store(properties: Mapping[str, str]) -> bool:
    """Whether a send waits for an fsync or a replica: WAIT is true, or missing."""
    return properties.get(WAIT, "true").lower() == "true"
