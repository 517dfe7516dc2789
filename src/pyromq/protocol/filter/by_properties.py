"""Filters that read records: by an SQL92 expression, and for retried messages.

They read a record's properties only, decode only those that the expression names, and skip records
that the message's bit map rules out. A record that cannot be read is let through: its reader
handles the error.

For an expression with many names, all properties are decoded. If several groups wait for the same
message, they read it one after the other, so `_decoded` caches the last few.

Pure. Created by the broker's filter table and pull handler, called by the store's reader.
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

#: Reads bytes of the log: offset, size.
Read = Callable[[int, int], bytes]

#: From this many names on, decoding all properties costs less than finding each.
_MIN_NAMES_TO_DECODE_ALL: Final = 8
#: Messages whose properties `_decoded` caches.
_MAX_DECODED: Final = 16
_decoded: Final[Memo[bytes, dict[str, str]]] = Memo(
    decode_properties, max_entries=_MAX_DECODED, max_length=MAX_PROPERTIES
)


class KnownBits(NamedTuple):
    """A consumer's bits in the bit maps of messages, and since when maps include it."""

    bloom: BloomFilter
    data: BloomFilterData
    born_timestamp: int


class PropertyFilter:
    """Accepts messages for which an expression is true."""

    __slots__ = ("_bits", "_properties_of", "expression")

    reads_records = True

    def __init__(self, expression: SqlExpression, bits: KnownBits | None = None) -> None:
        self.expression = expression
        self._properties_of: Callable[[bytes], dict[str, str]] = (
            PropertyPicker(expression.names).pick
            if len(expression.names) < _MIN_NAMES_TO_DECODE_ALL
            else _decoded.__getitem__
        )
        if bits is not None and not bits.bloom.is_valid(bits.data):
            bits = None
        self._bits = bits

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:
        """Return whether the expression was evaluated at store time and was not true."""
        bits = self._bits
        return (
            bits is not None
            and store_timestamp > bits.born_timestamp
            and len(bit_map) * 8 == bits.data.bit_count
            and not bits.bloom.is_hit(bits.data.positions, bit_map)
        )

    def matches(
        self,
        tags_code: int,  # noqa: ARG002 - tags are also a property
        physical_offset: int,
        size: int,
        read: Read,
    ) -> bool:
        """Return whether the filter accepts the message of this record."""
        raw = read_raw_properties(read, physical_offset, size)
        return raw is None or self.wants(raw)

    def wants(self, raw_properties: bytes) -> bool:
        """Return whether the filter accepts a message with these properties."""
        return self.expression.matches(self._properties_of(raw_properties))


class FilterLookup(Protocol):
    """Looks up the filters of groups by topic."""

    def message_filter(self, topic: str, group: str) -> PropertyFilter | None:
        """Return a group's filter for a topic, or None if the group takes all messages."""


class RetryFilter:
    """Filters a group's retried messages by the group's filters for their original topics."""

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
        """Return False: bit maps cover a message's own topic, not its original one."""
        return False

    def matches(self, tags_code: int, physical_offset: int, size: int, read: Read) -> bool:
        """Return whether the filter accepts the message of this record."""
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
