"""Reads and checks responses for the load generator, at the lowest cost per response.

Two kinds of responses need two ways. Responses to sends are small and many: `CountedAnswers`
appends them to a buffer, counts a marker that each contains once, and decodes nothing until the
clock has stopped. Responses to pulls are large and few: `WalkedAnswers` steps over their length
prefixes and keeps only the headers' opaques. Used by bench/generator.py, on its only thread.

Invariants:
1. Every response is decoded before its latency is reported: a response other than a success
   raises LoadError with its text. Only "busy", a broker's flow control, is counted instead.
2. `chunks` holds the time of each read and the number of responses whose marker it brought.
3. A marker split over two reads counts in the second.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from bench.frames import BINARY_OPAQUE_BASE, OPAQUE_BASE, Encoding, Ring

Slots = npt.NDArray[np.int64]

STALL_SECONDS: Final = 30.0
_SYSTEM_BUSY: Final = 2
#: Address space per connection. Pages are allocated when written, so a short run uses little.
_CAPACITY: Final = 1 << 29
_READ_SIZE: Final = 1 << 18
_WALK_BUFFER: Final = 1 << 20
_PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_NEXT_OFFSET: Final = re.compile(rb'"nextBeginOffset":"(\d+)"')
_NATS_ACK: Final = re.compile(rb'_INBOX\.\w+\.(\d+) 1 \d+\r\n\{"stream":"\w+", ?"seq":\d+\}\r\n')


class LoadError(RuntimeError):
    """A response was not a success, or did not arrive."""


class Answers(ABC):
    """The responses of one connection since `forget`."""

    def __init__(self) -> None:
        #: (time in ns, number of responses), in order.
        self.chunks: list[tuple[int, int]] = []

    @abstractmethod
    def receive(self, connection: socket.socket) -> int:
        """Read available bytes; return the number of responses in them."""

    @abstractmethod
    def forget(self, connection: socket.socket) -> int:
        """Check and drop all responses; return the number of refusals."""

    @abstractmethod
    def slots(self, connection: socket.socket) -> tuple[Slots, int]:
        """Return the slots of all responses in order of arrival, and the number of refusals."""


def answers_for(ring: Ring) -> Answers:
    """Return the reader for the responses to a ring's requests."""
    if ring.next_offsets is not None:
        return WalkedAnswers(ring.next_offsets)
    return CountedAnswers(_LAYOUTS[ring.encoding])


# Small responses: count now, decode later.


class Decode(Protocol):
    """Decodes complete responses into slots and the number of refusals."""

    def __call__(self, data: bytes) -> tuple[Slots, int]:
        """Decode; raise LoadError for a failure."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What `CountedAnswers` must know of a protocol."""

    marker: bytes  # once in every response, never elsewhere
    decode: Decode
    is_text: bool = False  # responses are lines; otherwise they have a length prefix


class CountedAnswers(Answers):
    """Responses without a body, kept as they arrived until they are decoded."""

    def __init__(self, layout: Layout, capacity: int = _CAPACITY) -> None:
        super().__init__()
        self._layout = layout
        self._marker = layout.marker
        self._overlap = len(layout.marker) - 1
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._end = 0
        #: Decoded because the buffer was full.
        self._decoded: list[Slots] = []
        self._refused = 0

    def receive(self, connection: socket.socket) -> int:
        """Read and count."""
        start = self._end
        if start + _READ_SIZE > len(self._buffer):
            start = self._make_room()
        got = connection.recv_into(self._view[start : start + _READ_SIZE])
        now = time.perf_counter_ns()
        if not got:
            raise LoadError("the server closed the connection")
        self._end = end = start + got
        overlap = self._overlap
        found = self._buffer.count(self._marker, start - overlap if start > overlap else 0, end)
        if found:
            self.chunks.append((now, found))
        return found

    def forget(self, connection: socket.socket) -> int:
        """Check and drop all responses."""
        _, refused = self.slots(connection)
        self.chunks.clear()
        self._decoded.clear()
        self._refused = self._end = 0
        return refused

    def slots(self, connection: socket.socket) -> tuple[Slots, int]:
        """Decode what was counted, after its last bytes have arrived."""
        while self._whole() < self._end:
            if not select.select((connection,), (), (), STALL_SECONDS)[0]:
                raise LoadError(f"the end of a response did not arrive in {STALL_SECONDS:g} s")
            if self.receive(connection):
                raise LoadError("a response arrived that no request asked for")
        slots, refused = self._layout.decode(bytes(self._view[: self._end]))
        return np.concatenate([*self._decoded, slots]), refused + self._refused

    def _make_room(self) -> int:
        """Decode the complete responses and move the rest to the front; return its end."""
        whole = self._whole()
        slots, refused = self._layout.decode(bytes(self._view[:whole]))
        self._decoded.append(slots)
        self._refused += refused
        rest = self._end - whole
        self._view[:rest] = bytes(self._view[whole : self._end])
        self._end = rest
        return rest

    def _whole(self) -> int:
        """Return the end of the last complete response."""
        if self._layout.is_text:
            return self._buffer.rfind(b"}\r\n", 0, self._end) + 3 if self._end else 0
        position, end, unpack = 0, self._end, _LENGTH.unpack_from
        while position + 4 <= end:
            following: int = position + 4 + unpack(self._buffer, position)[0]
            if following > end:
                break
            position = following
        return position


