from __future__ import annotations

from pathlib import Path

from bench import cold
from bench.cold import BOUND, render, write_backlog
from bench.frames import PULL_SIZE, QUEUES
from pyromq.protocol.message.message_id import encode_host
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore


def test_the_backlog_is_a_store_that_was_stopped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    stored = write_backlog(root, 1_000_000)
    assert stored % PULL_SIZE == 0
    assert not (root / "abort").exists()
    config = MessageStoreConfig.load({**cold.SETTINGS, "storePathRootDir": str(root)})[0]
    store = MessageStore(config, encode_host("127.0.0.1", 10911))
    store.start()
    assert [queue.next_offset for queue in store.queues()] == [stored] * QUEUES
    assert store.max_physical_offset >= 1_000_000
    assert store.get("BenchmarkBacklog", 3, stored - PULL_SIZE, PULL_SIZE).count == PULL_SIZE
    store.stop()


def test_pages_are_dropped_and_counted(tmp_path: Path) -> None:
    segment = tmp_path / "commitlog" / f"{0:020d}"
    segment.parent.mkdir()
    segment.write_bytes(bytes(256 * 1024))
    assert cold._backlog_files(tmp_path) == [segment]
    assert cold._resident_share([segment]) == 1.0
    cold._drop_pages(tmp_path)
    assert 0.0 <= cold._resident_share([segment]) <= 1.0  # the kernel need not follow


def test_the_table_says_whether_it_is_enough() -> None:
    names = "idle_p50_ms idle_p99_ms cold_p50_ms cold_p99_ms cold_max_ms ratio idle_rate cold_rate"
    names += " pull_mb resident idle_cpu_us idle_cores cold_cores load_cores"
    figures = dict.fromkeys(names.split(), 1.0)
    text, kept = render({"java": {**figures, "ratio": 9.0}, "pyromq": figures}, 512 << 20)
    assert kept
    assert "pyromq's ratio 1.00 (bound: at most 3, kept)" in text
    text, kept = render({"pyromq": {**figures, "ratio": BOUND + 0.1}}, 512 << 20)
    assert not kept
    assert "MISSED" in text
