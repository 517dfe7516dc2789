from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, MessageRecord, encode_record
from pyromq.protocol.message.units import (
    CHECKPOINT,
    CONSUME_QUEUE_ENTRY,
    EXTENSION_BASE,
    EXTENSION_END,
    EXTENSION_UNIT,
    INDEX_ENTRY,
    INDEX_HEADER,
    PRE_BLANK_ENTRY,
)
from pyromq.store.offline.dump import DumpError, Item, StoreFile, StoreFileKind, describe

HOST = encode_host("127.0.0.1", 10911)
NOW = 1_700_000_000_000


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def items(path: Path, offset: int | None = None, **options: int) -> list[Item]:
    with StoreFile.open(path) as file:
        return list(file.items(offset, **options))


def record(place: int, body: bytes = b"hello", properties: bytes = b"TAGS\x01a") -> bytes:
    values = MessageRecord(
        "orders",
        3,
        7,
        place,
        body,
        {},
        0,
        0,
        NOW,
        ("", 0),
        NOW,
        ("", 0),
        0,
        0,
        0,
        0,
        "",
        properties,
    )
    return encode_record(values, HOST, HOST)


def segment(base: int = 0) -> tuple[bytes, int]:
    first = record(base)
    return first + record(base + len(first), "zwei ü".encode()), len(first)


def test_commit_log(tmp_path: Path) -> None:
    base = 1 << 30
    data, first = segment(base)
    path = write(tmp_path / "commitlog" / f"{base:020d}", data + bytes(100))
    one, two, end = items(path)
    assert (one["physicalOffset"], one["topic"], one["queueId"], one["queueOffset"]) == (
        base,
        "orders",
        3,
        7,
    )
    assert (one["body"], one["properties"], one["bodyCRCMatches"]) == ("hello", {"TAGS": "a"}, True)
    assert one["physicalOffsetMatches"]
    assert two["body"] == "zwei ü"
    assert end == {
        "type": "end",
        "offset": base + len(data),
        "reason": "nothing was written from here on",
    }
    assert items(path, base + first)[0] == two


def test_commit_log_ends_with_the_blank_record_or_the_file(tmp_path: Path) -> None:
    data, _ = segment()
    rest = BLANK.pack(50, BLANK_MAGIC) + b"x" * 42
    assert "blank record of 50 bytes" in items(write(tmp_path / "a", data + rest))[-1]["reason"]
    assert items(write(tmp_path / "b", data))[-1]["reason"] == "end of the file"


def test_a_damaged_log_says_where_and_why(tmp_path: Path) -> None:
    data, first = segment()
    path = write(tmp_path / "log", data[: first + 30])
    assert [item["type"] for item in items(path)] == ["message", "end"]
    assert items(path)[-1]["offset"] == first
    assert "invalid record" in items(path)[-1]["reason"]


def test_wrong_checksums_and_places_are_pointed_out(tmp_path: Path) -> None:
    data = bytearray(record(0))
    data[data.index(b"hello")] ^= 1
    line = describe(items(write(tmp_path / "log", bytes(data)))[0])
    assert "BODY CRC IS WRONG" in line
    assert "PHYSICAL OFFSET IS WRONG" not in line
    line = describe(items(write(tmp_path / "log2", record(99)))[0])
    assert "PHYSICAL OFFSET IS WRONG" in line


def test_an_offset_outside_the_segment_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "commitlog" / f"{1000:020d}", segment(1000)[0])
    for offset in (0, 10_000):
        with pytest.raises(DumpError, match="holds physical offsets 1000 to"):
            items(path, offset)


def test_bodies_that_are_no_text_are_shown_as_hex(tmp_path: Path) -> None:
    item = items(write(tmp_path / "log", record(0, b"\xff\x00")))[0]
    assert item["bodyHex"] == "ff00"
    assert "hex(2): 'ff00'" in describe(item)


def test_a_message_in_one_line(tmp_path: Path) -> None:
    line = describe(items(write(tmp_path / "log", record(0, b"x\ny" * 100)))[0])
    assert line.startswith("0 +")
    assert "orders:3 #7 2023-11-14T22:13:20.000Z from 127.0.0.1:10911 [TAGS=a]" in line
    assert line.endswith("…'")
    assert "\n" not in line


