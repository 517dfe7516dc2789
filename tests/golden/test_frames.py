"""Frames that Java encoded decode to the original values, and encode back to the same frames."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, cast, get_type_hints

import pytest

from pyromq.protocol.java.wire_types import wire_name
from pyromq.protocol.wire import headers, headers_admin
from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.frame import Encoding, FrameReader, RemotingCommand, decode_frame
from pyromq.protocol.wire.header_codec import Header
from tests.golden.golden_data import Entry, cut, read_bytes, read_index
from tests.support.each import for_each

FRAMES: list[Entry] = read_index("frames")
STREAM = read_bytes("frames")

every_frame = for_each("entry", FRAMES, lambda entry: str(entry["name"]))
with_header = for_each(
    "entry",
    [entry for entry in FRAMES if "header" in entry],
    lambda entry: str(entry["name"]),
)


def expected_command(entry: Entry) -> RemotingCommand:
    return RemotingCommand(
        code=entry["code"],
        opaque=entry["opaque"],
        ext_fields=entry["extFields"],
        body=bytes.fromhex(entry["body"]),
        # The binary form cannot distinguish an empty remark from none.
        remark=entry["remark"] or None if entry["encoding"] == "ROCKETMQ" else entry["remark"],
        flag=entry["flag"],
        language=LanguageCode[entry["language"]],
        version=entry["version"],
        encoding=Encoding[entry["encoding"]],
    )


def header_class(name: str) -> type[Header] | None:
    found = getattr(headers, name, None) or getattr(headers_admin, name, None)
    assert found is None or issubclass(found, Header)
    return found


def test_index_covers_the_stream() -> None:
    assert sum(entry["length"] for entry in FRAMES) == len(STREAM)
    assert len({entry["name"] for entry in FRAMES}) == len(FRAMES)


@every_frame
def test_decodes_to_the_values_that_went_in(entry: Entry) -> None:
    assert decode_frame(cut(STREAM, entry)) == expected_command(entry)


@every_frame
def test_encodes_like_java(entry: Entry) -> None:
    golden = cut(STREAM, entry)
    encoded = decode_frame(golden).encode()
    if entry["encoding"] == "ROCKETMQ":
        assert encoded == golden
    else:
        # JSON objects have no order: compare members, body and lengths.
        assert read_json_frame(encoded) == read_json_frame(golden)


def read_json_frame(frame: bytes) -> tuple[Entry, bytes]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4] == 0
    end = 8 + int.from_bytes(frame[5:8], "big")
    header = json.loads(frame[8:end])
    # Java omits nulls, and an empty map equals none.
    if header.get("remark", "") is None:
        del header["remark"]
    if not header.get("extFields"):
        header.pop("extFields", None)
    return header, frame[end:]


def test_whole_stream_at_once() -> None:
    assert FrameReader().feed(STREAM) == [expected_command(entry) for entry in FRAMES]


def test_byte_by_byte() -> None:
    reader = FrameReader()
    commands = [command for byte in STREAM for command in reader.feed(bytes((byte,)))]
    assert commands == [expected_command(entry) for entry in FRAMES]


@pytest.mark.parametrize("size", [3, 7, 64, 1000, 4096])
def test_in_chunks(size: int) -> None:
    reader = FrameReader()
    commands = [
        command
        for start in range(0, len(STREAM), size)
        for command in reader.feed(STREAM[start : start + size])
    ]
    assert commands == [expected_command(entry) for entry in FRAMES]


@every_frame
def test_with_trailing_bytes(entry: Entry) -> None:
    golden = cut(STREAM, entry)
    for trailing in range(1, 9):
        reader = FrameReader()
        assert reader.feed(golden + golden[:trailing]) == [expected_command(entry)]
        assert reader.feed(golden[trailing:]) == [expected_command(entry)]


def test_every_header_of_java_is_known() -> None:
    names = {entry["header"] for entry in FRAMES if "header" in entry}
    assert len(names) > 70
    assert [name for name in sorted(names) if not header_class(name)] == []


#: Fields of 5.x that our headers also have.
NEWER_FIELDS = {"PullMessageRequestHeader": ("maxMsgBytes",)}


@with_header
def test_header_reads_every_field(entry: Entry) -> None:
    header = decoded_header(entry)
    hints = get_type_hints(type(header), include_extras=True)
    ours = {
        wire_name(field.name, hints[field.name]): getattr(header, field.name)
        for field in fields(cast(Any, header))
    }
    java = dict(entry["headerValues"])
    # The name of the target broker: every 4.9.7 request header has it, and no server reads it.
    java.pop("bname", None)
    # Fields of 5.x are there for its clients; 4.9.7 does not write them.
    newer = {name for name in NEWER_FIELDS.get(entry["header"], ()) if ours.pop(name) is None}
    assert newer == set(NEWER_FIELDS.get(entry["header"], ()))
    assert ours == java


@with_header
def test_header_writes_every_field(entry: Entry) -> None:
    expected = {name: text for name, text in entry["extFields"].items() if name != "bname"}
    assert decoded_header(entry).encode() == expected


def decoded_header(entry: Entry) -> Header:
    found = header_class(entry["header"])
    assert found is not None
    return found.decode(decode_frame(cut(STREAM, entry)).ext_fields)
