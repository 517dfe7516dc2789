"""The second process of a long walk: examine pieces of the log for `piece_helper`.

A request names a file and the position of a piece in it. The response has the number of records and
their consume-queue entries, if all records are valid and none causes a log line. Otherwise the
process declines, and the requester examines the piece itself. In native byte order:

    request   path length   4   0: same file as in the previous request
              position      8   of the piece in the file
              base          8   its physical offset
              size          8
              path          path length

    response  records       4   or `DECLINED`
              names         4   length in bytes
              rows          4   entries of all queues
              names         JSON: [[topic, queue id, entries, is consecutive], ...]
              offsets       8 * rows
              entries       20 * rows

The process exits at the end of its input and on any error. The requester then gets no response and
does the work itself. The process writes to no file.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import sys
from collections.abc import Iterable
from typing import IO, Final, NamedTuple

import numpy as np
import orjson

from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.store.recovery.dispatch import QueueRun
from pyromq.store.recovery.piece import LogPiece, Rules

REQUEST: Final = struct.Struct("=IQQQ")
RESPONSE: Final = struct.Struct("=III")
#: In place of the number of records: the requester must examine the piece.
DECLINED: Final = 0xFFFFFFFF
_OFFSET: Final = np.dtype(np.int64)
_ROW_SIZE: Final = _OFFSET.itemsize + CONSUME_QUEUE_DTYPE.itemsize


class Response(NamedTuple):
    """The result for a piece; `runs` is None if the process declined."""

    records: int
    runs: list[QueueRun] | None


class _LineCounter(logging.Handler):
    """Counts log records."""

    count = 0

    def emit(self, _record: logging.LogRecord) -> None:
        self.count += 1


def serve(requests: IO[bytes], responses: IO[bytes], rules: Rules) -> None:
    """Respond to requests until the input ends."""
    lines = _LineCounter(logging.WARNING)
    ours = logging.getLogger("pyromq")
    ours.addHandler(lines)
    try:
        _serve(requests, responses, rules, lines)
    finally:
        ours.removeHandler(lines)


def _serve(requests: IO[bytes], responses: IO[bytes], rules: Rules, lines: _LineCounter) -> None:
    mapping: mmap.mmap | None = None
    while head := requests.read(REQUEST.size):
        path_length, position, base, size = REQUEST.unpack(head)
        if path_length:
            mapping = _map(requests.read(path_length))
        if mapping is None:
            raise ValueError("the first request names no file")
        before = lines.count
        with memoryview(mapping) as whole, whole[position : position + size] as data:
            response = _examine(data, base, rules)
        if lines.count > before:
            response = RESPONSE.pack(DECLINED, 0, 0)
        responses.write(response)
        responses.flush()
        # The page cache keeps these pages; they need not count towards this process.
        mapping.madvise(mmap.MADV_DONTNEED)


def response_rest(head: bytes) -> int:
    """Return the number of bytes after the head of a response."""
    _, names, rows = RESPONSE.unpack(head)
    return int(names + rows * _ROW_SIZE)


def decode_response(head: bytes, rest: bytes) -> Response:
    """Decode a complete response."""
    records, names, rows = RESPONSE.unpack(head)
    if records == DECLINED:
        return Response(0, None)
    offsets = np.frombuffer(rest, _OFFSET, rows, names)
    entries = np.frombuffer(rest, CONSUME_QUEUE_DTYPE, rows, names + rows * _OFFSET.itemsize)
    runs = []
    begin = 0
    for topic, queue_id, count, is_consecutive in orjson.loads(rest[:names]):
        end = begin + count
        run = QueueRun(topic, queue_id, offsets[begin:end], entries[begin:end], is_consecutive)
        runs.append(run)
        begin = end
    return Response(records, runs)


def _examine(data: memoryview, base: int, rules: Rules) -> bytes:
    starts, _ = bulk.record_starts(data)
    piece = LogPiece(base, data, starts, rules)
    valid = piece.examine()
    if valid.starts.size < starts.size:
        return RESPONSE.pack(DECLINED, 0, 0)
    return _encode(starts.size, list(valid.runs()))


def _encode(records: int, runs: Iterable[QueueRun]) -> bytes:
    names = orjson.dumps(
        [[run.topic, run.queue_id, run.offsets.size, run.is_consecutive] for run in runs]
    )
    offsets = b"".join([run.offsets.tobytes() for run in runs])
    entries = b"".join([run.entries.tobytes() for run in runs])
    head = RESPONSE.pack(records, len(names), len(offsets) // _OFFSET.itemsize)
    return b"".join((head, names, offsets, entries))


def _map(path: bytes) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def encode_rules(rules: Rules) -> str:
    """Encode the rules as a command-line argument."""
    return orjson.dumps(
        [rules.segment_size, rules.delay_levels.text, rules.check_crc, rules.after_crash]
    ).decode()


def main(argument: str) -> None:
    """Serve on standard input and output."""
    segment_size, levels, check_crc, after_crash = orjson.loads(argument)
    rules = Rules(segment_size, DelayLevels(levels), check_crc, after_crash)
    serve(sys.stdin.buffer, sys.stdout.buffer, rules)
