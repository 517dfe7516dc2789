"""Hostile bytes for every decoder: a value comes out, or the decoder's own error. Nothing else.

Two kinds of input: bytes and values made up from nothing, and true frames (captured from
Java) with damage. Whatever a decoder takes, it can write and read again.
"""

from __future__ import annotations

import inspect
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.message.properties import decode_properties
from pyromq.protocol.message.record import (
    RecordError,
    decode_record,
    decode_records,
    encode_inner_message,
    inner_count,
)
from pyromq.protocol.wire import bodies, headers, headers_admin
from pyromq.protocol.wire.body_codec import Body
from pyromq.protocol.wire.frame import (
    Encoding,
    FrameError,
    FrameReader,
    RemotingCommand,
    decode_frame,
)
from pyromq.protocol.wire.header_codec import Header, HeaderError
from tests.golden.golden_data import cut, read_bytes, read_index
from tests.support.each import for_each
from tests.support.examples import examples
from tests.support.records import make_record

FRAMES = read_index("frames")
STREAM = read_bytes("frames")
TRAFFIC = read_bytes("traffic")

HEADERS = [
    member
    for module in (headers, headers_admin)
    for _, member in inspect.getmembers(module, inspect.isclass)
    if issubclass(member, Header) and member is not Header
]
BODIES = [
    member
    for _, member in inspect.getmembers(bodies, inspect.isclass)
    if issubclass(member, Body) and member is not Body
]

every_header = for_each("header", HEADERS, lambda member: member.__name__)
every_body = for_each("body", BODIES, lambda member: member.__name__)

