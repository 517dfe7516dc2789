"""Encode and decode frames, which carry requests and responses on a RocketMQ connection.

    total u32 | encoding u8 | headerLength u24 | header | body

Rules
1. Big endian. `total` counts everything after itself. A frame above 16 MiB, a total below 4 and a
   header longer than its frame are errors. The start of the next frame is then unknown, so the
   connection must be closed.
2. `encoding` is 0 (JSON, see `header_json`) or 1 (ROCKETMQ, see `header_binary`). A response uses
   the encoding and the opaque of its request.
3. flag bit 0 = response, bit 1 = oneway (the sender expects no response).

`split_frames` serves the hot path: it returns all complete frames of a chunk, with headers as
dictionaries. `RemotingCommand` is one frame as typed values, for everything else. Pure; the only
state is the unfinished frame in `ChunkGatherer`.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from pyromq.base.log_lines import shortened
from pyromq.protocol.wire import header_binary, header_json
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from pyromq.protocol.wire.header_json import Header

MAX_FRAME: Final = 16 * 1024 * 1024
#: Characters of a response's remark. Longer ones are cut, because they may echo the request.
MAX_REMARK: Final = 4096

FLAG_RESPONSE: Final = 0x1
FLAG_ONEWAY: Final = 0x2

#: total, then encoding and headerLength in one word.
PREFIX = struct.Struct(">II")
PREFIX_SIZE: Final = 8
assert PREFIX.size == PREFIX_SIZE
#: Bytes of the total field itself, which total does not count.
TOTAL_SIZE: Final = 4
HEADER_LENGTH_MASK: Final = 0xFFFFFF
#: The first two bytes of a TLS handshake, which no frame within the limit begins with.
_TLS_HANDSHAKE: Final = 0x1603

#: Chunks of an unfinished frame that are kept apart before they are merged.
_MAX_UNMERGED_CHUNKS: Final = 256

_LANGUAGES = {language.name: language for language in LanguageCode}


class Encoding(IntEnum):
    """The encoding of a frame's header."""

    JSON = 0
    ROCKETMQ = 1


class FrameError(ValueError):
    """Bytes that are not a frame. The connection must be closed."""


class RequestError(Exception):
    """Raised by a request handler; the response gets this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.code.name}: {self.remark}"


#: A complete frame that is not yet a command: encoding, header, body.
RawFrame = tuple[int, Header, bytes]


@dataclass(slots=True)
class RemotingCommand:
    """A request or a response: one frame as typed values."""

    code: int
    opaque: int = 0
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    flag: int = 0
    language: LanguageCode = LanguageCode.PYTHON
    version: int = PROTOCOL_VERSION
    encoding: Encoding = Encoding.JSON

    @property
    def is_response(self) -> bool:
        """Whether this is the response to a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response."""
        return self.flag & FLAG_ONEWAY != 0

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return a response to this request, with its opaque and encoding."""
        return RemotingCommand(
            code=int(code),
            opaque=self.opaque,
            ext_fields=ext_fields or {},
            body=body,
            remark=remark if remark is None else shortened(remark, MAX_REMARK),
            flag=FLAG_RESPONSE,
            encoding=self.encoding,
        )

    def encode(self) -> bytes:
        """Encode the whole frame with its prefix."""
        encode = header_json.encode if self.encoding == Encoding.JSON else header_binary.encode
        header = encode(
            int(self.code),
            self.language,
            self.version,
            self.opaque,
            self.flag,
            self.remark,
            self.ext_fields,
        )
        return frame_prefix(self.encoding, len(header), len(self.body)) + header + self.body


def frame_prefix(encoding: int, header_length: int, body_length: int) -> bytes:
    """Encode the prefix for a header and a body of these lengths."""
    if header_length > HEADER_LENGTH_MASK:
        raise ValueError(f"header of {header_length} bytes, limit {HEADER_LENGTH_MASK}")
    return PREFIX.pack(
        PREFIX_SIZE - TOTAL_SIZE + header_length + body_length, encoding << 24 | header_length
    )


