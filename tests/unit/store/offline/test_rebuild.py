"""Consume queues and key index made from the log alone come out as they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyromq.store.offline.check import check_store
from pyromq.store.offline.rebuild import Rebuilt, rebuild_store
from pyromq.store.results import StoreError
from tests.golden.test_store import STORES, GoldenStore
from tests.support.patience import wait_until
from tests.support.stores import (
    BORN_HOST,
    BORN_HOST_V6,
    FOREVER,
    TOPIC,
    audit,
    bodies,
    killed_copy,
    open_store,
    put,
    small_config,
)

COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "store")
    for number in range(COUNT):
        put(
            store,
            b"%04d" % number * 300,
            queue_id=number % 3,
            tags=f"tag{number % 2}",
            keys=f"k{number}",
            born_host=BORN_HOST if number % 4 else BORN_HOST_V6,
        )
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    return store.config.root


def derived(root: Path) -> dict[str, bytes]:
    queues: dict[str, bytes] = {}
    for path in sorted((root / "consumequeue").rglob("[0-9]" * 20)):
        name = str(path.parent.relative_to(root))
        queues[name] = queues.get(name, b"") + path.read_bytes()
    files = {name: data.rstrip(b"\0") for name, data in queues.items()}
    for number, path in enumerate(sorted((root / "index").iterdir())):
        files[f"index {number}"] = path.read_bytes()
    return files


@pytest.mark.parametrize("name", STORES)
def test_what_java_made_is_made_byte_for_byte(name: str, tmp_path: Path) -> None:
    golden = GoldenStore(name, tmp_path / "store")
    before = golden.derived_files()
    shutil.rmtree(golden.root / "consumequeue")
    shutil.rmtree(golden.root / "index")
    made = rebuild_store(golden.config())
    assert golden.derived_files() == before
    assert made.log_end == golden.index["maxOffset"]
    assert made.queues == len(golden.index["consumeQueues"])
    assert made.entries == sum(len(queue["entries"]) for queue in golden.index["consumeQueues"])


def test_a_stopped_store_comes_out_the_same(root: Path) -> None:
    before = derived(root)
    checkpoint = (root / "checkpoint").read_bytes()
    seen: list[tuple[int, int]] = []
    made = rebuild_store(
        small_config(root), on_progress=lambda done, total: seen.append((done, total))
    )
    assert isinstance(made, Rebuilt)
    assert (made.queues, made.entries, made.keys) == (3, COUNT, COUNT)
    assert derived(root) == before
    assert (root / "checkpoint").read_bytes() == checkpoint
    assert not (root / "abort").exists()
    assert 0 < seen[-1][0] <= seen[-1][1]
    assert list(check_store(root, small_config(root))) == []


@pytest.mark.parametrize("what", ["queues", "index"])
def test_one_of_the_two_alone(root: Path, what: str) -> None:
    before = derived(root)
    kept = {path: path.stat().st_ino for path in root.rglob("*") if path.is_file()}
    rebuild_store(small_config(root), queues=what == "queues", index=what == "index")
    assert derived(root) == before
    untouched = "index" if what == "queues" else "consumequeue"
    for path, inode in kept.items():
        if untouched in path.parts:
            assert path.stat().st_ino == inode


def test_garbage_goes_and_messages_are_served(root: Path) -> None:
    for path in (root / "consumequeue").rglob("[0-9]" * 20):
        path.write_bytes(b"\x01" * 17)
    for path in (root / "index").iterdir():
        path.write_bytes(b"garbage")
    rebuild_store(small_config(root))
    store = open_store(root)
    assert len(audit(store)) == COUNT
    assert len(bodies(store)) == COUNT // 3
    assert len(store.query(TOPIC, "k7", 64, 0, FOREVER)) == 1
    store.stop()


def test_a_killed_store_stays_one(tmp_path: Path) -> None:
    store = open_store(tmp_path / "running")
    put(store, b"one", keys="k")
    store.seal()
    killed = killed_copy(store, tmp_path / "killed")
    with pytest.raises(StoreError, match="in use"):
        rebuild_store(store.config)
    store.stop()
    rebuild_store(small_config(killed))
    assert (killed / "abort").exists()
    again = open_store(killed)
    assert bodies(again) == [b"one"]
    again.stop()


def test_an_interruption_costs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the removal of the old files and the new ones' taking their place."""
    before = derived(root)

    def interrupted(path: Path, *arguments: object, **options: object) -> None:
        real(path)
        raise KeyboardInterrupt

    real = shutil.rmtree
    directories = iter([False, False, True])
    monkeypatch.setattr(
        shutil,
        "rmtree",
        lambda path, **options: interrupted(path) if next(directories) else real(path, **options),
    )
    with pytest.raises(KeyboardInterrupt):
        rebuild_store(small_config(root))
    monkeypatch.undo()
    assert not (root / "consumequeue").exists()
    store = open_store(root)
    assert len(audit(store)) == COUNT
    store.stop()
    assert derived(root) == before
    rebuild_store(small_config(root))
    assert not list(root.glob("*.rebuilt"))


def test_a_log_that_began_later(root: Path) -> None:
    store = open_store(root)
    for number in range(200):
        put(store, b"%04d" % number * 300, queue_id=number % 3)
    store.seal()
    store.stop()
    min((root / "commitlog").iterdir()).unlink()
    store = open_store(root)
    expected = [
        (store.min_offset(TOPIC, queue), store.max_offset(TOPIC, queue)) for queue in (0, 1)
    ]
    store.stop()
    rebuild_store(small_config(root))
    store = open_store(root)
    assert [
        (store.min_offset(TOPIC, queue), store.max_offset(TOPIC, queue)) for queue in (0, 1)
    ] == expected
    audit(store)
    store.stop()


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no log found"):
        rebuild_store(small_config(tmp_path))
    assert list(tmp_path.iterdir()) == []
