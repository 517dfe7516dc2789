"""Frames: how requests and answers stand on a RocketMQ connection.

    total u32 | encoding u8 | headerLength u24 | header | body

Rules
1. Big endian. `total` counts everything after itself; a frame above 16 MiB, a
   total below 4 and a header longer than its frame are errors: such a connection
   can only be closed, since the next frame's start is unknown.
2. `encoding` is 0 (JSON, see `header_json`) or 1 (ROCKETMQ, see `header_binary`);
   an answer uses its request's encoding and carries its opaque.
3. flag bit 0 = answer, bit 1 = oneway (the sender wants no answer).

`split_frames` is the hot path's door: all whole frames of what a socket had, with
headers still as dictionaries. `RemotingCommand` is one frame as typed values, for
everything else. Pure; no state but `FrameReader`'s buffered bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from pyromq.base.log_lines import shortened
from pyromq.protocol.wire import header_binary, header_json
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from pyromq.protocol.wire.header_json import Header

MAX_FRAME: Final = 16 * 1024 * 1024
#: Characters of an answer's remark; a longer one is cut, since it may echo its request.
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

#: So many chunks of an unfinished frame are kept apart before they are merged.
_MERGE_CHUNKS: Final = 256

_LANGUAGES = {language.name: language for language in LanguageCode}


class Encoding(IntEnum):
    """How a frame's header is written."""

    JSON = 0
    ROCKETMQ = 1


class FrameError(ValueError):
    """Bytes that are no frame: the connection they came from must be closed."""


class RequestError(Exception):
    """Raised by whoever handles a request: the answer gets this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.code.name}: {self.remark}"


#: A whole frame before it is a command: encoding, header, body.
RawFrame = tuple[int, Header, bytes]


@dataclass(slots=True)
class RemotingCommand:
    """One frame as values: a request or an answer."""

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
        """Whether this answers a request of ours."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & FLAG_ONEWAY != 0

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """The answer to this request: its opaque and encoding, response bit set."""
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
        """The whole frame, length prefix included."""
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
    """The eight bytes in front of a header of that length and a body of that length."""
    if header_length > HEADER_LENGTH_MASK:
        raise ValueError(
            f"header of {header_length} bytes: at most {HEADER_LENGTH_MASK} are possible"
        )
    return PREFIX.pack(
        PREFIX_SIZE - TOTAL_SIZE + header_length + body_length, encoding << 24 | header_length
    )


#: `pack_prefix(4 + headerLength + bodyLength, headerLength)`: the prefix of a JSON
#: frame without a Python call of its own, for answers that are made by the thousand.
pack_prefix = PREFIX.pack


def split_frames(
    buffer: bytes, max_frame: int = MAX_FRAME
) -> tuple[list[RawFrame], int, FrameError | None]:
    """All whole frames at the head of `buffer`, and how many bytes they took.

    An error comes last: the frames before it are good and deserve their answers.
    """
    frames: list[RawFrame] = []
    add = frames.append
    unpack = PREFIX.unpack_from
    decode_json = header_json.decode
    position = 0
    length = len(buffer)
    while length - position >= PREFIX_SIZE:
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
                return frames, position, FrameError(f"header encoding {encoding}, not 0 or 1")
        except (header_json.DecodeError, header_binary.DecodeError) as error:
            return frames, position, FrameError(f"header cannot be read: {error}")
        if type(header) is not dict:
            return frames, position, FrameError("header is no JSON object")
        add((encoding, header, buffer[body_start:end]))
        position = end
    return frames, position, None


def frame_size(buffer: bytes) -> int | None:
    """How many bytes the frame at the head of `buffer` takes; None: not yet known."""
    if len(buffer) < TOTAL_SIZE:
        return None
    return TOTAL_SIZE + int.from_bytes(buffer[:TOTAL_SIZE], "big")


