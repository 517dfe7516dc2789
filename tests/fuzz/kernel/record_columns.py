"""Blocks of records, intact and damaged, for `protocol.kernel.record_columns`.

The columns are compared with `decode_record`, record by record, and the starts with
`bulk.record_starts`. The kernel may leave a block to the Python code only for a reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from pyromq.protocol.message.bulk import read_columns, record_starts
from pyromq.protocol.message.joined_properties import last_property
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.message.record import FIELD_OFFSETS, MessageRecord, decode_record
from pyromq.protocol.message.sysflag import BORN_HOST_V6, COMPRESSED, HOST_MASK, STORE_HOST_V6
from tests.fuzz.kernel.fuzzing import Mutator
from tests.support.records import make_record, positions

_EARLIEST: Final = -1_000_000
_LATEST: Final = 1_700_000_000_500
_KEYS: Final = (b"KEYS", b"TAGS", b"K", b"UNIQ_KEY")
_INTS: Final = ("queueId", "flag", "sysFlag", "reconsumeTimes")
_LONGS: Final = ("queueOffset", "physicalOffset", "preparedTransactionOffset")
_TIMES: Final = ("bornTimestamp", "storeTimestamp")
_HOSTS: Final = ("bornHost", "storeHost")
_COLUMNS: Final[list[tuple[str, Any]]] = [
    *[("int", FIELD_OFFSETS[name]) for name in _INTS],
    *[("long", FIELD_OFFSETS[name]) for name in _LONGS],
    *[("time", FIELD_OFFSETS[name]) for name in _TIMES],
    *[("host", FIELD_OFFSETS[name]) for name in _HOSTS],
    *[("property", name + b"\x01") for name in _KEYS],
    ("message id", None),
    ("topic", None),
    ("properties", None),
]
_BODY: Final = ("body", None)
_ITEMS: Final = (
    b"KEYS\x01a b",
    b"KEYS\x01",
    b"KEYS",
    b"K\x01v",
    b"TAGS\x01" + b"blue" * 9,
    b"UNIQ_KEY\x010102030405060708",
    b"\x01no name",
    b"X\x01a\x01b",
    b"",
    "KEYS\x01grün€\U0001f600".encode(),
)
_BAD_ITEMS: Final = (
    b"KEYS\x01\xff",
    b"TAGS\x01\xc3",
    b"\xed\xa0\x80\x01x",
    b"KEYS\x01\xf5\x80\x80\x80",
)
_TOKENS: Final = (*_ITEMS, *_BAD_ITEMS, b"\x01", b"\x02", b"KEYS\x01", b"\xda\xa3\x20\xa7", b"\x80")


class Block(NamedTuple):
    """Bytes, where records may start, and whether bodies are wanted."""

    data: bytes
    starts: list[int]
    with_bodies: bool


def inputs(random: Random) -> Iterator[Block]:
    """Yield blocks; a third is damaged."""
    mutator = Mutator(random, _TOKENS)
    while True:
        records = [_record(random) for _ in range(random.choice((1, 2, 3, 9, 20)))]
        before = random.randbytes(random.choice((0, 0, 3)))
        data = before + b"".join(records)
        starts = [len(before) + start for start in positions(records)]
        if random.random() < 0.3:
            data = mutator.mutate(data)
            if random.random() < 0.3:
                starts = record_starts(data)[0].tolist()
        if random.random() < 0.1:
            starts = _other_starts(random, starts)
        yield Block(data, starts, random.random() < 0.8)


def runner(module: ModuleType) -> Callable[[Block], Any]:
    """Return a function that decodes a block, and finds records at its head."""
    decoders = [
        module.ColumnDecoder(columns, _EARLIEST, _LATEST)
        for columns in (_COLUMNS, [*_COLUMNS, _BODY])
    ]

    def run(given: Block) -> Any:
        starts = np.array(given.starts, np.int64)
        return (
            decoders[given.with_bodies].decode(given.data, starts),
            module.find_starts(given.data),
        )

    return run


def check(given: Block, result: Any) -> bool:
    """Compare the columns with the decoded records; return whether the kernel made any."""
    found, (packed, end) = result
    expected_starts, expected_end = record_starts(given.data)
    assert (packed, end) == (expected_starts.tobytes(), expected_end)
    if found is None:
        assert not _is_plain(given)
        return False
    records = [decode_record(given.data[start:]) for start in given.starts]
    expected = [
        _expected(given.data[start:], record)
        for start, record in zip(given.starts, records, strict=True)
    ]
    assert _is_plain(given)
    count = len(_COLUMNS) + given.with_bodies
    columns = [_values(column, len(records), number) for number, column in enumerate(found)]
    assert len(columns) == count
    rows = [list(row) for row in zip(*columns, strict=True)]
    assert rows == [row[:count] for row in expected]
    return True


def _record(random: Random) -> bytes:
    items = random.choices(_ITEMS, k=random.randrange(6))
    if random.random() < 0.01:
        items.append(random.choice(_BAD_ITEMS))
    sys_flag = 0
    if random.random() < 0.01:
        sys_flag = random.choice((BORN_HOST_V6, STORE_HOST_V6, HOST_MASK, COMPRESSED))
    record = bytearray(
        make_record(
            topic=random.choice(("A", "TopicTest", "Grün", "T" * 127)),
            properties=b"\x02".join(items) + random.choice((b"", b"\x02")),
            body=random.randbytes(random.choice((0, 1, 40))),
            sys_flag=sys_flag,
            queue_id=random.choice((0, 1, -1, 0x7FFFFFFF)),
            queue_offset=random.getrandbits(63),
            physical_offset=random.getrandbits(63),
            store_timestamp=random.choice((0, -1, 1 << 62, -(1 << 63), _LATEST, _LATEST + 1)),
        )
    )
    if not sys_flag & HOST_MASK:
        for name in _HOSTS:
            if random.random() < 0.5:
                struct.pack_into(
                    ">8s", record, FIELD_OFFSETS[name], random.choice((bytes(8), b"\xff" * 8))
                )
            elif random.random() < 0.5:
                struct.pack_into(">8s", record, FIELD_OFFSETS[name], random.randbytes(8))
    return bytes(record)


def _other_starts(random: Random, starts: list[int]) -> list[int]:
    """Return positions that are no starts, or not in order, or nothing."""
    far = random.choice((-1, -(1 << 63), (1 << 63) - 1, 1 << 31, 5))
    return random.choice(([], starts[::-1], starts + starts, [*starts, far], starts[1::2]))


def _is_plain(given: Block) -> bool:
    """Whether the kernel has to decode a block."""
    if not given.starts:
        return False
    columns = read_columns(given.data, np.array(given.starts, np.int64))
    if not columns.valid.all():
        return False
    ends = columns.starts + columns.column("total_size")
    if any(
        following < end
        for end, (_, following) in zip(ends.tolist(), pairwise(given.starts), strict=False)
    ):
        return False
    odd = HOST_MASK | (COMPRESSED if given.with_bodies else 0)
    if (columns.column("sys_flag") & odd).any():
        return False
    spans = (columns.topics, columns.properties)
    return all(
        _is_text(given.data[start : start + length])
        for starts, lengths in spans
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _expected(data: bytes, record: MessageRecord) -> list[Any]:
    """Return a row: the values of `_COLUMNS`, and the body."""
    times = (record.born_timestamp, record.store_timestamp)
    size = int.from_bytes(data[:4], "big")
    body_length = int.from_bytes(data[84:88], "big")
    return [
        record.queue_id,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.queue_offset,
        record.physical_offset,
        record.prepared_transaction_offset,
        *[min(max(time, _EARLIEST), _LATEST) * 1000 for time in times],
        format_address(*record.born_host).encode(),
        format_address(*record.store_host).encode(),
        *[last_property(record.raw_properties, name) or None for name in _KEYS],
        record.message_id.encode(),
        record.topic.encode(),
        record.raw_properties,
        data[88 : 88 + body_length] if size else b"",
    ]


def _values(column: tuple[Any, ...], rows: int, number: int) -> list[Any]:
    """Return the values of a column in Arrow's layout."""
    nulls, validity, *buffers = column
    kind = [*_COLUMNS, _BODY][number][0]
    if kind in ("int", "long", "time"):
        assert (nulls, validity) == (0, None)
        numbers: list[Any] = np.frombuffer(
            buffers[0], np.int32 if kind == "int" else np.int64
        ).tolist()
        assert len(numbers) == rows
        return numbers
    offsets = np.frombuffer(buffers[0], np.int32).tolist()
    assert offsets[0] == 0
    assert len(offsets) == rows + 1
    assert offsets[-1] == len(buffers[1])
    values = [buffers[1][start:end] for start, end in pairwise(offsets)]
    if validity is None:
        assert nulls == 0
        return values
    assert len(validity) == (rows + 7) // 8
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little").tolist()
    assert bits[:rows].count(0) == nulls
    assert not any(bits[rows:])
    return [value if bit else None for value, bit in zip(values, bits[:rows], strict=True)]
