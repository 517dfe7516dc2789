"""Many records at once must say what `decode_record` says one by one, or nothing."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.protocol.message import bulk
from pyromq.protocol.message.bulk import (
    RecordParts,
    Spans,
    few_values,
    read_columns,
    read_parts,
    record_starts,
)
from pyromq.protocol.message.record import (
    BLANK,
    BLANK_MAGIC,
    MAX_TOPIC,
    MESSAGE_MAGIC,
    MessageRecord,
    RecordError,
    decode_record,
)
from tests.support.examples import examples
from tests.support.records import make_record, positions

HEAD_FIELDS = (
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
)

longs = st.integers(-(1 << 63), (1 << 63) - 1)
records = st.builds(
    make_record,
    topic=st.text(st.characters(codec="ascii"), max_size=30),
    properties=st.binary(max_size=60),
    body=st.binary(max_size=40),
    physical_offset=longs,
    store_timestamp=longs,
    sys_flag=st.integers(0, 0x3F),
)


@given(st.lists(records, max_size=8))
def test_columns_are_what_the_record_decoder_reads(pieces: list[bytes]) -> None:
    log = b"".join(pieces)
    starts, end = record_starts(log)
    assert starts.tolist() == positions(pieces)
    assert end == len(log)
    columns = read_columns(log, starts)
    assert columns.valid.all()
    for row, start in enumerate(starts.tolist()):
        record = decode_record(log, start)
        assert [int(columns.column(name)[row]) for name in HEAD_FIELDS] == [
            getattr(record, name) for name in HEAD_FIELDS
        ]
        assert int(columns.column("total_size")[row]) == record.size
        assert span(log, columns.bodies, row) == record.body
        assert span(log, columns.topics, row) == record.topic.encode()
        assert span(log, columns.properties, row) == record.raw_properties
        assert set(span(log, columns.born_hosts(), row)) == set(b"B")
        assert set(span(log, columns.store_hosts(), row)) == set(b"S")
        assert len(span(log, columns.born_hosts(), row)) == (20 if record.sys_flag & 0x10 else 8)
        assert len(span(log, columns.store_hosts(), row)) == (20 if record.sys_flag & 0x20 else 8)
        assert read_parts(log, start) == RecordParts(
            record.physical_offset,
            record.sys_flag,
            record.store_timestamp,
            record.topic.encode(),
            record.raw_properties,
        )


@given(records, st.data())
@settings(max_examples=examples(300))
def test_damaged_bytes_are_no_rows(record: bytes, data: st.DataObject) -> None:
    damaged = bytearray(record)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    log = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) + data.draw(st.binary())
    starts = np.array([*data.draw(st.lists(st.integers(-5, len(log) + 5), max_size=4)), 0])
    columns = read_columns(log, starts)
    for row, start in enumerate(starts.tolist()):
        expected = decoded(log, start)
        assert bool(columns.valid[row]) == (expected is not None)
        assert (read_parts(log, start) is not None) == (expected is not None)
        for spans in (columns.bodies, columns.topics, columns.properties):
            assert 0 <= spans.starts[row] <= spans.starts[row] + spans.lengths[row] <= len(log)
            if expected is None:
                assert spans.lengths[row] == 0


@given(st.binary(max_size=400))
def test_random_bytes_are_read_within_their_bounds(log: bytes) -> None:
    starts = np.arange(-2, len(log) + 2)
    assert not read_columns(log, starts).valid.any()
    assert record_starts(log)[0].size == 0


@pytest.mark.parametrize("start", [-(1 << 63), -1, (1 << 63) - 1])
def test_starts_far_outside(start: int) -> None:
    columns = read_columns(make_record(), np.array([start, 0]))
    assert columns.valid.tolist() == [False, True]


def test_no_records() -> None:
    none = np.zeros(0, np.int64)
    assert read_columns(b"", none).valid.tolist() == []


@pytest.mark.parametrize(("field", "value"), [(0, 1), (0, -1), (4, 0), (84, -5), (84, 1 << 30)])
def test_a_lying_number_in_the_head(field: int, value: int) -> None:
    good = make_record()
    bad = good[:field] + (value & 0xFFFFFFFF).to_bytes(4, "big") + good[field + 4 :]
    columns = read_columns(bad + good, np.array([0, len(good)]))
    assert columns.valid.tolist() == [False, True]


def test_the_walk_stops_at_a_blank_record() -> None:
    record = make_record()
    log = record * 3 + BLANK.pack(500, BLANK_MAGIC) + bytes(492)
    starts, end = record_starts(log)
    assert starts.tolist() == [0, len(record), 2 * len(record)]
    assert end == 3 * len(record)


def test_the_walk_stops_at_what_is_not_whole() -> None:
    record = make_record()
    size = len(record)
    assert record_starts(record * 2 + record[:-1])[1] == 2 * size
    assert record_starts(record * 3, size, 3 * size - 1)[0].tolist() == [size]
    assert record_starts(record * 3, -1)[0].tolist() == []
    for lie in (0, 8, size + 1, 0xFFFFFFFF):
        assert record_starts(record + BLANK.pack(lie, MESSAGE_MAGIC) + bytes(size))[1] >= size
        assert len(record_starts(record + BLANK.pack(lie, MESSAGE_MAGIC) + bytes(80))[0]) == 1


@given(sizes=st.lists(st.integers(0, 1), max_size=120), cut=st.integers(1, 600))
def test_records_of_one_size_are_found_like_any_others(sizes: list[int], cut: int) -> None:
    kinds = [make_record(body=b"b" * 600), make_record(body=b"b" * 601)]
    # Long runs of one size, short ones, and both in turn.
    written = [kinds[size] for size in sizes for _ in range(1 + 40 * size)]
    log = b"".join(written)
    assert record_starts(log)[0].tolist() == positions(written)
    assert record_starts(log)[1] == len(log)
    assert record_starts(log[:-cut])[0].tolist() == positions(written)[:-1]
    garbage = log + BLANK.pack(len(kinds[1]), BLANK_MAGIC) + bytes(5000)
    assert record_starts(garbage)[1] == len(log)


@pytest.mark.parametrize("length", [MAX_TOPIC, MAX_TOPIC + 1])
def test_a_topic_longer_than_java_reads_is_no_row(length: int) -> None:
    record = make_record(topic="")
    longer = bytearray(record)
    topic_at = 88 + len(b"body")
    longer[topic_at : topic_at + 1] = bytes([length]) + b"t" * length
    longer[:4] = len(longer).to_bytes(4, "big")
    assert read_columns(longer, np.array([0])).valid.tolist() == [length <= MAX_TOPIC]
    assert (read_parts(longer, 0) is not None) == (length <= MAX_TOPIC)


def test_no_view_of_a_mapping_is_left() -> None:
    record = make_record(properties=b"KEYS\x01a b")
    mapping = mmap.mmap(-1, 4096)
    mapping[: 2 * len(record)] = record * 2
    starts, _ = record_starts(mapping)
    columns = read_columns(mapping, starts)
    mapping.close()
    assert columns.properties.lengths.tolist() == [8, 8]


def test_places_are_what_records_say() -> None:
    record = make_record()
    data = record * 3 + b"no record" * 20
    starts = np.array([0, len(record), 2 * len(record), 3 * len(record)], np.int64)
    places = bulk.record_places(data, starts)
    columns = read_columns(data, starts)
    assert places.sizes.tolist() == [len(record)] * 3 + [-1]
    assert (places.queue_offsets[:3] == columns.column("queue_offset")[:3]).all()
    assert (places.physical_offsets[:3] == columns.column("physical_offset")[:3]).all()


def span(buffer: bytes, spans: Spans, row: int) -> bytes:
    start = int(spans.starts[row])
    return buffer[start : start + int(spans.lengths[row])]


def decoded(log: bytes, start: int) -> MessageRecord | None:
    if start < 0:
        return None
    try:
        record = decode_record(log, start)
    except RecordError:
        return None
    within = len(record.raw_properties) <= 0x7FFF and topic_length(log, start, record) <= MAX_TOPIC
    return record if within else None


def topic_length(log: bytes, start: int, record: MessageRecord) -> int:
    properties_at = start + record.size - len(record.raw_properties) - 2
    hosts = 12 * (record.sys_flag >> 4 & 1) + 12 * (record.sys_flag >> 5 & 1)
    return properties_at - (start + 88 + hosts + len(record.body) + 1)


def test_columns_of_some_rows() -> None:
    records = [
        make_record(topic=f"topic{number}", body=b"x" * number, queue_offset=number)
        for number in range(6)
    ]
    starts = np.array(positions(records), np.int64)
    columns = read_columns(b"".join(records), starts)
    some = columns.rows(slice(2, 5))
    again = read_columns(b"".join(records), starts[2:5])
    assert some.column("queue_offset").tolist() == [2, 3, 4]
    for mine, other in zip(some, again, strict=True):
        np.testing.assert_array_equal(mine, other)


@given(
    st.lists(st.sampled_from([b"", b"a", b"orders", b"payments", b"orders-of-2026", b"x" * 64])),
    st.integers(0, 20),
)
def test_few_values_have_numbers(values: list[bytes], before: int) -> None:
    data = np.frombuffer(bytes(before) + b"".join(values), np.uint8)
    lengths = np.array([len(value) for value in values], np.int64)
    starts = before + lengths.cumsum() - lengths
    found = few_values(data, Spans(starts, lengths))
    if len({len(value) for value in values}) != 1:
        assert found is None
        return
    assert found is not None
    numbers, firsts = found
    assert [values[firsts[number]] for number in numbers] == values


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 31])
@pytest.mark.parametrize("different", [1, 2, 8, 9, 200])
def test_values_of_one_length(width: int, different: int) -> None:
    values = [b"%d" % (number % different % 10) * width for number in range(400)]
    values = [value[:-1] + bytes([number % different]) for number, value in enumerate(values)]
    data = np.frombuffer(b"".join(values), np.uint8)
    spans = Spans(np.arange(400) * width, np.full(400, width))
    found = few_values(data, spans)
    assert (found is None) == (different > 8)
    if found is not None:
        numbers, firsts = found
        assert [values[firsts[number]] for number in numbers] == values
