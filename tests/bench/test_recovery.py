from __future__ import annotations

from pathlib import Path

from bench.recovery import write_killed_store
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
