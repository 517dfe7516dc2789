"""Property values of many rows: what Java reads, wherever separators are."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.protocol.message import joined_properties
from pyromq.protocol.message.bulk import Spans, read_columns, record_starts
from pyromq.protocol.message.joined_properties import (
    JoinedProperties,
    find_property,
    last_property,
)
from tests.support.examples import examples
from tests.support.records import make_record, positions

#: Few different bytes, so that separators and names meet in all ways.
properties_like = st.lists(
    st.sampled_from(
        [
            b"\x01",
            b"\x02",
            b" ",
            b"KEYS",
            b"KEYS\x01",
            b"\x02KEYS\x01",
            b"UNIQ_KEY\x01",
            b"UNIQ_KEY",
            b"LONG_NAME_OF_ALL",
            b"LONG_NAME_OF_ALL\x01",
            b"k",
            b"v",
            b"\x00",
            b"\xc3\xa9",
        ]
    ),
    max_size=12,
).map(b"".join)
names = st.sampled_from([b"KEYS", b"UNIQ_KEY", b"LONG_NAME_OF_ALL", b"k", b"absent"])


@pytest.mark.parametrize("many", [False, True])
@given(rows=st.lists(properties_like, max_size=8), name=names, between=st.sampled_from([0, 3]))
@settings(max_examples=examples(300))
def test_a_property_is_found_as_java_finds_it(
    many: bool, rows: list[bytes], name: bytes, between: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_properties, "_MIN_ROWS_FOR_NUMPY", 1 if many else 1000)
        check_properties(rows, name, b"." * between)


def check_properties(rows: list[bytes], name: bytes, between: bytes) -> None:
    buffer = between.join([b"", *rows, b""])
    starts = positions([row + between for row in rows])
    properties = Spans(
        np.array([len(between) + start for start in starts], np.int64),
        np.array([len(row) for row in rows], np.int64),
    )
    found = find_property(buffer, properties, name)
    for row, text in enumerate(rows):
        expected = as_java_reads(text).get(name)
        assert (found.lengths[row] == -1) == (expected is None)
        assert last_property(text, name) == (expected or b"")
        if expected is not None:
            assert span(buffer, found, row) == expected
            assert found.starts[row] >= properties.starts[row]
    word_rows, words = JoinedProperties(buffer, properties).find_words(name)
    assert [(row, span(buffer, words, at)) for at, row in enumerate(word_rows.tolist())] == [
        (row, word)
        for row, text in enumerate(rows)
        for word in as_java_reads(text).get(name, b"").split(b" ")
        if word
    ]


def test_many_rows_of_all_lengths() -> None:
    rows = [b"KEYS\x01" + b"k" * (number % 300) + b"\x02N\x01v" for number in range(700)]
    check_properties(rows, b"KEYS", b"")
    check_properties(rows[:1] * 200, b"N", b"")
    check_properties([*rows, b"KEYS\x01" + b"k" * 30_000], b"KEYS", b"..")


@pytest.mark.parametrize("many", [False, True])
def test_spans_outside_the_buffer_are_clipped(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_properties, "_MIN_ROWS_FOR_NUMPY", 1 if many else 1000)
    buffer = b"KEYS\x01value"
    spans = Spans(np.array([-9, 0, 0, 99]), np.array([4, 99, 7, 5]))
    found = find_property(buffer, spans, b"KEYS")
    assert found.lengths.tolist() == [-1, 5, 2, -1]


def test_no_rows() -> None:
    none = np.zeros(0, np.int64)
    assert find_property(b"", Spans(none, none), b"KEYS").lengths.tolist() == []


def test_no_view_of_a_mapping_is_left() -> None:
    record = make_record(properties=b"KEYS\x01a b")
    mapping = mmap.mmap(-1, 4096)
    mapping[: 2 * len(record)] = record * 2
    columns = read_columns(mapping, record_starts(mapping)[0])
    found = find_property(mapping, columns.properties, b"KEYS")
    mapping.close()
    assert found.lengths.tolist() == [3, 3]


def span(buffer: bytes, spans: Spans, row: int) -> bytes:
    start = int(spans.starts[row])
    return buffer[start : start + int(spans.lengths[row])]


def as_java_reads(properties: bytes) -> dict[bytes, bytes]:
    found = {}
    for item in properties.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if name and value:
            found[name] = value
    return found
