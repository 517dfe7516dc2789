from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.state.deleted_topics import DeletedTopicTable
from pyromq.broker.state.persistence import PersistenceError


class FakeLog:
    """Records removals."""

    def __init__(self, min_offset: int, max_offset: int) -> None:
        self.min_physical_offset = min_offset
        self.max_physical_offset = max_offset
        self.removed: list[tuple[str, int, int]] = []

    def remove_old_queues(self, topic: str, end: int, timestamp: int) -> int:
        self.removed.append((topic, end, timestamp))
        return 1


def table(directory: Path, now: int = 5000) -> DeletedTopicTable:
    deleted = DeletedTopicTable(directory, now=lambda: now)
    deleted.load()
    return deleted


def test_a_start_removes_deleted_queues(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    deleted.note("orders", FakeLog(0, 100))
    deleted.note("payments", FakeLog(0, 200))
    log = FakeLog(0, 300)
    table(tmp_path).begin(log)
    assert log.removed == [("orders", 100, 5000), ("payments", 200, 5000)]


def test_the_latest_deletion_of_a_topic_counts(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    deleted.note("orders", FakeLog(0, 100))
    deleted.note("orders", FakeLog(0, 200))
    log = FakeLog(0, 300)
    table(tmp_path).begin(log)
    assert log.removed == [("orders", 200, 5000)]


def test_notes_expire_with_the_records(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    deleted.note("orders", FakeLog(0, 100))
    log = FakeLog(100, 300)
    again = table(tmp_path)
    again.begin(log)
    assert log.removed == []
    assert "orders" not in table(tmp_path)


def test_a_deletion_drops_old_notes(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    deleted.note("orders", FakeLog(0, 100))
    deleted.note("payments", FakeLog(150, 200))
    assert "orders" not in deleted
    assert "payments" in table(tmp_path)


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "deletedTopics.json").write_bytes(b'{"topics":{"T":{}}}')
    with pytest.raises(PersistenceError, match="logEnd"):
        table(tmp_path)
