"""Filter by tags: `*`, or tags joined by `||`, compared by Java's hash.

A consume-queue entry holds the hash of its message's tags, so a broker filters pulls without
reading records. Two tags may share a hash, so clients compare the text as well.

`TagsCodes` computes that hash when a message is put. It searches the properties without decoding
them; producers write tags at any position (Java last). As in Java, the last TAGS with a value wins.
`store.recovery.dispatch` computes the same hash from the records of a log.

Pure. Used by the broker's pull and send handlers, by the store, and by clients to describe a
subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import AnyStr, Generic

from pyromq.base.memo import Memo
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.message.properties import PROPERTY_SEPARATOR, TAGS_START
from pyromq.protocol.message.units import MAX_EXTENSION_ADDRESS

SUBSCRIBE_ALL = "*"
#: The characters that Java's trim removes; other white space is part of a tag.
_TRIMMED = "".join(map(chr, range(0x21)))
TAG_EXPRESSION_TYPE = "TAG"


class SubscriptionError(ValueError):
    """An expression without a tag."""


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression is about tags, which is the default type."""
    return not expression_type or expression_type == TAG_EXPRESSION_TYPE


def parse_tags(expression: str | None) -> frozenset[str]:
    """Return the tags of an expression; an empty set means all messages."""
    if expression is None or expression == "" or expression == SUBSCRIBE_ALL:
        return frozenset()
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip(_TRIMMED)))
    if not tags:
        raise SubscriptionError(f"{expression!r:.80} has no tags: write * or tagA || tagB")
    return tags


class TagFilter:
    """Accepts messages whose tags have one of these hashes."""

    __slots__ = ("codes",)

    #: The consume-queue entry is enough.
    reads_records = False

    def __init__(self, codes: Iterable[int]) -> None:
        self.codes = frozenset(codes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self.codes == other.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    @classmethod
    def of(cls, expression: str | None) -> TagFilter | None:
        """Return the filter for an expression, or None if it accepts all messages."""
        tags = parse_tags(expression)
        return cls(map(java_hash, tags)) if tags else None

    def rules_out(self, store_timestamp: int, bit_map: bytes) -> bool:  # noqa: ARG002
        """Return False: bit maps do not cover tags."""
        return False

    def matches(
        self,
        tags_code: int,
        physical_offset: int,  # noqa: ARG002 - the tags decide
        size: int,  # noqa: ARG002
        read: Callable[[int, int], bytes],  # noqa: ARG002
    ) -> bool:
        """Return whether the filter accepts a message with this hash of tags."""
        # An unresolved extension address means that the hash is lost: let the client decide.
        return tags_code in self.codes or tags_code <= MAX_EXTENSION_ADDRESS


class TagsCodes(Generic[AnyStr]):
    """Finds the hash of a message's tags; caches the hashes of recent ones."""

    __slots__ = ("_codes", "_end", "_start")

    def __init__(self, start: AnyStr, end: AnyStr, code_of: Callable[[AnyStr], int]) -> None:
        self._start: AnyStr = start
        self._end: AnyStr = end
        #: Hashes by tags. Never has empty tags.
        self._codes: Memo[AnyStr, int] = Memo(code_of)

    def find(self, properties: AnyStr) -> int:
        """Return Java's hash of the tags, or 0 without tags."""
        # Two partitions take 200 ns, rfind and find with their positions 300.
        before, start, rest = properties.rpartition(self._start)
        if not start:
            return 0
        if not before or before[-1] == self._end[0]:
            code = self._codes.get(rest.partition(self._end)[0])
            if code is not None:
                return code
        return self._search(properties, len(before))

    def _search(self, properties: AnyStr, at: int) -> int:
        """Return the hash of tags that are not cached; `at` is the last place to look at."""
        start = self._start
        while at >= 0:
            begin = at + len(start)
            end = properties.find(self._end, begin)
            if end < 0:
                end = len(properties)
            # Skip a match inside another name or value, and one without a value.
            if begin < end and (not at or properties[at - 1 : at] == self._end):
                return self._codes[properties[begin:end]]
            at = properties.rfind(start, 0, at)
        return 0


def text_tags_codes() -> TagsCodes[str]:
    """Return a finder for the properties of a request."""
    return TagsCodes(TAGS_START, PROPERTY_SEPARATOR, java_hash)


def raw_tags_codes() -> TagsCodes[bytes]:
    """Return a finder for the properties of a record or a batch."""
    return TagsCodes(
        TAGS_START.encode(),
        PROPERTY_SEPARATOR.encode(),
        lambda tags: java_hash(str(tags, "utf-8", "replace")),
    )
