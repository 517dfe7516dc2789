"""The bytes between a master and a replica, on the master's replication port.

Java's format, for peers of which one is RocketMQ 4.9. Big endian.

    replica -> master   maxPhyOffset i64                     a report; the first is the request
    master -> replica   phyOffset i64 | size i32 | body      size 0: a heartbeat, whose phyOffset
                                                             is the next offset to be sent

Our own format, between two pyromq brokers. A replica opens with an enquiry, which a Java master
takes for a report that asks for nothing (its "no request yet" is -1 too), and waits for the hello.

    replica -> master   ENQUIRY i64 (-1)
    master -> replica   CONTROL i64 (-1) | size i32 | crc u32 | JSON      the hello
    replica -> master   size i32 | crc u32 | JSON                         a question
    master -> replica   CONTROL | size | crc | JSON                       its answer
    ... questions and answers, until the answer to "follow" accepts it, then
    master -> replica   phyOffset i64 | size i32 | crc u32 | body         size 0: a heartbeat
    replica -> master   offset i64 | crc u32                              a report

    crc is the CRC-32 of the fields before it and the body. A damaged question would be answered
    with checksums of other bytes, and a damaged report would acknowledge messages.

JSON
    hello       version 1, first and end of the master's log, segmentSize, brokerName
    checksums   in a question: a list of [start, end]; in its answer: a CRC-32 or null for each
    follow      in a question: the offset to start at, start and crc of the bytes before it, and
                brokerId; in its answer: the offset
    number      in a question, and in its answer: tells which question an answer belongs to
    error       in any control frame: the master gives up, and this is the reason

Rules
1. A frame never crosses a segment of the master. A Java master cuts records anywhere, and so do
   checked frames. A frame to a Java replica has whole records, unless one is larger than rule 2
   allows: it appends every frame, and when it connects again, it asks for what follows.
2. A Java replica's buffer holds 4 MiB: header and body must fit (`MAX_PLAIN_BODY`).
3. Reports are offsets up to which the replica has everything, in whole records.

Pure.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import orjson

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.crc import crc32
from pyromq.store.replication_settings import MAX_TRANSFER_BATCH

#: The version of our own format.
VERSION: Final = 1
#: An enquiry, and the offset of control frames.
NEGOTIATION: Final = -1

REPORT = struct.Struct(">q")
REPORT_SIZE: Final = 8
PLAIN_HEADER = struct.Struct(">qi")
PLAIN_HEADER_SIZE: Final = 12
_CHECKSUM = struct.Struct(">I")
CHECKED_HEADER_SIZE: Final = PLAIN_HEADER_SIZE + _CHECKSUM.size
CHECKED_REPORT_SIZE: Final = REPORT_SIZE + _CHECKSUM.size
_QUESTION = struct.Struct(">i")
_QUESTION_HEADER_SIZE: Final = _QUESTION.size + _CHECKSUM.size
ENQUIRY: Final = REPORT.pack(NEGOTIATION)

MAX_PLAIN_BODY: Final = MAX_TRANSFER_BATCH
#: Of frames between pyromq brokers.
MAX_CHECKED_BODY: Final = 1 * MIB
MAX_QUESTION: Final = 64 * KIB

assert PLAIN_HEADER.size == PLAIN_HEADER_SIZE
assert MAX_PLAIN_BODY + PLAIN_HEADER_SIZE == 4 * MIB
assert REPORT.size == REPORT_SIZE


class WireError(Exception):
    """A peer sent bytes that are not of this format."""


def encode_report(offset: int) -> bytes:
    """Encode a replica's report, or the request of a replica of a Java master."""
    return REPORT.pack(offset)


def encode_checked_report(offset: int) -> bytes:
    """Encode a replica's report to a pyromq master."""
    report = REPORT.pack(offset)
    return report + _CHECKSUM.pack(crc32(report))


def decode_checked_report(data: bytes | bytearray | memoryview) -> int:
    """Decode a report. Raises WireError."""
    report = bytes(data[:REPORT_SIZE])
    if _CHECKSUM.unpack_from(data, REPORT_SIZE)[0] != crc32(report):
        raise WireError("a report with a wrong checksum")
    offset: int = REPORT.unpack(report)[0]
    return offset