def test_consume_queue(tmp_path: Path) -> None:
    entries = PRE_BLANK_ENTRY + CONSUME_QUEUE_ENTRY.pack(1234, 200, -5) + bytes(20)
    path = write(tmp_path / "consumequeue" / "orders" / "3" / f"{2000:020d}", entries)
    blank, entry, end = items(path)
    assert blank["type"] == "pre-blank entry"
    assert entry == {
        "type": "entry",
        "queueOffset": 101,
        "physicalOffset": 1234,
        "size": 200,
        "tagsCode": -5,
    }
    assert end["offset"] == 102
    assert describe(entry) == "entry: queueOffset=101 physicalOffset=1234 size=200 tagsCode=-5"
    assert items(path, 101)[0] == entry
    with pytest.raises(DumpError, match="queue offsets 100 to 103"):
        items(path, 99)


def index_file(slots: int, entries: int) -> bytes:
    header = INDEX_HEADER.pack(NOW, NOW + 5000, 10, 20, 1, 3)
    one, two = INDEX_ENTRY.pack(7, 10, 0, 0), INDEX_ENTRY.pack(7, 20, 5, 1)
    table = bytes(20) + one + two + bytes(20 * (entries - 3))
    return header + bytes(4 * slots) + table


def test_index(tmp_path: Path) -> None:
    path = write(tmp_path / "index" / "20231114221320000", index_file(5, 20))
    header, one, two, end = items(path)
    assert (header["maxHashSlotNum"], header["maxIndexNum"], header["indexCount"]) == (5, 20, 3)
    assert (one["physicalOffset"], one["slot"], one["previous"]) == (10, 2, 0)
    assert (two["storeTimestamp"], two["previous"]) == (NOW + 5000, 1)
    assert end["offset"] == 3
    assert "endTimestamp=1700000005000 (2023-11-14T22:13:25.000Z)" in describe(header)
    assert items(path, 2)[1] == two


def test_an_index_of_another_shape_needs_its_slots(tmp_path: Path) -> None:
    path = write(tmp_path / "index" / "20231114221320000", index_file(7, 20))
    with pytest.raises(DumpError, match="--hash-slots"):
        items(path)
    assert [item["type"] for item in items(path, hash_slots=7)] == [
        "header",
        "entry",
        "entry",
        "end",
    ]
    with pytest.raises(DumpError, match="no entries"):
        items(path, hash_slots=1000)


def test_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoint", CHECKPOINT.pack(NOW, NOW + 1, 0) + bytes(4072))
    (item,) = items(path)
    assert describe(item) == (
        "checkpoint: physicMsgTimestamp=1700000000000 (2023-11-14T22:13:20.000Z) "
        "logicsMsgTimestamp=1700000000001 (2023-11-14T22:13:20.001Z) indexMsgTimestamp=0 (never)"
    )


def test_json_tables_also_in_fastjson_s_form(tmp_path: Path) -> None:
    path = write(tmp_path / "config" / "consumerOffset.json", b'{"offsetTable":{"t@g":{0:5}}}')
    (item,) = items(path)
    assert item["value"] == {"offsetTable": {"t@g": {"0": 5}}}
    assert describe(item).startswith('{\n  "offsetTable"')
    with pytest.raises(DumpError, match="not a JSON table"):
        items(write(tmp_path / "topics.json", b"{"))