#: Numbers and texts that break naive code.
ABSURD = [
    "",
    " ",
    "0",
    "-0",
    "+1",
    "-1",
    "01",
    "1_000",
    " 1",
    "1 ",
    "1.0",
    "1e9",
    "0x10",
    "NaN",
    "null",
    "true",
    "TRUE",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "9" * 5000,
    "\u0661\u0662",
    "\x00",
    "\x01",
    "\x02",
    "%d%s%n",
    "../../etc/passwd",
    "\u20ac\U0001f680",
    "x" * 70_000,
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from([text for text in ABSURD if len(text) < 100]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


# Frames


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_random_chunks(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except FrameError as error:
        assert str(error)  # noqa: PT017


@given(st.data())
@settings(max_examples=examples(300))
def test_damaged_frames(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(FRAMES))
    frame = bytearray(cut(STREAM, entry))
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    try:
        command = decode_frame(bytes(frame))
    except FrameError as error:
        assert str(error)  # noqa: PT017
    else:
        assert decode_frame(command.encode()) == command


@given(st.data())
def test_stream_with_a_piece_lost(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TRAFFIC) - 1))
    length = data.draw(st.integers(1, 200))
    damaged = (TRAFFIC[:start] + TRAFFIC[start + length :])[-20_000:]
    size = data.draw(st.integers(1, 5000))
    reader = FrameReader()
    try:
        for at in range(0, len(damaged), size):
            reader.feed(damaged[at : at + size])
    except FrameError as error:
        assert str(error)  # noqa: PT017


@given(
    st.dictionaries(
        st.sampled_from(
            ["code", "opaque", "flag", "version", "language", "remark", "extFields", "x"]
        ),
        json_values,
    )
)
def test_headers_of_any_json(header: dict[str, object]) -> None:
    text = orjson.dumps(header)
    frame = struct.pack(">II", 4 + len(text), len(text)) + text
    try:
        [command] = FrameReader().feed(frame)
    except FrameError as error:
        assert len(str(error)) < 300  # noqa: PT017
    else:
        assert decode_frame(command.encode()) == command


@pytest.mark.parametrize("encoding", list(Encoding), ids=lambda encoding: encoding.name)
@pytest.mark.parametrize("text", ABSURD, ids=lambda text: ascii(text[:20]))
def test_absurd_fields_survive_a_frame(encoding: Encoding, text: str) -> None:
    command = RemotingCommand(
        10, ext_fields={"a": text, text[:1000]: "b"}, remark=text or None, encoding=encoding
    )
    assert decode_frame(command.encode()) == command


# Headers and bodies


@every_header
def test_absurd_header_values(header: type[Header]) -> None:
    names = {name for name in Known(header) if name}
    for text in ABSURD:
        fields = dict.fromkeys(names, text)
        try:
            decoded = header.decode(fields)
        except HeaderError as error:
            assert header.__name__ in str(error)  # noqa: PT017
            assert len(str(error)) < 300  # noqa: PT017
        else:
            assert header.decode(decoded.encode()) == decoded


class Known(list[str]):
    """The wire names of a header, as a decoder asks for them."""

    def __init__(self, header: type[Header]) -> None:
        super().__init__()
        known = self

        class Spy(dict[str, str]):
            def get(self, name: str, default: object = None) -> str:
                known.append(name)
                return "1"

        header.decode(Spy())


@every_header
@given(
    st.dictionaries(
        st.sampled_from(["topic", "group", "queueId", "a", "b", "e", "i", "x"]),
        st.sampled_from(ABSURD) | st.text(max_size=10),
    )
)
@settings(max_examples=examples(20))
def test_any_header_fields(header: type[Header], fields: dict[str, str]) -> None:
    try:
        header.decode(fields)
    except HeaderError as error:
        assert header.__name__ in str(error)  # noqa: PT017


@every_body
@given(st.data())
@settings(max_examples=examples(30))
def test_bodies_of_any_json(body: type[Body], data: st.DataObject) -> None:
    names = [*_names(body), "x"]
    value = data.draw(
        json_values | st.dictionaries(st.sampled_from(names), json_values, max_size=6)
    )
    _decode(body.decode, orjson.dumps(value))


def _names(body: type[Body]) -> list[str]:
    words = [name.split("_") for name in getattr(body, "__dataclass_fields__", {})]
    return [first + "".join(word.capitalize() for word in rest) for first, *rest in words] or ["x"]


@every_body
@given(st.binary(max_size=100))
@settings(max_examples=examples(30))
def test_bodies_of_any_bytes(body: type[Body], data: bytes) -> None:
    _decode(body.decode, data)
    _decode(body.decode, b"{" + data + b"}")


BOMBS = {
    "list": b"[" * 100_000,
    "object": b'{"a":' * 100_000,
    "integer keys": b"{1:" * 100_000,
    "object keys": b"{{" * 100_000,
    "deep": b"[" * 1000 + b"]" * 1000,
    "deep member": b'{"topicConfigTable":' + b"[" * 1000 + b"]" * 1000 + b"}",
    "deep members": b'{"topicConfigTable":' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
    "string": b'"' + b"\\" * 100_000,
    "number": b"9" * 100_000,
    "surrogate": b'{"clientID":"\\ud800"}',
    "no utf-8": b'{"clientID":"\xff"}',
    "keys": b"{" + b",".join(b"%d:%d" % (n, n) for n in range(10_000)) + b"}",
    "nan": b'{"clientID":NaN}',
    "null": b"null",
    "nothing": b"",
}


@every_body
@pytest.mark.parametrize("bomb", list(BOMBS.values()), ids=list(BOMBS))
def test_bombs_in_bodies(body: type[Body], bomb: bytes) -> None:
    _decode(body.decode, bomb)


@every_body
def test_nested_values_in_every_field(body: type[Body]) -> None:
    for name in _names(body):
        for value in (b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"1" + b"}" * 1000):
            _decode(body.decode, b'{"%s":%s}' % (name.encode(), value))


@given(st.binary(max_size=200))
def test_compressed_registrations_of_any_bytes(data: bytes) -> None:
    def decode(body: bytes) -> object:
        return bodies.RegisterBrokerBody.decode(body, compressed=True)

    _decode(decode, data)
    _decode(decode, zlib.compress(data))
    _decode(decode, zlib.compress(struct.pack(">i", len(data)) + data))


def test_compressed_registration_that_swells() -> None:
    squeezer = zlib.compressobj(9)
    bomb = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(256)) + squeezer.flush()
    tracemalloc.start()
    try:
        with pytest.raises(BodyError) as info:
            bodies.RegisterBrokerBody.decode(bomb, compressed=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Far from what it would swell to.
    assert peak < 160 * 1024 * 1024
    assert len(str(info.value)) < 300


def _decode(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except BodyError as error:
        assert str(error)  # noqa: PT017
        assert len(str(error)) < 1000  # noqa: PT017


@given(st.text(alphabet='{}[],:"\\01-a ', max_size=60))
def test_text_that_is_nearly_json(text: str) -> None:
    try:
        value = parse_json(text)
    except BodyError as error:
        assert str(error)  # noqa: PT017
    else:
        orjson.dumps(value)


# Records, properties, settings


@given(st.data())
@settings(max_examples=examples(300))
def test_damaged_records(data: st.DataObject) -> None:
    sys_flag = data.draw(st.sampled_from([0, 0x10, 0x20, 0x30]))
    records = bytearray(
        b"".join(make_record(sys_flag=sys_flag, properties=b"KEYS\x01k") for _ in range(3))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(records) - 1))
        records[position] = data.draw(st.integers(0, 255))
    offset = data.draw(st.integers(0, len(records)))
    damaged = bytes(records)
    for decode in (lambda: decode_records(damaged), lambda: decode_record(damaged, offset)):
        try:
            decode()
        except RecordError as error:
            assert str(error)  # noqa: PT017


@given(st.lists(st.binary(max_size=30), max_size=6), st.binary(max_size=40))
def test_batches_with_anything_behind(messages: list[bytes], rest: bytes) -> None:
    batch = b"".join(encode_inner_message(body, b"") for body in messages)
    assert inner_count(batch) == len(messages)
    assert inner_count(batch + rest) >= len(messages)


@given(st.binary(max_size=200))
def test_properties_and_settings_of_any_bytes(data: bytes) -> None:
    assert isinstance(decode_properties(data), dict)
    try:
        parse_properties(data)
    except PropertiesError as error:
        assert str(error)  # noqa: PT017
