"""Filters that read records."""

from __future__ import annotations

from pyromq.protocol.filter.bloom import BloomFilter, BloomFilterData
from pyromq.protocol.filter.by_properties import KnownBits, PropertyFilter, RetryFilter
from pyromq.protocol.filter.sql import compile_sql
from pyromq.protocol.filter.tags import TagFilter
from pyromq.protocol.java.string_hash import java_hash
from tests.support.records import make_record

BLOOM = BloomFilter(20, 32)


def record(**properties: str) -> bytes:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return make_record(properties=raw.encode())


def matches(wanted: PropertyFilter | RetryFilter, data: bytes, tags_code: int = 0) -> bool:
    return wanted.matches(
        tags_code, 100, len(data), lambda offset, size: data[offset - 100 : offset - 100 + size]
    )


def test_filter_matches_as_the_expression_does() -> None:
    wanted = PropertyFilter(compile_sql("price > 10 AND TAGS = 'book'"))
    assert matches(wanted, record(price="11", TAGS="book", other="x"))
    assert not matches(wanted, record(price="9", TAGS="book"))
    assert not matches(wanted, record())


def test_many_names_are_found_as_few_are() -> None:
    text = " OR ".join(f"p{number} = 'x'" for number in range(50))
    wanted = PropertyFilter(compile_sql(text))
    assert matches(wanted, record(p49="x", a="1"))
    assert not matches(wanted, record(p50="x", p49="y"))
    twice = record(p1="x", q1="y").replace(b"q1", b"p1")
    assert not matches(wanted, twice), "the last one counts"


def test_a_missing_record_is_let_through() -> None:
    wanted = PropertyFilter(compile_sql("FALSE"))
    assert wanted.matches(0, 0, 500, lambda offset, size: b"")
    assert not matches(wanted, record(a="5"))


def test_bit_maps_rule_out() -> None:
    data = BLOOM.generate("group#topic")
    bit_map = BLOOM.empty_map()
    wanted = PropertyFilter(compile_sql("a > 1"), KnownBits(BLOOM, data, 1000))
    assert wanted.rules_out(1001, bytes(bit_map))
    assert not wanted.rules_out(1000, bytes(bit_map)), "it may be older than the consumer"
    assert not wanted.rules_out(1001, b""), "nobody has evaluated anything"
    assert not wanted.rules_out(1001, bytes(1)), "the map is of another filter"
    BLOOM.add(data.positions, bit_map)
    assert not wanted.rules_out(1001, bytes(bit_map))


def test_bits_of_another_filter_rule_nothing_out() -> None:
    expression = compile_sql("a > 1")
    empty = bytes(BLOOM.empty_map())
    other = BloomFilterData((1,), BLOOM.bit_count)
    assert not PropertyFilter(expression, KnownBits(BLOOM, other, 0)).rules_out(5, empty)
    assert not PropertyFilter(expression).rules_out(5, empty)


class Filters:
    """Return the only filter of the group."""

    def message_filter(self, topic: str, group: str) -> PropertyFilter | None:
        if (topic, group) == ("Orders", "group"):
            return PropertyFilter(compile_sql("a = 5"))
        return None


def test_retried_messages_are_filtered_by_their_first_topic() -> None:
    wanted = RetryFilter(None, Filters(), "group")
    assert matches(wanted, record(RETRY_TOPIC="Orders", a="5"))
    assert not matches(wanted, record(RETRY_TOPIC="Orders", a="6"))
    assert matches(wanted, record(RETRY_TOPIC="Others", a="6")), "the group takes all of these"
    assert matches(wanted, record(a="6")), "nobody knows where it comes from"
    assert not wanted.rules_out(1, bytes(BLOOM.empty_map()))


def test_retried_messages_are_also_filtered_by_tags() -> None:
    wanted = RetryFilter(TagFilter.of("A"), Filters(), "group")
    assert matches(wanted, record(), java_hash("A"))
    assert not matches(wanted, record(), java_hash("B"))
    assert RetryFilter(None, Filters(), "group").matches(0, 0, 9, lambda offset, size: b"")


def test_filters_of_the_same_pull_are_equal() -> None:
    wanted = RetryFilter(TagFilter.of("A"), Filters(), "group")
    assert wanted == RetryFilter(TagFilter.of("A"), Filters(), "group")
    assert hash(wanted) == hash(RetryFilter(TagFilter.of("A"), Filters(), "group"))
    assert wanted != RetryFilter(TagFilter.of("B"), Filters(), "group")
    assert wanted != RetryFilter(TagFilter.of("A"), Filters(), "other")