def header_length(frame: bytes) -> int:
    """Return the length of the header of an encoded frame."""
    length: int = PREFIX.unpack_from(frame)[1] & HEADER_LENGTH_MASK
    return length


def with_code(frames: bytes, code: int, field: bytes, remark: str = "") -> bytes:
    """Return frames of our own with another code in those that have code 0 and this field.

    They also get the remark, if it is not empty.

    A tenth of the cost of decoding and encoding them, while a SYNC_MASTER has no replica.
    """
    changed: list[bytes] = []
    position = 0
    while position < len(frames):
        total, word = PREFIX.unpack_from(frames, position)
        start, end = position + PREFIX_SIZE, position + TOTAL_SIZE + total
        body_start = start + (word & HEADER_LENGTH_MASK)
        header, encoding = frames[start:body_start], word >> 24
        if field in header:
            recode = header_json.with_code if encoding == Encoding.JSON else header_binary.with_code
            header = recode(header, code, remark)
        body = frames[body_start:end]
        changed += (frame_prefix(encoding, len(header), len(body)), header, body)
        position = end
    return b"".join(changed)


#: `pack_prefix(4 + headerLength + bodyLength, headerLength)` is the prefix of a JSON frame without
#: the cost of a Python call, for the hot path.
pack_prefix = PREFIX.pack


def split_frames(
    buffer: bytes, max_frame: int = MAX_FRAME, position: int = 0, max_count: int = sys.maxsize
) -> tuple[list[RawFrame], int, FrameError | None]:
    """Return the complete frames of `buffer`, where the last one ends, and an error or None.

    Starts at `position` and stops after `max_count` frames. The frames before an error are good and
    deserve a response.
    """
    frames: list[RawFrame] = []
    add = frames.append
    unpack = PREFIX.unpack_from
    decode_json = header_json.decode
    length = len(buffer)
    while length - position >= PREFIX_SIZE and len(frames) < max_count:
        total, word = unpack(buffer, position)
        end = position + TOTAL_SIZE + total
        if end > length and total + TOTAL_SIZE <= max_frame:
            break
        start = position + PREFIX_SIZE
        body_start = start + (word & HEADER_LENGTH_MASK)
        if total + TOTAL_SIZE > max_frame or body_start > end:
            return frames, position, _bad_lengths(total, word, max_frame)
        encoding = word >> 24
        try:
            if encoding == 0:
                header = decode_json(buffer[start:body_start])
            elif encoding == 1:
                header = header_binary.decode(buffer[start:body_start])
            else:
                return frames, position, FrameError(f"header encoding {encoding}, expected 0 or 1")
        except (header_json.DecodeError, header_binary.DecodeError) as error:
            return frames, position, FrameError(f"header cannot be decoded: {error}")
        if type(header) is not dict:
            return frames, position, FrameError("header is not a JSON object")
        add((encoding, header, buffer[body_start:end]))
        position = end
    return frames, position, None


def frame_size(buffer: bytes) -> int | None:
    """Return the size of the frame at the head of `buffer`, or None while it is unknown."""
    if len(buffer) < TOTAL_SIZE:
        return None
    return TOTAL_SIZE + int.from_bytes(buffer[:TOTAL_SIZE], "big")


def frame_from(command: RemotingCommand) -> RawFrame:
    """Return a command as a raw frame, for callers that read responses without commands."""
    header = {
        "code": command.code,
        "language": command.language.name,
        "remark": command.remark,
        "extFields": command.ext_fields,
    }
    return command.encoding, header, command.body


