"""What a plan counts; `test_truncate` compares plans with what is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.store.offline.truncate import truncate_store
from pyromq.store.offline.truncate_plan import QueueCut
from pyromq.store.offline.truncate_tables import Change
from pyromq.store.results import StoreError
from tests.support.stores import TOPIC, killed_copy, open_store, put, small_config
from tests.support.truncation import LATE_TOPIC, written_store


def test_the_cuts_of_each_queue(tmp_path: Path) -> None:
    records = written_store(tmp_path / "store")
    middle = len(records) // 2
    plan = truncate_store(small_config(tmp_path / "store"), records[middle].physical_offset)
    expected = []
    for topic, queue_id in sorted({(record.topic, record.queue_id) for record in records}):
        of_queue = [r for r in records[middle:] if (r.topic, r.queue_id) == (topic, queue_id)]
        expected.append(QueueCut(topic, queue_id, len(of_queue), of_queue[0].queue_offset))
    assert list(plan.queues) == expected
    assert {cut.topic for cut in plan.queues} == {TOPIC, LATE_TOPIC}
    assert plan.messages == len(records) - middle
    assert plan.kept_timestamp == records[middle - 1].store_timestamp
    assert plan.log_begin == 0
    assert plan.data_end == plan.log_end == records[-1].physical_offset + records[-1].size


def test_progress_reaches_the_end_of_the_log(tmp_path: Path) -> None:
    records = written_store(tmp_path / "store")
    seen: list[tuple[int, int]] = []
    plan = truncate_store(
        small_config(tmp_path / "store"),
        records[0].physical_offset,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == plan.log_end <= seen[-1][1]


def test_queues_of_a_killed_store_that_lack_entries(tmp_path: Path) -> None:
    """Their offsets are compared with the messages of the log, not with the entries."""
    store = open_store(tmp_path / "running")
    places = [put(store, b"%d" % number) for number in range(10)]
    store.seal()
    root = killed_copy(store, tmp_path / "killed")
    store.stop()
    for path in (root / "consumequeue" / TOPIC / "0").iterdir():
        path.unlink()
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(
        f'{{"offsetTable":{{"{TOPIC}@g":{{0:6}},"{TOPIC}@h":{{0:8}}}}}}'
    )
    plan = truncate_store(small_config(root), places[7])
    (edit,) = plan.tables
    assert edit.changes == (Change(f"{TOPIC}@h queue 0", 8, 7),)


def test_a_store_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no log found"):
        truncate_store(small_config(tmp_path), 0)
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreError, match="has no segments"):
        truncate_store(small_config(tmp_path), 0)
