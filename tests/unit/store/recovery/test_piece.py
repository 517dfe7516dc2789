"""Valid records of a piece, and their entries."""

from __future__ import annotations

import pytest

from pyromq.protocol.message import bulk
from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.recovery.piece import LogPiece, Rules
from tests.support.records import make_record

BASE = 8192
LEVELS = DelayLevels("1s")
STRICT = Rules(1 << 20, LEVELS, check_crc=True, after_crash=True)
LENIENT = Rules(1 << 20, LEVELS, check_crc=False)
LONG = b"name\x01" + b"x" * 2000


def piece_of(rules: Rules, *, damaged: int | None = None, at: int = 88) -> LogPiece:
    """Return five records, with the byte at `at` changed in one of them."""
    data = bytearray()
    for number in range(5):
        record = bytearray(
            make_record(
                topic=f"t{number % 2}", queue_offset=number, physical_offset=BASE + len(data)
            )
        )
        if number == damaged:
            record[at] ^= 0x20
        data += record
    starts, _ = bulk.record_starts(data)
    return LogPiece(BASE, memoryview(bytes(data)), starts, rules)


def test_all_are_valid() -> None:
    piece = piece_of(STRICT)
    assert piece.examine() is piece


@pytest.mark.parametrize("damaged", range(5))
@pytest.mark.parametrize(
    ("at", "rules"),
    [(88, STRICT), (8, STRICT), (35, STRICT), (35, LENIENT)],
    ids=["body", "CRC", "place", "place, without CRCs"],
)
def test_the_first_invalid_record_ends_the_log(damaged: int, at: int, rules: Rules) -> None:
    piece = piece_of(rules, damaged=damaged, at=at)
    valid = piece.examine()
    assert valid.starts.tolist() == piece.starts.tolist()[:damaged]
    assert len(valid.data) == piece.starts[damaged]
    assert sum(run.offsets.size for run in valid.runs()) == damaged


def test_crcs_are_checked_if_required() -> None:
    piece = piece_of(LENIENT, damaged=2)
    assert piece.examine() is piece


@pytest.mark.parametrize("rules", [STRICT, LENIENT])
def test_properties_that_lost_a_sector(rules: Rules) -> None:
    data = bytearray(make_record(physical_offset=BASE, properties=LONG))
    begin = 1024
    data[begin : begin + 512] = bytes(512)
    piece = LogPiece(BASE, memoryview(bytes(data)), bulk.record_starts(data)[0], rules)
    assert piece.examine().starts.size == (0 if rules.after_crash else 1)


def test_some_rows() -> None:
    piece = piece_of(STRICT)
    some = piece.rows(slice(1, 4))
    assert some.starts.tolist() == piece.starts.tolist()[1:4]
    found = {run.topic: run.offsets.tolist() for run in some.runs()}
    assert found == {"t0": [2], "t1": [1, 3]}


def test_known_columns_are_not_decoded_again() -> None:
    piece = piece_of(STRICT)
    runs = list(piece.runs())
    known = LogPiece(BASE, piece.data, piece.starts, STRICT, runs=runs)
    assert known.runs() is runs
    assert known.columns.starts is known.starts
