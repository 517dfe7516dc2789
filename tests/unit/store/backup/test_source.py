from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pyromq.protocol.message.units import Entry
from pyromq.store.backup import source
from pyromq.store.backup.source import QueueEnds, StoreSource, valid_end
from pyromq.store.message_store import MessageStore
from pyromq.store.results import StoreError
from tests.support.patience import wait_until
from tests.support.stores import SEGMENT, TOPIC, open_store, put, small_config


def fill(store: MessageStore, count: int, size: int = 1000) -> None:
    for number in range(count):
        put(store, b"%d " % number + bytes([65 + number % 26]) * size, queue_id=number % 3)
    store.seal()


def of(store: MessageStore) -> StoreSource:
    return StoreSource(store.config)


def test_the_end_of_a_live_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    try:
        assert of(store).is_running
        assert of(store).log_end(of(store).queue_ends(), None) == 0
        fill(store, 200)
        ends = of(store).queue_ends()
        assert ends.next_offsets == {TOPIC: {0: 67, 1: 67, 2: 66}}
        assert ends.log_end == store.max_physical_offset
        fill(store, 5)
        # Messages after the last one that a queue had are taken as well.
        assert of(store).log_end(ends, None) == store.max_physical_offset
    finally:
        store.stop()
    assert not of(store).is_running


def test_the_log_ends_before_a_damaged_record(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    ends = of(store).queue_ends()
    fill(store, 1)
    store.stop()
    files = of(store).files()
    position = ends.log_end % SEGMENT
    with files.path(ends.log_end).open("r+b") as file:
        file.seek(position + 300)
        file.write(b"!")
    assert valid_end(of(store).files(), 0) == ends.log_end
    assert of(store).log_end(ends, None) == ends.log_end


def test_a_log_that_lacks_what_queues_have_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 100)
    store.stop()
    ends = of(store).queue_ends()
    last = max(of(store).files().bases)
    (tmp_path / "commitlog" / f"{last:020}").unlink()
    with pytest.raises(StoreError, match="the consume queues refer to messages up to"):
        of(store).log_end(ends, None)


def test_a_pool_s_commit_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The commit never comes by itself.
    store = open_store(
        tmp_path,
        transient_store_pool_enable=True,
        commit_interval_commit_log=1_000_000,
        commit_commit_log_thorough_interval=1_000_000,
    )
    try:
        fill(store, 10)
        ends = of(store).queue_ends()
        assert ends.log_end == store.max_physical_offset
        assert valid_end(of(store).files(), 0) < ends.log_end
        found: list[int] = []
        waiting = threading.Thread(target=lambda: found.append(of(store).log_end(ends, None)))
        waiting.start()
        store._log.commit()
        waiting.join()
        assert found == [ends.log_end]
        fill(store, 1)
        monkeypatch.setattr(source, "_COMMIT_SECONDS", 0.0)
        with pytest.raises(StoreError, match="no valid record"):
            of(store).log_end(of(store).queue_ends(), None)
    finally:
        store.stop()


def test_after_a_crash_the_log_is_walked_as_recovery_does(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 200)
    store.stop()
    end = of(store).queue_ends().log_end
    (tmp_path / "abort").touch()
    os.remove(tmp_path / "checkpoint")
    # Queues may be ahead of the log after a power cut.
    ahead = QueueEnds({}, Entry(end + 1000, 100, 0))
    assert of(store).log_end(ahead, None) == end


def test_committed_entries_of_a_raft_node(tmp_path: Path) -> None:
    ends = QueueEnds({}, Entry(100, 50, 0))
    assert StoreSource(small_config(tmp_path)).log_end(ends, 120) == 150
    assert StoreSource(small_config(tmp_path)).log_end(ends, 170) == 170


def test_tables_are_read_from_their_backups_too(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.mkdir()
    for name in ("topics.json", "topics.json.bak", "consumerOffset.json.bak", "x.json.tmp"):
        (directory / name).write_text(name)
    (directory / "delayOffset.progress").write_text("not for another machine")
    found = StoreSource(small_config(tmp_path))
    assert found.offset_tables() == {"consumerOffset.json": b"consumerOffset.json.bak"}
    assert found.other_tables() == {"topics.json": b"topics.json"}


def test_a_store_without_anything(tmp_path: Path) -> None:
    empty = StoreSource(small_config(tmp_path / "missing"))
    assert empty.queue_ends() == QueueEnds()
    assert empty.log_end(QueueEnds(), None) == 0
    assert empty.offset_tables() == {}
    assert not empty.is_running
    wait_until(lambda: True)
