"""The kernel finds the valid records, and makes the entries, that the Python code does."""

from __future__ import annotations

import logging
import random
import zlib
from types import ModuleType

import pytest

from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.recovery.piece import LogPiece, Rules, examine_with_kernel
from tests import kernel_builds
from tests.support.examples import examples
from tests.support.random_logs import damage, random_log
from tests.support.records import make_record

LEVELS = DelayLevels("1s 5s 10s")
SEGMENT = 1 << 20
#: Runs by topic and queue id: offsets, entries, and whether they are consecutive.
Runs = dict[tuple[str, int], tuple[list[int], bytes, bool]]


@pytest.fixture(
    scope="module",
    params=[kernel_builds.FAST, kernel_builds.CHECKED],
    ids=lambda build: build.name,
)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return kernel_builds.load(request.param, "log_piece")


def runs_of(piece: LogPiece) -> Runs:
    return {
        (run.topic, run.queue_id): (run.offsets.tolist(), run.entries.tobytes(), run.is_consecutive)
        for run in piece.runs()
    }


def plain(base: int, data: bytes, rules: Rules) -> tuple[int, bool, list[int], Runs]:
    """Examine with the Python code."""
    starts, size = bulk.record_starts(data)
    piece = LogPiece(base, memoryview(data), starts, rules).examine()
    count = piece.starts.size
    end = int(starts[count]) if count < starts.size else size
    return end, count < starts.size, piece.starts.tolist(), runs_of(piece)


def compiled(
    module: ModuleType, base: int, data: bytes, rules: Rules
) -> tuple[int, bool, list[int], Runs]:
    piece, end, is_end = examine_with_kernel(module.PieceExaminer(), base, memoryview(data), rules)
    assert (piece.base, bytes(piece.data)) == (base, data[:end])
    return end, is_end, piece.starts.tolist(), runs_of(piece)


def fuzz(module: ModuleType, seed: int, rounds: int) -> int:
    """Examine random logs both ways, and compare; return the number of valid records."""
    chance = random.Random(seed)
    records = 0
    for number in range(rounds):
        base = chance.choice((0, 77, 3 * SEGMENT + 12_345))
        log = random_log(chance, chance.choice((1, 5, 60)), base, chance.choice((0, 0, 0.03)))
        if chance.random() < 0.6:
            log = damage(chance, log)
        rules = Rules(SEGMENT, LEVELS, chance.random() < 0.7, chance.random() < 0.5)
        expected = plain(base, log, rules)
        assert compiled(module, base, log, rules) == expected, (seed, number)
        records += len(expected[2])
    assert module.fault_count() == 0
    return records


def test_records_and_entries_are_those_of_the_python_code(
    module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)  # thousands of topics that cannot be folders
    assert fuzz(module, seed=1, rounds=examples(1500)) > examples(1500)


@pytest.mark.parametrize("check_crc", [True, False])
def test_bodies_of_every_length(module: ModuleType, check_crc: bool) -> None:
    chance = random.Random(2)
    rules = Rules(SEGMENT, LEVELS, check_crc)
    for size in (*range(300), 1000, 4095, 4096, 70_001):
        body = chance.randbytes(size)
        record = make_record(body=body)
        assert int.from_bytes(record[8:12], "big") == zlib.crc32(body) & 0x7FFFFFFF
        assert compiled(module, 0, record, rules)[:3] == (len(record), False, [0])
        if size:
            at = 88 + chance.randrange(size)
            wrong = record[:at] + bytes((record[at] ^ 1 << chance.randrange(8),)) + record[at + 1 :]
            found = compiled(module, 0, wrong, rules)[:2]
            assert found == ((0, True) if check_crc else (len(record), False))


def test_a_piece_ends_before_one_queue_too_many(module: ModuleType) -> None:
    rules = Rules(SEGMENT, LEVELS, check_crc=True)
    records: list[bytes] = []
    offset = 0
    for number in range(5_000):
        record = make_record(queue_id=number, physical_offset=offset)
        records.append(record)
        offset += len(record)
    log = memoryview(b"".join(records))
    examiner = module.PieceExaminer()
    counts = []
    end = 0
    while end < len(log):
        piece, size, is_end = examine_with_kernel(examiner, end, log[end:], rules)
        assert not is_end
        counts.append((piece.starts.size, len(list(piece.runs()))))
        end += size
    assert counts == [(4096, 4096), (904, 904)]


def test_a_piece_ends_before_one_record_too_many(module: ModuleType) -> None:
    rules = Rules(SEGMENT, LEVELS, check_crc=False)
    size = len(make_record(body=b""))
    log = b"".join([make_record(body=b"", physical_offset=at * size) for at in range(70_000)])
    piece, end, is_end = examine_with_kernel(module.PieceExaminer(), 0, memoryview(log), rules)
    assert (piece.starts.size, end, is_end) == (65_536, 65_536 * size, False)


def test_a_buffer_is_free_after_the_call(module: ModuleType) -> None:
    data = bytearray(make_record())
    assert module.PieceExaminer().examine(data, 0, True, 0)[0] == len(data)
    data.append(0)  # fails as long as anyone holds a view
    for empty in (b"", b"x", bytes(200)):
        assert module.PieceExaminer().examine(empty, 0, True, 0) == (0, False, b"", [], b"", b"")