def _decode_json(data: bytes) -> tuple[Slots, int]:
    opaques = _OPAQUE.findall(data)
    refused = 0
    if data.count(b'"code":0,') != len(opaques):  # another layout, or refusals
        heads = []
        position = 0
        while position < len(data):
            total, length = _PREFIX.unpack_from(data, position)
            heads.append(memoryview(data)[position + 8 : position + 8 + length])
            position += 4 + total
        opaques, refused = read_slowly(heads)
    return np.array(opaques, dtype="S").astype(np.int64) - OPAQUE_BASE, refused


def _decode_binary(data: bytes) -> tuple[Slots, int]:
    """Decode RocketMQ's binary headers: code, language, version and opaque have fixed places."""
    head = struct.Struct(">IIhBhi")
    opaques = []
    refused = position = 0
    while position < len(data):
        total, length, code, _, _, opaque = head.unpack_from(data, position)
        following = position + 4 + total
        if length >> 24 != 1:
            raise LoadError(f"not a binary header: {data[position + 8 : following]!r}")
        if code == _SYSTEM_BUSY:
            refused += 1
        elif code:
            raise LoadError(f"the server refused a request: {data[position + 8 : following]!r}")
        opaques.append(opaque)
        position = following
    return np.array(opaques, dtype=np.int64) - BINARY_OPAQUE_BASE, refused


def _decode_nats(data: bytes) -> tuple[Slots, int]:
    found = _NATS_ACK.findall(data)
    if len(found) != data.count(b"_INBOX."):
        unread = _NATS_ACK.sub(b"", data)[:500]
        raise LoadError(f"the server refused a message: {unread.decode(errors='replace')}")
    return np.array(found, dtype="S").astype(np.int64), 0


_LAYOUTS: Final = {
    Encoding.JSON: Layout(b'"opaque":', _decode_json),
    Encoding.BINARY: Layout(_LENGTH.pack(BINARY_OPAQUE_BASE)[:2], _decode_binary),
    Encoding.NATS: Layout(b"_INBOX.", _decode_nats, is_text=True),
}


def read_slowly(heads: Sequence[memoryview]) -> tuple[list[bytes], int]:
    """Parse JSON headers that the fast expressions do not match.

    Returns their opaques and the number of "busy" responses.
    """
    opaques = []
    busy = 0
    for head in heads:
        header = orjson.loads(head)
        if header["code"] == _SYSTEM_BUSY:
            busy += 1
        elif header["code"] != 0:
            raise LoadError(f"the server refused a request: {bytes(head).decode()}")
        opaques.append(str(header["opaque"]).encode())
    return opaques, busy


# Large responses: step over the bodies.


class WalkedAnswers(Answers):
    """Responses to pulls; each must bring the messages up to its expected next offset."""

    def __init__(self, next_offsets: Slots) -> None:
        super().__init__()
        self._expected = next_offsets
        self._opaques: list[bytes] = []
        self._next_offsets: list[bytes] = []
        self._refused = 0
        self._buffer = bytearray(_WALK_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def receive(self, connection: socket.socket) -> int:
        """Read and step over complete responses."""
        got = connection.recv_into(self._view[self._filled :])
        now = time.perf_counter_ns()
        if not got:
            raise LoadError("the server closed the connection")
        end = self._filled + got
        position = 0
        heads = []
        while position + 8 <= end:
            total, length = _PREFIX.unpack_from(self._buffer, position)
            following = position + 4 + total
            if following > end:
                if 4 + total > _WALK_BUFFER:
                    raise LoadError(f"a response of {total} bytes is larger than any expected")
                break
            heads.append(self._view[position + 8 : position + 8 + length])
            position = following
        if heads:
            self._read(heads)
            self.chunks.append((now, len(heads)))
        self._filled = end - position
        if position and self._filled:
            self._buffer[: self._filled] = self._buffer[position:end]
        return len(heads)

    def forget(self, connection: socket.socket) -> int:
        """Check and drop all responses."""
        _, refused = self.slots(connection)
        self.chunks.clear()
        self._opaques.clear()
        self._next_offsets.clear()
        self._refused = 0
        return refused

    def slots(self, connection: socket.socket) -> tuple[Slots, int]:
        """Return the slots, after a check of every pull's next offset."""
        del connection  # all counted responses are complete
        slots = np.array(self._opaques, dtype="S").astype(np.int64) - OPAQUE_BASE
        said = np.array(self._next_offsets, dtype="S").astype(np.int64)
        if not np.array_equal(said, self._expected[slots]):
            raise LoadError("a pull did not bring the full number of messages")
        return slots, self._refused

    def _read(self, heads: list[memoryview]) -> None:
        joined = b"".join(heads)
        opaques = _OPAQUE.findall(joined)
        if len(opaques) != len(heads) or joined.count(b'"code":0,') != len(heads):
            opaques, busy = read_slowly(heads)
            self._refused += busy
        self._opaques += opaques
        self._next_offsets += _NEXT_OFFSET.findall(joined)
