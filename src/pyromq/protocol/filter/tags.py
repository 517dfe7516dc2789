"""Filtering by tags: `*`, or tags joined by `||`, compared by Java's hash.

A consume-queue entry holds the hash of its message's tags, so a pull is filtered
without reading a record. Two tags may share a hash; the client compares the text.

Pure; used by the broker's pull handler, and by clients to describe a subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyromq.protocol.java_hash import java_hash
from pyromq.protocol.units import MAX_EXTENSION_ADDRESS

SUBSCRIBE_ALL = "*"
#: What Java's trim takes away: other spaces are part of a tag.
_TRIMMED = "".join(map(chr, range(0x21)))
TAG_EXPRESSION_TYPE = "TAG"


class SubscriptionError(ValueError):
    """An expression that names no tag."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression is one of tags, which it is when nothing is said."""
    return not expression_type or expression_type == TAG_EXPRESSION_TYPE


def parse_tags(expression: str | None) -> frozenset[str]:
    """The tags of an expression; none of them means all messages."""
    if expression is None or expression == "" or expression == SUBSCRIBE_ALL:
        return frozenset()
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip(_TRIMMED)))
    if not tags:
        raise SubscriptionError(f"{expression!r:.80} names no tag: write * or tagA || tagB")
    return tags


class TagFilter:
    """Wants the messages whose tags have one of these hashes."""

    __slots__ = ("codes",)

    #: The consume queue tells.
    reads_records = False

    def __init__(self, codes: Iterable[int]) -> None:
        self.codes = frozenset(codes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self.codes == other.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    @classmethod
    def of(cls, expression: str | None) -> TagFilter | None:
        """The filter of an expression; None when all messages are wanted."""
        tags = parse_tags(expression)
        return cls(map(java_hash, tags)) if tags else None

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:  # noqa: ARG002
        """No bit map tells of tags."""
        return False

    def matches(
        self,
        tags_code: int,
        physical_offset: int,  # noqa: ARG002 - the tags decide
        size: int,  # noqa: ARG002
        read: Callable[[int, int], bytes],  # noqa: ARG002
    ) -> bool:
        """Whether a message with this hash of tags is wanted."""
        # Of a message whose unit in the consume-queue extension is gone nobody knows the tags.
        return tags_code in self.codes or tags_code <= MAX_EXTENSION_ADDRESS