def command_from(frame: RawFrame) -> RemotingCommand:
    """Return a raw frame as a command. Raises FrameError for an invalid field."""
    encoding, header, body = frame
    if "code" not in header:
        raise FrameError("header field code is missing")
    remark = header.get("remark")
    if remark is not None and type(remark) is not str:
        raise FrameError(f"remark has type {type(remark).__name__}, expected a string")
    ext_fields = header.get("extFields")
    if ext_fields is None:
        ext_fields = {}
    elif type(ext_fields) is not dict:
        raise FrameError(f"extFields has type {type(ext_fields).__name__}, expected an object")
    try:
        texts = header_json.text_fields(ext_fields)
    except ValueError as error:
        raise FrameError(str(error)) from error
    return RemotingCommand(
        code=_integer(header, "code"),
        opaque=_integer(header, "opaque"),
        ext_fields=texts,
        body=body,
        remark=remark,
        flag=_integer(header, "flag"),
        language=_language(header.get("language")),
        version=_integer(header, "version"),
        encoding=Encoding(encoding),
    )


def decode_frame(frame: bytes) -> RemotingCommand:
    """Decode exactly one whole frame with its prefix. Raises FrameError."""
    frames, taken, error = split_frames(frame)
    if error:
        raise error
    if len(frames) != 1 or taken != len(frame):
        raise FrameError(f"{len(frame)} bytes are not exactly one frame")
    return command_from(frames[0])


class FrameReader:
    """Turns a stream of chunks into commands."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._gatherer = ChunkGatherer(max_frame)

    def feed(self, data: bytes) -> list[RemotingCommand]:
        """Add a chunk and return the commands it completes. Raises FrameError."""
        buffer = self._gatherer.add(data)
        if buffer is None:
            return []
        frames, taken, error = split_frames(buffer, self._max_frame)
        if error:
            raise error
        self._gatherer.keep(buffer, taken)
        return [command_from(frame) for frame in frames]


class ChunkGatherer:
    """Keeps the unfinished frame at the end of a chunk until the rest arrives.

    The chunks of a frame are joined once all of it has arrived; before that, small chunks are
    merged once. A peer that sends a large frame a few bytes at a time thus costs linear, not
    quadratic, time, and little more memory than the frame.
    """

    __slots__ = ("_chunks", "_have", "_max_frame", "_merged", "_need")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._chunks: list[bytes] = []
        #: How many of them, at the head, are results of a merge.
        self._merged = 0
        self._have = 0
        self._need = 0

    @property
    def held(self) -> int:
        """The bytes of the unfinished frame."""
        return self._have if self._chunks else 0

    def add(self, data: bytes) -> bytes | None:
        """Add a chunk; return all gathered bytes if they may hold a complete frame, else None."""
        if not self._chunks:
            return data
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            if len(self._chunks) - self._merged >= _MAX_UNMERGED_CHUNKS:
                self._chunks[self._merged :] = [b"".join(self._chunks[self._merged :])]
                self._merged += 1
            return None
        buffer = b"".join(self._chunks)
        self._chunks.clear()
        self._merged = 0
        return buffer

    def keep(self, buffer: bytes, taken: int) -> None:
        """Keep the bytes after the last complete frame."""
        if taken == len(buffer):
            return
        rest = buffer[taken:]
        self._chunks.append(rest)
        self._have = len(rest)
        size = frame_size(rest)
        # A frame that is too long is rejected as soon as its prefix is complete.
        self._need = (
            PREFIX_SIZE if size is None or size > self._max_frame else max(PREFIX_SIZE, size)
        )


def _bad_lengths(total: int, word: int, max_frame: int) -> FrameError:
    if total + TOTAL_SIZE > max_frame:
        hint = "; is it a TLS handshake?" if total >> 16 == _TLS_HANDSHAKE else ""
        return FrameError(f"frame of {total + TOTAL_SIZE} bytes, limit {max_frame}{hint}")
    return FrameError(f"header of {word & HEADER_LENGTH_MASK} bytes in a frame of {total}")


def _integer(header: Header, name: str) -> int:
    value: Any = header.get(name, 0)
    if type(value) is not int or not -0x80000000 <= value <= 0x7FFFFFFF:
        # The repr of a deeply nested value could exceed the recursion limit.
        shown = type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.40}"
        raise FrameError(f"header field {name} is {shown}, not a 32-bit integer")
    return value


def _language(value: object) -> LanguageCode:
    if isinstance(value, str):
        return _LANGUAGES.get(value, LanguageCode.OTHER)
    return LanguageCode.OTHER
