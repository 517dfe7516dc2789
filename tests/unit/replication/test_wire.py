from __future__ import annotations

import contextlib
import random

import pytest

from pyromq.replication import wire
from pyromq.replication.wire import FrameReader, WireError


def frames(*, is_checked: bool, seed: int) -> tuple[list[tuple[int, bytes]], bytes]:
    rng = random.Random(seed)
    expected = []
    stream = b""
    offset = 0
    for _ in range(20):
        body = rng.randbytes(rng.choice([0, 1, 100, 70_000]))
        expected.append((offset, body))
        header = (
            wire.encode_checked_header(offset, body)
            if is_checked
            else wire.encode_plain_header(offset, len(body))
        )
        stream += header + body
        offset += len(body)
    return expected, stream


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("largest", [1, 11, 1000, 200_000])
def test_frames_survive_any_cut(is_checked: bool, largest: int) -> None:
    expected, stream = frames(is_checked=is_checked, seed=largest)
    if largest == 1:
        expected, stream = expected[:5], stream[: 5 * 16 + sum(len(b) for _, b in expected[:5])]
    reader, position = FrameReader(is_checked=is_checked), 0
    found: list[tuple[int, bytes]] = []
    rng = random.Random(largest)
    while position < len(stream):
        room = reader.room()
        piece = stream[position : position + min(rng.randint(1, largest), len(room))]
        room[: len(piece)] = piece
        position += len(piece)
        reader.received(len(piece))
        while (frame := reader.next_frame()) is not None and len(found) < len(expected):
            found.append((frame[0], bytes(frame[1])))
    assert found == expected


def test_java_s_header_is_twelve_bytes() -> None:
    assert wire.encode_plain_header(0x0102030405060708, 9) == bytes(
        [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9]
    )
    assert wire.encode_report(1) == bytes([0, 0, 0, 0, 0, 0, 0, 1])
    assert wire.ENQUIRY == b"\xff" * 8


@pytest.mark.parametrize("position", [0, 7, 11, 12, 16, 50])
def test_a_changed_byte_is_noticed(position: int) -> None:
    body = bytes(range(100))
    stream = bytearray(wire.encode_checked_header(0, body) + body)
    stream[position] ^= 0x10
    reader = FrameReader(is_checked=True)
    room = reader.room()
    room[: len(stream)] = stream
    reader.received(len(stream))
    with contextlib.suppress(WireError):
        # A changed length may make the frame longer than what arrived: then nothing is returned.
        assert reader.next_frame() is None


@pytest.mark.parametrize("size", [-1, wire.MAX_PLAIN_BODY + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    reader = FrameReader(is_checked=False)
    header = wire.encode_plain_header(0, size)
    reader.room()[: len(header)] = header
    reader.received(len(header))
    with pytest.raises(WireError):
        reader.next_frame()


def test_questions() -> None:
    buffer = bytearray(wire.encode_question({"follow": 7}) + b"rest")
    whole = bytes(buffer)
    for length in range(len(whole) - 4):
        assert wire.take_question(bytearray(whole[:length])) is None
    assert wire.take_question(buffer) == {"follow": 7}
    assert buffer == b"rest"


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1",
        b"\xff\xff\xff\xff12345678",
        b"\0\0\0\x02\0\0\0\0{}",
        wire.encode_question({})[:8] + b"{]",
        wire.encode_question([]),  # type: ignore[arg-type] # not an object
    ],
)
def test_questions_of_others_are_refused(junk: bytes) -> None:
    with pytest.raises(WireError):
        wire.take_question(bytearray(junk))


@pytest.mark.parametrize("position", range(12))
def test_a_changed_report_is_noticed(position: int) -> None:
    report = bytearray(wire.encode_checked_report(123_456))
    assert wire.decode_checked_report(report) == 123_456
    report[position] ^= 4
    with pytest.raises(WireError, match="checksum"):
        wire.decode_checked_report(report)


def test_a_changed_question_is_noticed() -> None:
    question = wire.encode_question({"checksums": [[0, 1000]]})
    for position in range(len(question)):
        damaged = bytearray(question)
        damaged[position] ^= 1
        with contextlib.suppress(WireError):
            # A changed length may make it longer than what arrived.
            assert wire.take_question(damaged) is None