def frame_from(command: RemotingCommand) -> RawFrame:
    """A command as a raw frame, for those who read answers without making commands of them."""
    header = {
        "code": command.code,
        "language": command.language.name,
        "remark": command.remark,
        "extFields": command.ext_fields,
    }
    return command.encoding, header, command.body


def command_from(frame: RawFrame) -> RemotingCommand:
    """A raw frame as a command; raises FrameError when a field is of no use."""
    encoding, header, body = frame
    if "code" not in header:
        raise FrameError("header field code is missing")
    remark = header.get("remark")
    if remark is not None and type(remark) is not str:
        raise FrameError(f"remark is {type(remark).__name__}, not text")
    ext_fields = header.get("extFields")
    if ext_fields is None:
        ext_fields = {}
    elif type(ext_fields) is not dict:
        raise FrameError(f"extFields is {type(ext_fields).__name__}, not an object")
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
    """Exactly one whole frame, length prefix included."""
    frames, taken, error = split_frames(frame)
    if error:
        raise error
    if len(frames) != 1 or taken != len(frame):
        raise FrameError(f"{len(frame)} bytes are not exactly one frame")
    return command_from(frames[0])


class FrameReader:
    """Bytes in any chunks, whole commands out."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._gatherer = ChunkGatherer(max_frame)

    def feed(self, data: bytes) -> list[RemotingCommand]:
        """The commands that are whole now; raises FrameError where reading must end."""
        buffer = self._gatherer.add(data)
        if buffer is None:
            return []
        frames, taken, error = split_frames(buffer, self._max_frame)
        if error:
            raise error
        self._gatherer.keep(buffer, taken)
        return [command_from(frame) for frame in frames]


class ChunkGatherer:
    """Keeps the cut-off tail of a chunk until its frame can be whole.

    A frame of many chunks is joined when enough has come, and tiny chunks are merged
    once before that: a peer that sends a large frame in small pieces costs linear,
    not quadratic, time, and not much more memory than the frame.
    """

    __slots__ = ("_chunks", "_have", "_max_frame", "_merged", "_need")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._chunks: list[bytes] = []
        #: So many of them are results of a merge.
        self._merged = 0
        self._have = 0
        self._need = 0

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame that are kept."""
        return self._have if self._chunks else 0

    def add(self, data: bytes) -> bytes | None:
        """Everything gathered when it may hold a whole frame, else None."""
        if not self._chunks:
            return data
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            if len(self._chunks) - self._merged >= _MERGE_CHUNKS:
                self._chunks[self._merged :] = [b"".join(self._chunks[self._merged :])]
                self._merged += 1
            return None
        buffer = b"".join(self._chunks)
        self._chunks.clear()
        self._merged = 0
        return buffer

    def keep(self, buffer: bytes, taken: int) -> None:
        """Put back what lies behind the last whole frame."""
        if taken == len(buffer):
            return
        rest = buffer[taken:]
        self._chunks.append(rest)
        self._have = len(rest)
        size = frame_size(rest)
        # A frame that is too long is refused as soon as its prefix is whole.
        self._need = (
            PREFIX_SIZE if size is None or size > self._max_frame else max(PREFIX_SIZE, size)
        )


def _bad_lengths(total: int, word: int, max_frame: int) -> FrameError:
    if total + TOTAL_SIZE > max_frame:
        return FrameError(f"frame of {total + TOTAL_SIZE} bytes, at most {max_frame} are allowed")
    return FrameError(f"header of {word & HEADER_LENGTH_MASK} bytes in a frame of {total}")


def _integer(header: Header, name: str) -> int:
    value: Any = header.get(name, 0)
    if type(value) is not int or not -0x80000000 <= value <= 0x7FFFFFFF:
        # The text of a nested value may be too deep to be made.
        shown = type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.40}"
        raise FrameError(f"header field {name} is {shown}, not a 32-bit integer")
    return value


def _language(value: object) -> LanguageCode:
    if isinstance(value, str):
        return _LANGUAGES.get(value, LanguageCode.OTHER)
    return LanguageCode.OTHER
