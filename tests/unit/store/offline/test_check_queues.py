"""Entries against records: those that nobody claims, and those that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY, PRE_BLANK_ENTRY
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.offline.check_log import LogCheck
from pyromq.store.offline.check_queues import QueueCheck
from pyromq.store.offline.violation import Violation
from pyromq.store.recovery.dispatch import QueueRun

Row = tuple[int, int, int]
LOG_END = 10_000


def write_queue(root: Path, rows: list[Row | None], base: int = 0, queue_id: int = 0) -> None:
    path = root / "T" / str(queue_id) / f"{base:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [PRE_BLANK_ENTRY if row is None else CONSUME_QUEUE_ENTRY.pack(*row) for row in rows]
    path.write_bytes(b"".join(entries).ljust(200, b"\0"))


def run_of(*rows: tuple[int, Row], topic: str = "T", queue_id: int = 0) -> QueueRun:
    return QueueRun(
        topic,
        queue_id,
        np.array([offset for offset, _ in rows], np.int64),
        np.array([entry for _, entry in rows], CONSUME_QUEUE_DTYPE),
        False,
    )


def found(
    root: Path,
    *runs: QueueRun,
    min_offset: int = 0,
    topics: frozenset[str] | None = None,
    may_move: bool = False,
    knows_delays: bool = True,
) -> list[str]:
    check = QueueCheck(root, 200, topics, may_move=may_move, knows_delays=knows_delays)
    violations = list(check.load())
    for run in runs:
        check.compare(run)
    log = LogCheck(SegmentFiles(root / "none", 4096), may_move=may_move)
    log.end = LOG_END
    violations += check.finish(log, min_offset)
    return [f"{violation.kind.name} {violation.position}" for violation in violations]


ROWS: list[Row] = [(n * 100, 100, n) for n in range(4)]


def test_all_is_right(tmp_path: Path) -> None:
    write_queue(tmp_path, list(ROWS))
    assert found(tmp_path, run_of(*enumerate(ROWS))) == []
    halves = run_of((0, ROWS[0]), (2, ROWS[2])), run_of((1, ROWS[1]), (3, ROWS[3]))
    assert found(tmp_path, *halves) == []


def test_an_entry_that_no_record_claims(tmp_path: Path) -> None:
    write_queue(tmp_path, list(ROWS))
    assert found(tmp_path, run_of((0, ROWS[0]), (1, ROWS[1]), (3, ROWS[3]))) == ["QUEUE_ENTRY 40"]
    assert found(tmp_path, run_of(*enumerate(ROWS[:3])), min_offset=301) == []


@pytest.mark.parametrize("changed", [(301, 100, 3), (300, 101, 3), (300, 100, 4)])
def test_each_part_of_an_entry_counts(tmp_path: Path, changed: Row) -> None:
    write_queue(tmp_path, [*ROWS[:3], changed])
    assert found(tmp_path, run_of(*enumerate(ROWS))) == ["QUEUE_ENTRY 60"]


def test_tags_codes_that_cannot_be_held_against_the_record(tmp_path: Path) -> None:
    """An address in Java's extension of the queue; a time by delay levels that nobody knows."""
    write_queue(tmp_path, [(0, 100, -(1 << 31) - 1), (100, 100, -(1 << 62)), (200, 100, -1)])
    run = run_of((0, ROWS[0]), (1, ROWS[1]), (2, ROWS[2]))
    assert found(tmp_path, run) == ["QUEUE_ENTRY 40"]
    (tmp_path / "T").rename(tmp_path / "SCHEDULE_TOPIC_XXXX")
    run = run._replace(topic="SCHEDULE_TOPIC_XXXX")
    assert found(tmp_path, run) == ["QUEUE_ENTRY 40"]
    assert found(tmp_path, run, knows_delays=False) == []