def encode_plain_header(offset: int, size: int) -> bytes:
    """Encode the header of a frame to a Java replica."""
    return PLAIN_HEADER.pack(offset, size)


def encode_checked_header(offset: int, body: bytes | memoryview) -> bytes:
    """Encode the header of a frame to a pyromq replica."""
    header = PLAIN_HEADER.pack(offset, len(body))
    return header + _CHECKSUM.pack(crc32(body, crc32(header)))


def encode_control(fields: dict[str, Any]) -> bytes:
    """Encode a hello, an answer, or an error."""
    body = orjson.dumps(fields)
    return encode_checked_header(NEGOTIATION, body) + body


def encode_question(fields: dict[str, Any]) -> bytes:
    """Encode a replica's question."""
    body = orjson.dumps(fields)
    size = _QUESTION.pack(len(body))
    return size + _CHECKSUM.pack(crc32(body, crc32(size))) + body


def decode_json(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode the JSON of a control frame or a question. Raises WireError."""
    try:
        fields = orjson.loads(body)
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("not a JSON object")
    return fields


def take_question(buffer: bytearray) -> dict[str, Any] | None:
    """Remove a complete question from the start of `buffer`. Raises WireError."""
    if len(buffer) < _QUESTION_HEADER_SIZE:
        return None
    (size,) = _QUESTION.unpack_from(buffer)
    if not 0 < size <= MAX_QUESTION:
        raise WireError(f"a question of {size} bytes, limit {MAX_QUESTION}")
    end = _QUESTION_HEADER_SIZE + size
    if len(buffer) < end:
        return None
    body = bytes(buffer[_QUESTION_HEADER_SIZE:end])
    (expected,) = _CHECKSUM.unpack_from(buffer, _QUESTION.size)
    if crc32(body, crc32(bytes(buffer[: _QUESTION.size]))) != expected:
        raise WireError("a question with a wrong checksum")
    fields = decode_json(body)
    del buffer[:end]
    return fields


class FrameReader:
    """Cuts a master's stream into frames, in one buffer that is received into.

    `room` returns where to receive, `received` notes how much arrived, `next_frame` returns one
    frame after the other; its body is valid until the next call of `room`.
    """

    def __init__(self, *, is_checked: bool) -> None:
        """`is_checked` says that frames have checksums: those of pyromq masters."""
        self._is_checked = is_checked
        self._header_size = CHECKED_HEADER_SIZE if is_checked else PLAIN_HEADER_SIZE
        self._max_body = MAX_CHECKED_BODY if is_checked else MAX_PLAIN_BODY
        self._buffer = memoryview(bytearray(self._header_size + self._max_body))
        #: Received bytes are between these positions.
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Return where the next bytes go; never empty. Invalidates the bodies of frames."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            if rest <= self._start:  # no overlap
                self._buffer[:rest] = self._buffer[self._start : self._end]
            else:
                self._buffer[:rest] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, rest
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were put into `room`."""
        self._end += count

    def next_frame(self) -> tuple[int, memoryview] | None:
        """Return the offset and body of the next complete frame, or None. Raises WireError."""
        start, size = self._start, self._header_size
        if self._end - start < size:
            return None
        offset, length = PLAIN_HEADER.unpack_from(self._buffer, start)
        if not 0 <= length <= self._max_body or offset < NEGOTIATION:
            raise WireError(f"a frame at offset {offset} of {length} bytes")
        end = start + size + length
        if self._end < end:
            return None
        body = self._buffer[start + size : end]
        if self._is_checked:
            (expected,) = _CHECKSUM.unpack_from(self._buffer, start + PLAIN_HEADER_SIZE)
            header = self._buffer[start : start + PLAIN_HEADER_SIZE]
            if crc32(body, crc32(header)) != expected:
                raise WireError(f"a frame at offset {offset} with a wrong checksum")
        self._start = end
        return offset, body
