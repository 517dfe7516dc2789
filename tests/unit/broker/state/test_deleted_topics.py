from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.state.deleted_topics import (
    DeletedTopicTable,
    Deletion,
    copied_deletions,
)
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


def test_a_replica_removes_the_queues_that_its_master_deleted(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    log = FakeLog(0, 300)
    assert deleted.take_over({"orders": Deletion(200, 5000)}, log) == ["orders"]
    assert log.removed == [("orders", 200, 5000)]
    assert deleted.take_over({"orders": Deletion(200, 5000)}, log) == []
    assert log.removed == [("orders", 200, 5000)], "once is enough: the log has all its records"
    assert deleted.take_over({"orders": Deletion(250, 6000)}, log) == ["orders"]
    assert log.removed[1:] == [("orders", 250, 6000)]
    assert deleted.take_over({"orders": Deletion(200, 5000)}, log) == [], "an older note"
    again = FakeLog(0, 300)
    table(tmp_path).begin(again)
    assert again.removed == [("orders", 250, 6000)]


def test_a_note_is_applied_until_the_log_has_reached_it(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    log = FakeLog(0, 100)
    deleted.take_over({"orders": Deletion(200, 5000), "old": Deletion(50, 4000)}, log)
    assert sorted(log.removed) == [("old", 50, 4000), ("orders", 200, 5000)]
    log.removed.clear()
    deleted.apply(log)
    assert log.removed == [("orders", 200, 5000)]
    # A restart on the way forgets nothing.
    deleted = table(tmp_path)
    deleted.begin(log)
    log.removed.clear()
    log.max_physical_offset = 200
    deleted.apply(log)
    assert log.removed == [("orders", 200, 5000)]
    deleted.apply(log)
    assert log.removed == [("orders", 200, 5000)]


def test_notes_from_before_the_log_are_not_copied(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    log = FakeLog(100, 300)
    assert deleted.take_over({"orders": Deletion(100, 5000)}, log) == []
    assert "orders" not in deleted


def test_copied_notes_expire_in_the_order_of_the_log(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    log = FakeLog(0, 1000)
    deleted.take_over({"late": Deletion(900, 1), "early": Deletion(100, 2)}, log)
    log.min_physical_offset = 500
    deleted.begin(log)
    assert "early" not in deleted
    assert "late" in deleted


def test_a_table_of_deletions_is_decoded(tmp_path: Path) -> None:
    deleted = table(tmp_path)
    deleted.note("orders", FakeLog(0, 100))
    assert copied_deletions(deleted.snapshot().encode()) == {"orders": Deletion(100, 5000)}
    assert copied_deletions(b'{"topics":{}}') == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"topics":[]}',
        b'{"topics":{"t":{}}}',
        b'{"topics":{"t":{"logEnd":1,"timestamp":-1}}}',
        b'{"topics":{"t":{"logEnd":-1,"timestamp":1}}}',
        b'{"topics":{"t":{"logEnd":99999999999999999999,"timestamp":1}}}',
        b'{"topics":{"../t":{"logEnd":1,"timestamp":1}}}',
        b'{"topics":{"SCHEDULE_TOPIC_XXXX":{"logEnd":1,"timestamp":1}}}',
    ],
)
def test_garbled_deletions_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - CopyError or BodyError
        copied_deletions(body)