def test_records_without_an_entry(tmp_path: Path) -> None:
    write_queue(tmp_path, list(ROWS[:2]))
    assert found(tmp_path, run_of(*enumerate(ROWS))) == ["MISSING_ENTRY 40"]
    assert found(tmp_path, run_of(*enumerate(ROWS)), may_move=True) == []
    write_queue(tmp_path, [(5000, 100, 0)], queue_id=1)
    other = run_of((0, (5000, 100, 0)), queue_id=1)
    assert found(tmp_path, run_of(*enumerate(ROWS)), other, may_move=True) == ["MISSING_ENTRY 40"]


def test_a_queue_that_is_not_there(tmp_path: Path) -> None:
    run = run_of(*enumerate(ROWS))
    assert found(tmp_path, run) == ["MISSING_ENTRY 0"]
    assert found(tmp_path, run, topics=frozenset({"T"})) == ["MISSING_ENTRY 0"]
    assert found(tmp_path, run, topics=frozenset({"Other"})) == []


def test_a_topic_made_anew(tmp_path: Path) -> None:
    write_queue(tmp_path, [(1000, 100, 0), (1100, 100, 0)])
    new = (0, (1000, 100, 0)), (1, (1100, 100, 0))
    assert found(tmp_path, run_of(*enumerate(ROWS), *new)) == []
    assert found(tmp_path, run_of(*enumerate(ROWS)), run_of(*new)) == []


def test_pre_blank_entries_and_a_later_beginning(tmp_path: Path) -> None:
    write_queue(tmp_path, [None, None, *ROWS[2:]], base=200)
    assert found(tmp_path, run_of((12, ROWS[2]), (13, ROWS[3]))) == []


def test_holes_and_steps_back(tmp_path: Path) -> None:
    write_queue(tmp_path, [ROWS[0], (0, 0, 0), ROWS[2]])
    assert found(tmp_path, run_of((0, ROWS[0]))) == ["QUEUE_ENTRY 40"]
    write_queue(tmp_path, [ROWS[1], ROWS[0]])
    run = run_of((0, ROWS[1]), (1, ROWS[0]))
    assert found(tmp_path, run) == ["QUEUE_ENTRY 20"]


def test_entries_behind_the_log(tmp_path: Path) -> None:
    write_queue(tmp_path, [*ROWS, (LOG_END, 100, 0)])
    run = run_of(*enumerate(ROWS))
    assert found(tmp_path, run) == ["QUEUE_ENTRY 80"]
    assert found(tmp_path, run, may_move=True) == []


def test_many_wrong_entries_end_in_one_line(tmp_path: Path) -> None:
    for base in range(0, 1000, 200):
        rows: list[Row | None] = [((base // 20 + n) * 7, 7, 0) for n in range(10)]
        write_queue(tmp_path, rows, base=base)
    violations = found(tmp_path)
    assert len(violations) == 21


def test_foreign_files(tmp_path: Path) -> None:
    write_queue(tmp_path, [])
    (tmp_path / "file").write_text("")
    (tmp_path / "T" / "01").mkdir()
    (tmp_path / "T" / "note").write_text("")
    assert found(tmp_path) == ["FILE 0"] * 3


def test_what_comes_while_the_queues_are_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue 0 is read before queue 1 has its last entry; later records of both are known."""
    write_queue(tmp_path, [(0, 100, 0)])
    write_queue(tmp_path, [(100, 100, 0)], queue_id=1)
    load = QueueCheck._load_queue

    def growing(self: QueueCheck, topic: str, queue_id: int, path: Path) -> Iterator[Violation]:
        yield from load(self, topic, queue_id, path)
        write_queue(tmp_path, [(0, 100, 0), (200, 100, 0)])
        write_queue(tmp_path, [(100, 100, 0), (300, 100, 0)], queue_id=1)

    monkeypatch.setattr(QueueCheck, "_load_queue", growing)
    first = run_of((0, (0, 100, 0)), (1, (200, 100, 0)))
    second = run_of((0, (100, 100, 0)), (1, (300, 100, 0)), queue_id=1)
    assert found(tmp_path, first, second, may_move=True) == []
