"""Message properties: `name \\x01 value \\x02 name \\x01 value ...` in UTF-8.

Rules
1. The separator behind the last property may be missing (Java writes none).
2. A piece without `\\x01`, or with nothing before or behind it, is no property, as in
   Java. Of a name that stands twice, the last one counts.
3. At most 32,767 bytes fit in a record.

Pure. Hot paths work on the text itself; dictionaries are for everyone else.
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
#: Of a half that was put back: where it first stood in the queue of halves.
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
#: Seconds for which a producer is not asked about its transaction.
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
#: Of a request and its reply: for how many milliseconds somebody waits.
TTL: Final = "TTL"
#: When a reply was taken by who had asked, in milliseconds.
ARRIVE_TIME: Final = "ARRIVE_TIME"
#: What kind of message it is: `REPLY`, or another one.
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"
KEY_SEPARATOR: Final = " "

#: How these properties start in a text of properties.
TAGS_START: Final = TAGS + NAME_VALUE_SEPARATOR
WAIT_START: Final = WAIT + NAME_VALUE_SEPARATOR
DELAY_START: Final = DELAY + NAME_VALUE_SEPARATOR
CLUSTER_START: Final = CLUSTER + NAME_VALUE_SEPARATOR
UNIQ_KEY_START: Final = UNIQ_KEY + NAME_VALUE_SEPARATOR
TRAN_MSG_START: Final = TRAN_MSG + NAME_VALUE_SEPARATOR
#: What clients send by default: the broker responds after the flush that its settings ask for.
WAIT_TRUE: Final = WAIT_START + "true"


def decode_properties(text: str | bytes) -> dict[str, str]:
    """The properties as a dictionary; bytes that are no UTF-8 become U+FFFD as in Java."""
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    properties: dict[str, str] = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


class PropertyPicker:
    """Finds a few properties among a record's many, without decoding the others."""

    __slots__ = ("_needles",)

    def __init__(self, names: Iterable[str]) -> None:
        self._needles = [(name, f"\x02{name}\x01".encode()) for name in names]

    def pick(self, raw: bytes) -> dict[str, str]:
        """Those of the names that are there, with what `decode_properties` says of them."""
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
    """The bytes for a record or a request; no separator at the end, as Java writes them."""
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
