"""The second process of a long walk over the log: examines pieces of it (`piece_helper`).

It is told a file and where a piece of it begins and ends. Its answer says how many records
are in the piece, and what the consume queues hold of them, if all of them are valid and
nothing is worth a line in the log. Otherwise it answers that the piece is for the one who
asked. In the machine's byte order:

    request   path length   4   0: the same file as before
              position      8   of the piece in the file
              base          8   its physical offset
              size          8
              path          path length

    answer    records       4   `DECLINED`: see above
              names         4   how many bytes
              rows          4   entries of all queues
              names         JSON: [[topic, queue id, entries, is consecutive], ...]
              offsets       8 * rows
              entries       20 * rows

It ends with its input, and at whatever goes wrong: who asked finds no answer then, and does
the work itself. It writes to no file.
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
ANSWER: Final = struct.Struct("=III")
#: Instead of a number of records.
DECLINED: Final = 0xFFFFFFFF
_OFFSET: Final = np.dtype(np.int64)
_ROW_SIZE: Final = _OFFSET.itemsize + CONSUME_QUEUE_DTYPE.itemsize


class Answer(NamedTuple):
    """What is known of a piece; no runs: it is for the one who asked."""

    records: int
    runs: list[QueueRun] | None


class _Lines(logging.Handler):
    """Counts what would be logged."""

    count = 0

    def emit(self, _record: logging.LogRecord) -> None:
        self.count += 1


def serve(requests: IO[bytes], answers: IO[bytes], rules: Rules) -> None:
    """Answer until there are no more requests."""
    lines = _Lines(logging.WARNING)
    ours = logging.getLogger("pyromq")
    ours.addHandler(lines)
    try:
        _serve(requests, answers, rules, lines)
    finally:
        ours.removeHandler(lines)


def _serve(requests: IO[bytes], answers: IO[bytes], rules: Rules, lines: _Lines) -> None:
    mapping: mmap.mmap | None = None
    while head := requests.read(REQUEST.size):
        path_length, position, base, size = REQUEST.unpack(head)
        if path_length:
            mapping = _map(requests.read(path_length))
        if mapping is None:
            raise ValueError("the first request names no file")
        before = lines.count
        with memoryview(mapping) as whole, whole[position : position + size] as data:
            answer = _examine(data, base, rules)
        if lines.count > before:
            answer = ANSWER.pack(DECLINED, 0, 0)
        answers.write(answer)
        answers.flush()
        # The kernel keeps these pages; they need not count as this process's.
        mapping.madvise(mmap.MADV_DONTNEED)


def answer_rest(head: bytes) -> int:
    """How many bytes follow the head of an answer."""
    _, names, rows = ANSWER.unpack(head)
    return int(names + rows * _ROW_SIZE)


def decode_answer(head: bytes, rest: bytes) -> Answer:
    """An answer that is whole."""
    records, names, rows = ANSWER.unpack(head)
    if records == DECLINED:
        return Answer(0, None)
    offsets = np.frombuffer(rest, _OFFSET, rows, names)
    entries = np.frombuffer(rest, CONSUME_QUEUE_DTYPE, rows, names + rows * _OFFSET.itemsize)
    runs = []
    begin = 0
    for topic, queue_id, count, is_consecutive in orjson.loads(rest[:names]):
        end = begin + count
        run = QueueRun(topic, queue_id, offsets[begin:end], entries[begin:end], is_consecutive)
        runs.append(run)
        begin = end
    return Answer(records, runs)


def _examine(data: memoryview, base: int, rules: Rules) -> bytes:
    starts, _ = bulk.record_starts(data)
    piece = LogPiece(base, data, starts, rules)
    valid = piece.examine()
    if valid.starts.size < starts.size:
        return ANSWER.pack(DECLINED, 0, 0)
    return _encode(starts.size, list(valid.runs()))


def _encode(records: int, runs: Iterable[QueueRun]) -> bytes:
    names = orjson.dumps(
        [[run.topic, run.queue_id, run.offsets.size, run.is_consecutive] for run in runs]
    )
    offsets = b"".join([run.offsets.tobytes() for run in runs])
    entries = b"".join([run.entries.tobytes() for run in runs])
    head = ANSWER.pack(records, len(names), len(offsets) // _OFFSET.itemsize)
    return b"".join((head, names, offsets, entries))


def _map(path: bytes) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def encode_rules(rules: Rules) -> str:
    """The process's argument."""
    return orjson.dumps(
        [rules.segment_size, rules.delay_levels.text, rules.check_crc, rules.after_crash]
    ).decode()


def main(argument: str) -> None:
    """Serve on the standard input and output."""
    segment_size, levels, check_crc, after_crash = orjson.loads(argument)
    rules = Rules(segment_size, DelayLevels(levels), check_crc, after_crash)
    serve(sys.stdin.buffer, sys.stdout.buffer, rules)
