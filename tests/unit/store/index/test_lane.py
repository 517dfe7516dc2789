"""The index lane: it follows the log, survives a full disk, and can be off."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pyromq.store.index import lane
from pyromq.store.index.index import KeyIndex
from pyromq.store.index.lane import LOAD_SIZE, delay_after
from tests.support.patience import wait_until
from tests.support.stores import FOREVER, TOPIC, open_store, put


def test_lane_survives_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = KeyIndex.put_span
    failures = [3]

    def failing(self: KeyIndex, span: bytes, prefix: int = 0) -> int:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, span, prefix)

    monkeypatch.setattr("pyromq.store.index.lane._RETRY_SECONDS", 0.001)
    monkeypatch.setattr(KeyIndex, "put_span", failing)
    store = open_store(tmp_path)
    places = [put(store, keys="key") for _ in range(5)]
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    assert store.query(TOPIC, "key", 64, 0, FOREVER) == places[::-1]
    assert "key index write failed" in caplog.text
    store.stop()


def test_nothing_is_behind_without_an_index(tmp_path: Path) -> None:
    store = open_store(tmp_path, message_index_enable=False)
    put(store, keys="key")
    store.seal()
    assert store.dispatch_behind == 0
    assert store.query(TOPIC, "key", 64, 0, FOREVER) == []
    store.stop()


def test_records_gather_longer_under_load() -> None:
    assert 0 < delay_after(0) == delay_after(LOAD_SIZE - 1) < delay_after(LOAD_SIZE)


def test_a_log_under_load_is_indexed_to_its_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(3):
        places = [put(store, b"x" * 1000, keys="key") for _ in range(100)]
        store.seal()
        wait_until(lambda: store.dispatch_behind == 0)
    assert store.query(TOPIC, "key", 1, 0, FOREVER) == places[-1:]
    store.stop()


@pytest.mark.parametrize("body_size", [10, 3000])
@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize(("far_behind", "carried"), [(1 << 40, 0), (1, 400), (1, 10), (5000, 0)])
def test_large_reads_of_any_kind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body_size: int,
    is_pooled: bool,
    far_behind: int,
    carried: int,
) -> None:
    """Records that are copied in parts, mapped, or larger than a read; across segments."""
    monkeypatch.setattr(lane, "_MIN_CATCH_UP", far_behind)
    monkeypatch.setattr(lane, "_MAX_CARRIED", carried)
    monkeypatch.setattr(lane, "_MIN_LARGE_READ", 1)
    monkeypatch.setattr(lane, "_MIN_MAPPED_RECORD", 1000)
    monkeypatch.setattr(lane, "_MAX_COPIED_SIZE", 700)
    monkeypatch.setattr(lane, "_MAX_MAPPED_SIZE", 2500)
    store = open_store(tmp_path, transient_store_pool_enable=is_pooled)
    places = [put(store, b"x" * (body_size + at * 10), keys="key") for at in range(60)]
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    assert store.query(TOPIC, "key", 64, 0, FOREVER) == places[::-1]
    store.stop()
