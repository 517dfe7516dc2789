"""Frames whole, in pieces, with lies in their lengths and with headers of no use."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.protocol.wire import frame
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    MAX_FRAME,
    ChunkGatherer,
    Encoding,
    FrameError,
    FrameReader,
    RemotingCommand,
    RequestError,
    command_from,
    decode_frame,
    frame_from,
    frame_prefix,
    frame_size,
    split_frames,
)

both_encodings = pytest.mark.parametrize("encoding", list(Encoding), ids=lambda e: e.name)

SAMPLES = [
    command
    for encoding in Encoding
    for command in (
        RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, encoding=encoding),
        RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            opaque=7,
            ext_fields={"a": "group", "b": "TopicTest", "i": "KEYS\x01k\x02TAGS\x01t"},
            body=bytes(range(256)),
            encoding=encoding,
        ),
        RemotingCommand(
            ResponseCode.SYSTEM_ERROR,
            opaque=-1,
            remark="kein Thema: \u00e4\u20ac\U0001f680\n\x00",
            flag=1,
            language=LanguageCode.JAVA,
            encoding=encoding,
        ),
        RemotingCommand(
            RequestCode.HEART_BEAT,
            opaque=0x7FFFFFFF,
            ext_fields={"": "", "\u0000": "\u4e2d"},
            body=b"\x00\x00\x00\x04\x00\x00\x00\x00",
            flag=2,
            version=0,
            encoding=encoding,
        ),
    )
]
STREAM = b"".join(command.encode() for command in SAMPLES)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
integers = st.integers(-0x80000000, 0x7FFFFFFF)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-0x8000, 0x7FFF),
    opaque=integers,
    ext_fields=st.dictionaries(text, text, max_size=5),
    body=st.binary(max_size=200),
    # The binary form has no way to tell an empty remark from none.
    remark=st.none() | text.filter(bool),
    flag=integers,
    language=st.sampled_from(LanguageCode),
    version=st.integers(-0x8000, 0x7FFF),
    encoding=st.sampled_from(Encoding),
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return frame_prefix(Encoding.JSON, len(header), len(body)) + header + body


# Whole and in pieces


@pytest.mark.parametrize("command", SAMPLES)
def test_round_trip(command: RemotingCommand) -> None:
    assert decode_frame(command.encode()) == command


@given(commands)
def test_any_command_round_trips(command: RemotingCommand) -> None:
    assert decode_frame(command.encode()) == command


@pytest.mark.parametrize("command", SAMPLES)
def test_byte_by_byte(command: RemotingCommand) -> None:
    reader = FrameReader()
    encoded = command.encode()
    for byte in encoded[:-1]:
        assert reader.feed(bytes((byte,))) == []
    assert reader.feed(encoded[-1:]) == [command]


@pytest.mark.parametrize("command", SAMPLES)
def test_with_trailing_bytes(command: RemotingCommand) -> None:
    encoded = command.encode()
    for trailing in range(1, 12):
        reader = FrameReader()
        assert reader.feed(encoded + encoded[:trailing]) == [command]
        assert reader.feed(encoded[trailing:]) == [command]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_in_any_chunks(cuts: list[int]) -> None:
    reader = FrameReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    found: list[RemotingCommand] = []
    for start, end in itertools.pairwise(edges):
        found += reader.feed(STREAM[start:end])
    assert found == SAMPLES


@given(st.lists(commands, max_size=5), st.integers(1, 64))
def test_any_commands_in_chunks_of_any_size(sent: list[RemotingCommand], size: int) -> None:
    stream = b"".join(command.encode() for command in sent)
    reader = FrameReader()
    found = [
        command
        for start in range(0, len(stream), size)
        for command in reader.feed(stream[start : start + size])
    ]
    assert found == sent


def test_every_truncation_waits_for_the_rest() -> None:
    for command in SAMPLES:
        encoded = command.encode()
        for length in range(len(encoded)):
            assert split_frames(encoded[:length]) == ([], 0, None)
            with pytest.raises(FrameError, match=f"{length} bytes are not exactly one frame"):
                decode_frame(encoded[:length])


def test_decode_frame_takes_exactly_one() -> None:
    one = SAMPLES[0].encode()
    for data in (b"", one + b"\x00", one + one):
        with pytest.raises(FrameError, match="not exactly one frame"):
            decode_frame(data)


def test_good_frames_before_an_error_are_given() -> None:
    good = SAMPLES[1].encode()
    frames, taken, error = split_frames(good + good + json_frame(b"{") + good)
    assert len(frames) == 2
    assert taken == 2 * len(good)
    assert error is not None


# Lengths


@pytest.mark.parametrize("total", range(4))
def test_total_below_four(total: int) -> None:
    data = total.to_bytes(4, "big") + bytes(20)
    with pytest.raises(FrameError, match=f"header of 0 bytes in a frame of {total}"):
        FrameReader().feed(data)


@pytest.mark.parametrize("excess", [1, 2, 1000, 0xFFFFFF - 6])
def test_header_longer_than_its_frame(excess: int) -> None:
    header = b'{"code":1}'[:6]
    data = (4 + len(header)).to_bytes(4, "big") + (len(header) + excess).to_bytes(4, "big") + header
    with pytest.raises(FrameError, match=f"header of {len(header) + excess} bytes in a frame of"):
        FrameReader().feed(data + bytes(100))


def test_header_may_not_reach_into_the_next_frame() -> None:
    first = bytearray(json_frame(b'{"code":1}'))
    first[7] += 1
    frames, taken, error = split_frames(bytes(first) + SAMPLES[0].encode())
    assert (frames, taken) == ([], 0)
    assert error is not None


def test_length_that_lies_short_leaves_garbage_behind() -> None:
    encoded = bytearray(json_frame(b'{"code":1}', b"body of sixteen."))
    encoded[3] -= 8
    frames, _, error = split_frames(bytes(encoded) + bytes(16))
    assert [body for _, _, body in frames] == [b"body of "]
    assert error is not None


def test_frame_of_exactly_the_limit() -> None:
    header = b'{"code":1}'
    body = bytes(MAX_FRAME - 8 - len(header))
    data = json_frame(header, body)
    assert len(data) == MAX_FRAME
    [command] = FrameReader().feed(data)
    assert command.body == body
    reader = FrameReader()
    assert reader.feed(data[:-1]) == []
    [command] = reader.feed(data[-1:])
    assert len(command.body) == len(body)


@pytest.mark.parametrize("size", [MAX_FRAME + 1, 17 * 1024 * 1024, 0x80000000, 0xFFFFFFFF + 4])
def test_frame_above_the_limit_is_refused_by_its_prefix(size: int) -> None:
    prefix = (size - 4).to_bytes(4, "big") + bytes(4)
    with pytest.raises(FrameError, match=f"frame of {size} bytes, limit {MAX_FRAME}"):
        FrameReader().feed(prefix)


def test_frame_above_the_limit_is_refused_byte_by_byte() -> None:
    reader = FrameReader(max_frame=100)
    prefix = (97).to_bytes(4, "big") + bytes(4)
    for byte in prefix[:-1]:
        assert reader.feed(bytes((byte,))) == []
    with pytest.raises(FrameError, match="frame of 101 bytes, limit 100"):
        reader.feed(prefix[-1:])


@pytest.mark.parametrize("cut", range(1, 8))
def test_frame_above_the_limit_is_refused_wherever_its_prefix_is_cut(cut: int) -> None:
    prefix = (17 * 1024 * 1024).to_bytes(4, "big") + bytes(4)
    reader = FrameReader()
    assert reader.feed(prefix[:cut]) == []
    with pytest.raises(FrameError, match="limit 16777216"):
        reader.feed(prefix[cut:])


def test_own_limit() -> None:
    data = json_frame(b'{"code":1}', bytes(82))
    assert len(FrameReader(max_frame=100).feed(data)) == 1
    with pytest.raises(FrameError, match="limit 99"):
        FrameReader(max_frame=99).feed(data)


def test_header_that_its_length_field_cannot_hold_is_not_written() -> None:
    # Control characters are six bytes in JSON: the header is longer than its frame's limit.
    command = RemotingCommand(1, remark="\x01" * (3 * 1024 * 1024))
    with pytest.raises(ValueError, match="header of 18874"):
        command.encode()


def test_frame_size() -> None:
    assert frame_size(b"\x00\x00\x00") is None
    assert frame_size(b"\x00\x00\x00\x08") == 12
    assert frame_size(b"\xff\xff\xff\xff1234") == 0xFFFFFFFF + 4


# Headers


@pytest.mark.parametrize("encoding", [2, 3, 127, 128, 255])
def test_unknown_encoding(encoding: int) -> None:
    data = frame_prefix(encoding, 2, 0) + b"{}"
    with pytest.raises(FrameError, match=f"header encoding {encoding}, expected 0 or 1"):
        FrameReader().feed(data)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b'{"code":1',
        b'{"code":}',
        b'{"code":NaN}',
        b'{"code":Infinity}',
        b'{"code":01}',
        b"{'code':1}",
        b"{1:2}",
        b'{"code":1}{"code":1}',
        b'{"code":1,"remark":"\xff\xfe"}',
        b'{"code":1,"remark":"\xed\xa0\x80"}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":1,"extFields":{"a":1e999}}',
        b'{"code":1,"extFields":{"a":' + b"9" * 5000 + b"}}",
        b"\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"code":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
    ids=lambda header: repr(header[:30]),
)
def test_header_that_is_no_json(header: bytes) -> None:
    with pytest.raises(FrameError, match="header cannot be decoded"):
        FrameReader().feed(json_frame(header))


@pytest.mark.parametrize("header", [b"null", b"1", b'"code"', b"[]", b'[{"code":1}]', b"true"])
def test_header_that_is_no_object(header: bytes) -> None:
    with pytest.raises(FrameError, match="header is not a JSON object"):
        FrameReader().feed(json_frame(header))


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
@pytest.mark.parametrize(
    "value",
    [
        b'"10"',
        b"null",
        b"true",
        b"1.0",
        b"1.5",
        b"1e3",
        b"[]",
        b"{}",
        b"2147483648",
        b"-2147483649",
        b"18446744073709551615",
        b"99999999999999999999999999",
        b"[" * 1000 + b"]" * 1000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b'"' + b"x" * 100_000 + b'"',
    ],
    ids=lambda value: repr(value[:30]),
)
def test_number_that_is_none(name: str, value: bytes) -> None:
    header = b'{"code":1,"%s":%s}' % (name.encode(), value)
    with pytest.raises(
        FrameError, match=f"header field {name} is .*, not a 32-bit integer"
    ) as info:
        FrameReader().feed(json_frame(header))
    assert len(str(info.value)) < 200


@pytest.mark.parametrize("value", [-0x80000000, -1, 0, 0x7FFFFFFF])
def test_numbers_at_their_limits(value: int) -> None:
    header = b'{"code":%d,"opaque":%d,"flag":%d,"version":%d}' % ((value,) * 4)
    [command] = FrameReader().feed(json_frame(header))
    assert (command.code, command.opaque, command.flag, command.version) == (value,) * 4


def test_code_is_required() -> None:
    with pytest.raises(FrameError, match="header field code is missing"):
        FrameReader().feed(json_frame(b'{"opaque":1}'))


def test_other_fields_have_defaults() -> None:
    [command] = FrameReader().feed(json_frame(b'{"code":1}'))
    assert command == RemotingCommand(1, language=LanguageCode.OTHER, version=0)


@pytest.mark.parametrize(
    "value", [b"[]", b"[1]", b'"x"', b'""', b"0", b"1", b"false", b"[" * 900 + b"]" * 900]
)
def test_ext_fields_that_are_no_object(value: bytes) -> None:
    with pytest.raises(FrameError, match=r"extFields has type .*, expected an object"):
        FrameReader().feed(json_frame(b'{"code":1,"extFields":%s}' % value))


def test_ext_fields_may_be_null() -> None:
    [command] = FrameReader().feed(json_frame(b'{"code":1,"extFields":null,"remark":null}'))
    assert command.ext_fields == {}
    assert command.remark is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1", "1"),
        (b"-9223372036854775808", "-9223372036854775808"),
        (b"true", "true"),
        (b"false", "false"),
        (b"1.5", "1.5"),
        (b'{"a":[1,null]}', '{"a":[1,null]}'),
    ],
)
def test_ext_field_that_is_no_text_becomes_text(value: bytes, expected: str) -> None:
    [command] = FrameReader().feed(json_frame(b'{"code":1,"extFields":{"a":%s,"n":null}}' % value))
    assert command.ext_fields == {"a": expected}


@pytest.mark.parametrize("depth", [300, 1000])
def test_ext_field_nested_too_deep(depth: int) -> None:
    value = b"[" * depth + b"]" * depth
    with pytest.raises(FrameError, match="extField 'a'"):
        FrameReader().feed(json_frame(b'{"code":1,"extFields":{"a":%s}}' % value))


@pytest.mark.parametrize("value", [b"1", b"true", b"[]", b"{}", b"[" * 1000 + b"]" * 1000])
def test_remark_that_is_no_text(value: bytes) -> None:
    with pytest.raises(FrameError, match=r"remark has type .*, expected a string"):
        FrameReader().feed(json_frame(b'{"code":1,"remark":%s}' % value))


@pytest.mark.parametrize("value", [b'"KLINGON"', b"null", b"0", b"[]", b'{"a":1}'])
def test_unknown_language_is_other(value: bytes) -> None:
    [command] = FrameReader().feed(json_frame(b'{"code":1,"language":%s}' % value))
    assert command.language is LanguageCode.OTHER


def test_unknown_fields_are_ignored() -> None:
    [command] = FrameReader().feed(json_frame(b'{"code":1,"bname":"b","extFields":{"new":"1"}}'))
    assert command.ext_fields == {"new": "1"}


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_a_frame_error(data: bytes) -> None:
    for stream in (data, json_frame(data), frame_prefix(1, len(data), 0) + data):
        try:
            FrameReader().feed(stream)
        except FrameError as error:
            assert str(error)  # noqa: PT017


# Commands


@both_encodings
def test_answer_keeps_opaque_and_encoding(encoding: Encoding) -> None:
    request = RemotingCommand(
        RequestCode.PULL_MESSAGE, opaque=42, ext_fields={"a": "b"}, body=b"x", encoding=encoding
    )
    answer = request.answer(ResponseCode.PULL_NOT_FOUND, "nothing", {"c": "d"}, b"y")
    expected = RemotingCommand(
        19, opaque=42, ext_fields={"c": "d"}, body=b"y", remark="nothing", flag=1, encoding=encoding
    )
    assert answer == expected
    assert type(answer.code) is int
    assert request.answer() == replace(expected, code=0, remark=None, ext_fields={}, body=b"")


@pytest.mark.parametrize(
    ("flag", "response", "oneway"),
    [(0, False, False), (1, True, False), (2, False, True), (3, True, True), (-1, True, True)],
)
def test_flags(flag: int, response: bool, oneway: bool) -> None:
    command = RemotingCommand(1, flag=flag)
    assert command.is_response is response
    assert command.is_oneway is oneway


def test_request_error_says_code_and_remark() -> None:
    error = RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    assert (error.code, error.remark) == (17, "no such topic")
    assert str(error) == "TOPIC_NOT_EXIST: no such topic"


# Gathering


def test_gatherer_joins_once() -> None:
    gatherer = ChunkGatherer()
    data = SAMPLES[1].encode()
    assert gatherer.add(data[:10]) == data[:10]
    gatherer.keep(data[:10], 0)
    assert gatherer.add(data[10:20]) is None
    assert gatherer.add(data[20:-1]) is None
    assert gatherer.add(data[-1:] + data[:3]) == data + data[:3]
    gatherer.keep(data + data[:3], len(data))
    assert gatherer.add(data[3:]) == data
    gatherer.keep(data, len(data))
    assert gatherer.add(data) is data


def test_memory_of_a_frame_in_tiny_pieces_is_that_of_the_frame() -> None:
    size = 128 * 1024
    data = json_frame(b'{"code":1}', bytes(size))
    reader = FrameReader()
    for _ in range(2):
        tracemalloc.start()
        try:
            for start in range(0, len(data) - 2, 2):
                # Not a slice that might be shared: what a socket gives is new each time.
                assert reader.feed(bytes(bytearray(data[start : start + 2]))) == []
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 2 * size
        [command] = reader.feed(data[start + 2 :])
        assert len(command.body) == size


def test_work_for_a_frame_in_tiny_pieces_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    split: Callable[..., object] = frame.split_frames
    calls = 0

    def counting(buffer: bytes, max_frame: int) -> object:
        nonlocal calls
        calls += 1
        return split(buffer, max_frame)

    monkeypatch.setattr(frame, "split_frames", counting)
    data = json_frame(b'{"code":1}', bytes(10_000))
    reader = FrameReader()
    found = [command for byte in data for command in reader.feed(bytes((byte,)))]
    assert len(found) == 1
    # For the first byte, for the prefix, and for the whole.
    assert calls <= 4


def test_a_command_is_an_answer_s_frame() -> None:
    answer = RemotingCommand(1).answer(2, "remark", {"a": "b"}, b"body")
    encoding, header, body = frame_from(answer)
    assert (encoding, header["code"], header["remark"]) == (Encoding.JSON, 2, "remark")
    assert (header["extFields"], body) == ({"a": "b"}, b"body")
    assert command_from((encoding, header, body)).ext_fields == {"a": "b"}
