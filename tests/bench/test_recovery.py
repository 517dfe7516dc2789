from __future__ import annotations

from pathlib import Path

from bench.recovery import BOUND, render, write_killed_store
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore


def test_the_store_that_is_written_is_a_killed_one(tmp_path: Path) -> None:
    root = tmp_path / "store"
    messages, size = write_killed_store(root, 100_000)
    assert messages >= 80
    assert size >= 100_000
    assert sorted(path.name for path in root.iterdir()) == ["abort", "commitlog", "lock"]
    config = MessageStoreConfig(store_path_root_dir=str(root), message_index_enable=False)
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    assert store.max_physical_offset == size
    assert sum(queue.next_offset for queue in store.queues()) == messages
    store.stop()


def test_the_table_says_whether_it_is_enough() -> None:
    java = {"recovery_s": 4.0, "rate": 100.0, "indexed_s": 4.0, "start_s": 9.0}
    ours = {"recovery_s": 1.0, "rate": 100.0 * BOUND, "indexed_s": 2.0, "start_s": 1.5}
    text, kept = render({"java": java, "pyromq": ours}, 400_000_000, 1000)
    assert kept
    assert "ratio of speeds 2.00 (bound: at least 2, kept); up to the last key 2.00" in text
    text, kept = render({"java": java, "pyromq": {**ours, "rate": 150.0}}, 400_000_000, 1000)
    assert not kept
    assert "MISSED" in text
    text, kept = render({"pyromq": ours}, 400_000_000, 1000)
    assert kept
    assert "ratio" not in text
