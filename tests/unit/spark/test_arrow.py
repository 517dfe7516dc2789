"""Batches equal what the decoder of single records returns, for any records."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.protocol.message.bulk import record_starts
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, COMPRESSION_LZ4, STORE_HOST_V6
from pyromq.spark import arrow
from pyromq.spark.arrow import RecordDecoder, batches
from pyromq.spark.columns import COLUMN_NAMES, MAP, RAW, arrow_schema
from pyromq.spark.origins.origin import RecordBlock
from tests import kernel_builds
from tests.support.records import make_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ITEM = st.sampled_from(
    [
        b"KEYS\x01a b",
        b"KEYS\x01",
        b"TAGS\x01blue",
        b"TAGS\x01red",
        b"UNIQ_KEY\x010102030405060708",
        b"\x01empty name",
        b"no end of name",
        b"X\x01a\x01b",
        b"",
        b"\xffbad\x01text\xfe",
        "grün\x01è".encode(),
    ]
)
RECORDS = st.builds(
    make_record,
    topic=st.sampled_from(["A", "LongerTopic", "%RETRY%group"]),
    properties=st.lists(ITEM, max_size=5).flatmap(
        lambda items: st.sampled_from([b"\x02".join(items), b"".join(i + b"\x02" for i in items)])
    ),
    body=st.binary(max_size=40),
    sys_flag=st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
    queue_id=st.integers(0, 8),
    queue_offset=st.integers(0, 1 << 40),
    physical_offset=st.integers(0, 1 << 40),
    store_timestamp=st.integers(0, 1 << 41),
)


@pytest.fixture(
    scope="module",
    autouse=True,
    params=[None, kernel_builds.FAST, kernel_builds.CHECKED],
    ids=lambda build: build.name if build else "pure",
)
def build(request: pytest.FixtureRequest) -> Iterator[kernel_builds.Build | None]:
    """Decode with the Python code, and with each build of the kernel."""
    used: kernel_builds.Build | None = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "load", lambda name: used and kernel_builds.load(used, name))
        yield used
    assert used is None or kernel_builds.fault_count(used) == 0


def block_of(*records: bytes, before: bytes = b"") -> RecordBlock:
    sizes = np.array([len(record) for record in records], np.int64)
    return RecordBlock(before + b"".join(records), len(before) + sizes.cumsum() - sizes)


def time_of(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def expected_row(data: bytes, include_properties: str) -> dict[str, Any]:
    record = decode_record(data)
    properties = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for item in record.raw_properties.split(b"\x02")
        for name, _, value in [item.partition(b"\x01")]
        if name and value
    }
    return {
        "topic": record.topic,
        "brokerName": "broker-a",
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": record.message_id,
        "uniqueKey": properties.get("UNIQ_KEY"),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": record.body,
        "properties": properties
        if include_properties == MAP
        else record.raw_properties.decode(errors="replace"),
        "bornTimestamp": time_of(record.born_timestamp),
        "storeTimestamp": time_of(record.store_timestamp),
        "bornHost": format_address(*record.born_host),
        "storeHost": format_address(*record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "physicalOffset": record.physical_offset,
    }


@given(st.lists(RECORDS, max_size=6), st.sampled_from([RAW, MAP]), st.binary(max_size=5))
@settings(max_examples=60)
def test_rows_equal_the_decoded_records(
    records: list[bytes], include_properties: str, before: bytes
) -> None:
    decoder = RecordDecoder(COLUMN_NAMES, include_properties, "broker-a")
    decoded = decoder.decode(block_of(*records, before=before))
    decoded.batch.validate(full=True)
    assert decoded.damaged == []
    assert decoded.batch.schema == arrow_schema(COLUMN_NAMES, include_properties)
    rows = decoded.batch.to_pylist()
    if include_properties == MAP:
        for row in rows:
            assert len(dict(row["properties"])) == len(row["properties"])
            row["properties"] = dict(row["properties"])
    assert rows == [expected_row(record, include_properties) for record in records]


@pytest.mark.parametrize("include_properties", [RAW, MAP])
def test_the_kernel_decodes_plain_blocks(
    monkeypatch: pytest.MonkeyPatch,
    build: kernel_builds.Build | None,
    include_properties: str,
) -> None:
    random = Random(5)
    names = ("KEYS", "TAGS", "UNIQ_KEY", "colour")
    records = [
        make_record(
            properties="\x02".join(
                f"{name}\x01{'ü' * random.randrange(3)}{number}"
                for name in random.sample(names, random.randrange(4))
            ).encode(),
            body=random.randbytes(random.randrange(99)),
            queue_offset=number,
            physical_offset=random.getrandbits(40),
        )
        for number in range(300)
    ]
    block = block_of(*records, before=b"some bytes")
    decoder = RecordDecoder(COLUMN_NAMES, include_properties, "broker-a")
    with monkeypatch.context() as patch:
        patch.setattr(arrow, "load", lambda name: None)
        expected = RecordDecoder(COLUMN_NAMES, include_properties, "broker-a").decode(block)
    if build is not None:
        monkeypatch.delattr(arrow, "_ends_before_next")  # the Python code alone calls it
    decoded = decoder.decode(block)
    decoded.batch.validate(full=True)
    assert decoded.batch.equals(expected.batch, check_metadata=True)
    assert decoded.damaged == []
    # Every other record, in an array with gaps.
    halves = decoder.decode(RecordBlock(block.buffer, block.starts[::2])).batch
    assert halves.to_pylist() == decoded.batch.to_pylist()[::2]


@pytest.mark.parametrize("name", COLUMN_NAMES)
def test_each_column_alone(name: str) -> None:
    record = make_record(properties=b"KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02")
    decoded = RecordDecoder((name,), broker_name="broker-a").decode(block_of(record, record))
    assert decoded.batch.to_pylist() == [{name: expected_row(record, RAW)[name]}] * 2


def test_columns_in_any_order() -> None:
    decoded = RecordDecoder(("flag", "topic")).decode(block_of(make_record()))
    assert decoded.batch.to_pylist() == [{"flag": 3, "topic": "TopicTest"}]


def test_compressed_bodies_come_out_plain() -> None:
    plain = make_record(body=b"plain")
    packed = make_record(body=zlib.compress(b"packed"), sys_flag=COMPRESSED)
    decoded = RecordDecoder(("body",)).decode(block_of(plain, packed))
    assert decoded.batch.column(0).to_pylist() == [b"plain", b"packed"]


def test_a_body_that_cannot_be_decompressed_makes_no_row() -> None:
    bad = make_record(body=b"no such thing", sys_flag=COMPRESSED | COMPRESSION_LZ4, queue_offset=5)
    good = make_record(body=b"good", queue_offset=6)
    decoded = RecordDecoder(("queueOffset", "body", "keys")).decode(block_of(bad, good))
    assert decoded.batch.to_pylist() == [{"queueOffset": 6, "body": b"good", "keys": None}]
    assert len(decoded.damaged) == 1
    assert "queue offset 5" in decoded.damaged[0]
    assert RecordDecoder(("queueOffset",)).decode(block_of(bad, good)).batch.num_rows == 2


def test_a_damaged_record_makes_no_row() -> None:
    good = make_record(queue_offset=9)
    cut = make_record()[:-1]
    decoded = RecordDecoder(("queueOffset",)).decode(block_of(cut, good))
    assert decoded.batch.to_pylist() == [{"queueOffset": 9}]
    assert decoded.damaged == ["the record at byte 0 of its block is damaged"]


def test_hostile_times_stay_in_range() -> None:
    decoded = RecordDecoder(("storeTimestamp",)).decode(
        block_of(make_record(store_timestamp=(1 << 63) - 1), make_record(store_timestamp=-1))
    )
    late, early = decoded.batch.column(0).to_pylist()
    assert late.year == 2261
    assert early == time_of(-1)
    # pandas can hold them.
    assert decoded.batch.column(0).cast(pa.timestamp("ns", tz="UTC"))[0].as_py() == late


def test_a_buffer_may_change_after_decoding() -> None:
    data = bytearray(make_record(body=b"kept", properties=b"KEYS\x01kept\x02"))
    decoded = RecordDecoder(("body", "keys", "topic")).decode(
        RecordBlock(data, record_starts(data)[0])
    )
    data[:] = bytes(len(data))
    assert decoded.batch.to_pylist() == [{"body": b"kept", "keys": "kept", "topic": "TopicTest"}]


def test_batches_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [make_record(body=bytes(100), queue_offset=offset) for offset in range(30)]
    whole = RecordDecoder(("queueOffset", "body")).decode(block_of(*records)).batch
    monkeypatch.setattr(arrow, "BATCH_ROWS", 7)
    parts = list(batches(whole))
    assert [part.num_rows for part in parts] == [6, 6, 6, 6, 6]
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([whole])
    monkeypatch.setattr(arrow, "BATCH_BYTES", 300)
    assert max(part.num_rows for part in batches(whole)) == 2
    monkeypatch.setattr(arrow, "BATCH_BYTES", 1)
    assert {part.num_rows for part in batches(whole)} == {1}


def test_no_batch_without_rows() -> None:
    nothing = RecordDecoder(("queueOffset",)).decode(block_of(make_record())).batch.slice(0, 0)
    assert list(batches(nothing)) == []


def test_bodies_that_grow_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [bytes([number]) * 10_000 for number in range(20)]
    records = [
        make_record(body=zlib.compress(body), sys_flag=COMPRESSED, queue_offset=offset)
        for offset, body in enumerate(bodies)
    ]
    monkeypatch.setattr(arrow, "MAX_BODIES", 35_000)
    block = block_of(*records, make_record(body=b"small", queue_offset=20))
    parts = list(RecordDecoder(("queueOffset", "body")).decode_parts(block))
    assert len(parts) > 5
    rows = [row for part in parts for row in part.batch.to_pylist()]
    assert [row["queueOffset"] for row in rows] == list(range(21))
    assert [row["body"] for row in rows] == [*bodies, b"small"]
    # A single body may exceed the limit.
    monkeypatch.setattr(arrow, "MAX_BODIES", 5)
    assert len(list(RecordDecoder(("body",)).decode_parts(block))) == 21
    # Reads without bodies do not pay for them.
    assert len(list(RecordDecoder(("queueOffset",)).decode_parts(block))) == 1
