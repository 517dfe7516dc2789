"""The filters that look into records: by an SQL92 expression, and the one of retried messages.

They read a record's properties only, of these only the ones that the expression names, and
no record at all that the message's bit map rules out. A record that cannot be read is let
through: its reader decides what becomes of it.

An expression that names many properties has them all decoded. Several groups that wait for one
message read it one after the other: `_decoded` keeps the last ones.

Pure; made by the broker's filter table and its pull handler, called by the store's reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pyromq.base.memo import Memo
from pyromq.protocol.filter.bloom import BloomFilter, BloomFilterData
from pyromq.protocol.filter.sql import SqlExpression
from pyromq.protocol.filter.tags import TagFilter
from pyromq.protocol.message.properties import (
    MAX_PROPERTIES,
    RETRY_TOPIC,
    PropertyPicker,
    decode_properties,
)
from pyromq.protocol.message.record import read_raw_properties

#: Gives so many bytes of the log from an offset on.
Read = Callable[[int, int], bytes]

#: To find so many properties one by one costs more than to decode all.
_MANY_NAMES: Final = 8
_MAX_DECODED: Final = 16
_decoded: Final[Memo[bytes, dict[str, str]]] = Memo(
    decode_properties, max_entries=_MAX_DECODED, max_length=MAX_PROPERTIES
)


class KnownBits(NamedTuple):
    """Where a consumer is found in the bit maps of messages, and since when it is in there."""

    bloom: BloomFilter
    data: BloomFilterData
    born_timestamp: int


class PropertyFilter:
    """Wants the messages for which an expression is true."""

    __slots__ = ("_bits", "_properties_of", "expression")

    reads_records = True

    def __init__(self, expression: SqlExpression, bits: KnownBits | None = None) -> None:
        self.expression = expression
        self._properties_of: Callable[[bytes], dict[str, str]] = (
            PropertyPicker(expression.names).pick
            if len(expression.names) < _MANY_NAMES
            else _decoded.__getitem__
        )
        if bits is not None and not bits.bloom.is_valid(bits.data):
            bits = None
        self._bits = bits

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        """Whether the expression was evaluated when the message was stored, and not true."""
        bits = self._bits
        return (
            bits is not None
            and store_timestamp > bits.born_timestamp
            and len(bit_map) * 8 == bits.data.bit_count
            and not bits.bloom.is_hit(bits.data.positions, bit_map)
        )

    def matches(
        self,
        tags_code: int,  # noqa: ARG002 - tags are a property, too
        physical_offset: int,
        size: int,
        read: Read,
    ) -> bool:
        """Whether the message of this record is wanted."""
        raw = read_raw_properties(read, physical_offset, size)
        return raw is None or self.wants(raw)

    def wants(self, raw_properties: bytes) -> bool:
        """Whether a message with these properties is wanted."""
        return self.expression.matches(self._properties_of(raw_properties))


class FilterLookup(Protocol):
    """The filters that groups have for topics."""

    def message_filter(self, topic: str, group: str) -> PropertyFilter | None:
        """How a group's messages of a topic are filtered; None when it takes all."""


class RetryFilter:
    """Wants a group's retried messages by what the group said of the topics they come from."""

    __slots__ = ("_filters", "_group", "_tags")

    reads_records = True
    _topic = PropertyPicker([RETRY_TOPIC])

    def __init__(self, tags: TagFilter | None, filters: FilterLookup, group: str) -> None:
        self._tags = tags
        self._filters = filters
        self._group = group

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RetryFilter)
            and self._tags == other._tags
            and self._group == other._group
        )

    def __hash__(self) -> int:
        return hash((self._tags, self._group))

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:  # noqa: ARG002
        """Bit maps are about a message's own topic, not about that which it comes from."""
        return False

    def matches(self, tags_code: int, physical_offset: int, size: int, read: Read) -> bool:
        """Whether the message of this record is wanted."""
        if self._tags is not None and not self._tags.matches(
            tags_code, physical_offset, size, read
        ):
            return False
        raw = read_raw_properties(read, physical_offset, size)
        if raw is None:
            return True
        topic = self._topic.pick(raw).get(RETRY_TOPIC)
        if topic is None:
            return True
        wanted = self._filters.message_filter(topic, self._group)
        return wanted is None or wanted.wants(raw)
