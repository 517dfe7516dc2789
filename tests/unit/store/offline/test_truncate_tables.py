from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.protocol.java.fastjson import parse_json
from pyromq.store.offline.truncate_tables import Change, plan_tables
from pyromq.store.results import StoreError

ENDS = {("orders", 0): 10, ("orders", 1): 0, ("SCHEDULE_TOPIC_XXXX", 2): 5}
OFFSET = 1000


def end_of(topic: str, queue_id: int) -> int:
    return ENDS.get((topic, queue_id), 0)


def edited(directory: Path) -> dict[str, list[Change]]:
    """The changes of each table, after they are made."""
    edits = plan_tables(directory, OFFSET, end_of)
    for edit in edits:
        edit.write()
    return {edit.path.name: list(edit.changes) for edit in edits}


def test_consumer_offsets_become_the_ends_of_their_queues(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"orders@a":{0:11,1:3},"orders@b":{0:10},"gone@a":{0:1}}}')
    assert edited(tmp_path) == {
        path.name: [
            Change("orders@a queue 0", 11, 10),
            Change("orders@a queue 1", 3, 0),
            Change("gone@a queue 0", 1, 0),
        ]
    }
    assert parse_json(path.read_bytes()) == {
        "offsetTable": {"orders@a": {"0": 10, "1": 0}, "orders@b": {"0": 10}, "gone@a": {"0": 0}}
    }
    assert b"11" in path.with_name(path.name + ".bak").read_bytes()
    assert edited(tmp_path) == {}


def test_delay_progress_is_reduced_in_the_queue_of_its_level(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text('{"offsetTable":{3:7,1:0}}')
    assert edited(tmp_path) == {path.name: [Change("level 3", 7, 5)]}
    assert path.read_bytes() == b'{"offsetTable":{3:5,1:0}}'


def test_deletions_are_moved_to_the_end_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "deletedTopics.json"
    path.write_text(
        '{"topics":{"new":{"logEnd":2000,"timestamp":5000},"old":{"logEnd":900,"timestamp":4}}}'
    )
    assert edited(tmp_path) == {path.name: [Change("new", 2000, OFFSET)]}
    assert parse_json(path.read_bytes())["topics"] == {
        "new": {"logEnd": OFFSET, "timestamp": 5000},
        "old": {"logEnd": 900, "timestamp": 4},
    }


def test_a_table_that_has_only_its_backup(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json.bak").write_text('{"offsetTable":{3:7}}')
    assert edited(tmp_path) == {"delayOffset.json": [Change("level 3", 7, 5)]}
    assert (tmp_path / "delayOffset.json").read_bytes() == b'{"offsetTable":{3:5}}'


def test_planning_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text('{"offsetTable":{3:7}}')
    assert len(plan_tables(tmp_path, OFFSET, end_of)) == 1
    assert path.read_text() == '{"offsetTable":{3:7}}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_without_tables(tmp_path: Path) -> None:
    assert plan_tables(tmp_path / "config", OFFSET, end_of) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("consumerOffset.json", "{"),
        ("consumerOffset.json", '{"offsetTable":{"t@g":7}}'),
        ("delayOffset.json", '{"offsetTable":[1]}'),
        ("deletedTopics.json", "[]"),
        ("deletedTopics.json", '{"topics":{"t":{}}}'),
        ("deletedTopics.json", '{"topics":{"t":{"logEnd":"x"}}}'),
    ],
)
def test_unreadable_tables_are_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StoreError, match=f"cannot read .*{name}: .*move it away"):
        plan_tables(tmp_path, OFFSET, end_of)