def test_abort(tmp_path: Path) -> None:
    (item,) = items(write(tmp_path / "abort", b""))
    assert "last shutdown was unclean" in describe(item)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (segment()[0], StoreFileKind.COMMIT_LOG),
        (BLANK.pack(8, BLANK_MAGIC), StoreFileKind.COMMIT_LOG),
        (b'{"a":1}', StoreFileKind.JSON),
        (index_file(5, 20), StoreFileKind.INDEX),
        (CHECKPOINT.pack(NOW, NOW, NOW) + bytes(4072), StoreFileKind.CHECKPOINT),
        (CONSUME_QUEUE_ENTRY.pack(1234, 200, -5) * 3, StoreFileKind.CONSUME_QUEUE),
    ],
)
def test_files_out_of_their_place_are_known_by_content(
    tmp_path: Path, content: bytes, kind: StoreFileKind
) -> None:
    with StoreFile.open(write(tmp_path / "copy", content)) as file:
        assert file.kind is kind


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "is a directory"),
        (write(tmp_path / "other", b"hello world"), "not recognised as a store file"),
        (write(tmp_path / "empty", b""), "not recognised as a store file"),
    ):
        with pytest.raises(DumpError, match=problem):
            StoreFile.open(path)
    with pytest.raises(DumpError, match="less than a checkpoint"):
        items(write(tmp_path / "checkpoint", b"short"))


def test_a_file_can_be_closed_in_the_middle(tmp_path: Path) -> None:
    for content in (segment()[0], CONSUME_QUEUE_ENTRY.pack(1, 2, 3) * 3, index_file(5, 20)):
        file = StoreFile.open(write(tmp_path / "copy", content))
        walk = file.items()
        next(walk)
        file.close()


@given(st.binary(max_size=300), st.sampled_from(StoreFileKind), st.integers(-2, 400))
def test_any_bytes_end_in_pieces_or_a_dump_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: StoreFileKind, offset: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "any", content)
    with StoreFile.open(path, kind) as file, contextlib.suppress(DumpError):
        for item in file.items(offset, hash_slots=3):
            assert describe(item)


def extension_file(directory: Path, *units: bytes, base: int = 0, size: int = 100) -> Path:
    path = directory / "consumequeue_ext" / "orders" / "3" / f"{base:020d}"
    return write(path, b"".join(units).ljust(size, b"\0"))


UNIT = EXTENSION_UNIT.pack(20, 77, NOW, 0)
UNIT_WITH_MAP = EXTENSION_UNIT.pack(22, 78, NOW + 1, 2) + b"\x0f\xf0"


def test_extension(tmp_path: Path) -> None:
    path = extension_file(tmp_path, UNIT, UNIT_WITH_MAP, UNIT, EXTENSION_END, base=100)
    one, two, three, end = items(path)
    assert one == {
        "type": "unit",
        "extensionOffset": 100,
        "size": 20,
        "tagsCode": 77,
        "msgStoreTimestamp": NOW,
        "filterBitMap": "",
    }
    assert (two["extensionOffset"], two["tagsCode"], two["filterBitMap"]) == (120, 78, "0ff0")
    assert "2023-11-14T22:13:20.001Z" in describe(two)
    assert (three["extensionOffset"], end["offset"], end["reason"]) == (142, 162, "end of the file")
    assert [item.get("extensionOffset") for item in items(path, 121)] == [142, None]
    with pytest.raises(DumpError, match="holds extension offsets 100 to 200, not 7"):
        items(path, 7)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (b"", "nothing was written from here on"),
        (EXTENSION_UNIT.pack(21, 0, 0, 0), "invalid unit: size 21, bit map of 0 bytes"),
        (EXTENSION_UNIT.pack(19, 0, 0, -1), "invalid unit: size 19, bit map of -1 bytes"),
        (EXTENSION_UNIT.pack(120, 0, 0, 100), "invalid unit: size 120, bit map of 100 bytes"),
    ],
)
def test_where_an_extension_ends(tmp_path: Path, last: bytes, reason: str) -> None:
    unit, end = items(extension_file(tmp_path, UNIT, last))
    assert (unit["type"], end["offset"], end["reason"]) == ("unit", 20, reason)


def test_an_entry_says_where_its_unit_is(tmp_path: Path) -> None:
    entries = CONSUME_QUEUE_ENTRY.pack(0, 100, 42 - EXTENSION_BASE) + CONSUME_QUEUE_ENTRY.pack(
        100, 100, 7
    )
    path = write(tmp_path / "consumequeue" / "orders" / "3" / f"{0:020d}", entries)
    assert [item.get("extensionOffset") for item in items(path)] == [42, None, None]
