"""The kernel decodes plain records as the Python code does, and leaves the others alone."""

from __future__ import annotations

import struct
from types import ModuleType

import numpy as np
import pytest

from pyromq.protocol.message.bulk import record_starts
from pyromq.protocol.message.record import FIELD_OFFSETS
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from tests import kernel_builds
from tests.fuzz.kernel import fuzzing
from tests.support.examples import examples
from tests.support.records import make_record

ALL_TIMES = (-(1 << 50), 1 << 50)
NO_BODY = [("topic", None), ("property", b"KEYS\x01")]
WITH_BODY = [*NO_BODY, ("body", None)]


@pytest.fixture(
    scope="module",
    params=[kernel_builds.FAST, kernel_builds.CHECKED],
    ids=lambda build: build.name,
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "record_columns")


def starts_of(*positions: int) -> np.ndarray:
    return np.array(positions, np.int64)


def test_random_blocks_equal_the_decoded_records() -> None:
    report = fuzzing.fuzz("record_columns", seed=2, count=examples(2000))
    assert report.taken > report.inputs // 3


def test_buffers_have_the_layout_of_arrow(module: ModuleType) -> None:
    records = [
        make_record(properties=b"KEYS\x01one\x02", store_timestamp=5),
        make_record(topic="T", body=b"", store_timestamp=1 << 60),
    ]
    columns = [*WITH_BODY, ("time", FIELD_OFFSETS["storeTimestamp"])]
    decoder = module.ColumnDecoder(columns, 0, 1000)
    topic, keys, body, time = decoder.decode(b"".join(records), starts_of(0, len(records[0])))
    assert topic == (0, None, struct.pack("=3i", 0, 9, 10), b"TopicTestT")
    assert keys == (1, b"\x01", struct.pack("=3i", 0, 3, 3), b"one")
    assert body == (0, None, struct.pack("=3i", 0, 4, 4), b"body")
    assert time == (0, None, struct.pack("=2q", 5_000, 1_000_000))


@pytest.mark.parametrize("sys_flag", [BORN_HOST_V6, STORE_HOST_V6, COMPRESSED])
def test_rare_records_are_left_alone(module: ModuleType, sys_flag: int) -> None:
    data = make_record() + make_record(sys_flag=sys_flag)
    starts = record_starts(data)[0]
    assert module.ColumnDecoder(WITH_BODY, *ALL_TIMES).decode(data, starts) is None
    # A compressed body matters only to a reader of bodies.
    found = module.ColumnDecoder(NO_BODY, *ALL_TIMES).decode(data, starts)
    assert (found is not None) == (sys_flag == COMPRESSED)


def test_damage_is_left_alone(module: ModuleType) -> None:
    decoder = module.ColumnDecoder(WITH_BODY, *ALL_TIMES)
    record = make_record(properties=b"KEYS\x01a\x02")
    size = len(record)
    assert decoder.decode(record * 2, starts_of(0, size)) is not None
    for starts in ((), (0, 0), (size, 0), (-1,), (1,), (0, 2 * size), (1 << 62,)):
        assert decoder.decode(record * 2, starts_of(*starts)) is None
    for length in range(size):
        assert decoder.decode(record[:length], starts_of(0)) is None
    assert decoder.decode(make_record(properties=b"KEYS\x01\xff"), starts_of(0)) is None
    assert module.fault_count() == 0


def test_a_block_may_be_larger_than_the_one_before(module: ModuleType) -> None:
    decoder = module.ColumnDecoder(WITH_BODY, *ALL_TIMES)
    record = make_record()
    for count in (1, 100, 7, 3000):
        *_, body = decoder.decode(record * count, np.arange(count) * len(record))
        assert body[-1] == b"body" * count


def test_no_buffer_is_kept(module: ModuleType) -> None:
    data = bytearray(make_record())
    starts = bytearray(8)
    assert module.ColumnDecoder(WITH_BODY, *ALL_TIMES).decode(data, starts) is not None
    assert module.find_starts(data) == (bytes(8), len(data))
    del data[:]  # BufferError while there is a view
    del starts[:]


@pytest.mark.parametrize(
    "columns",
    [
        [("shape", None)],
        [("int", -1)],
        [("long", 88)],
        [("property", b"")],
        [("property", b"NAME%d\x01" % number) for number in range(9)],
    ],
)
def test_columns_that_do_not_exist(module: ModuleType, columns: list[tuple[str, object]]) -> None:
    with pytest.raises(ValueError, match=r"no column|no field|no name|more than 8"):
        module.ColumnDecoder(columns, *ALL_TIMES)


def test_starts_are_those_of_the_python_code(module: ModuleType) -> None:
    record = make_record()
    data = record * 3 + make_record(body=bytes(50))
    for end in (0, 5, len(record), len(record) + 1, len(data) - 1, len(data)):
        starts, stop = record_starts(data[:end])
        assert module.find_starts(data[:end]) == (starts.tobytes(), stop)
    negative_size = struct.pack(">i", -1) + record[4:]
    assert module.find_starts(record + negative_size) == (bytes(8), len(record))
