from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper
from pyromq.store.backup import restoring
from pyromq.store.backup.making import back_up
from pyromq.store.backup.repository import Backup, Repository
from pyromq.store.backup.restoring import restore_backup, settings_for
from pyromq.store.lock import lock_store
from pyromq.store.offline.check import check_store
from pyromq.store.results import StoreError
from tests.support.stores import SEGMENT, TOPIC, log_records, open_store, put, small_config

OFFSETS = {f"{TOPIC}@g": {0: 30, 1: 10**6}, "gone@g": {0: 7}}


def make(tmp_path: Path, **changes: object) -> Backup:
    store = open_store(tmp_path / "data", **changes)
    for number in range(100):
        put(store, b"%d " % number * 200, queue_id=number % 2, keys=f"k{number}")
    store.seal()
    store.stop()
    config = tmp_path / "data" / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: {}}}))
    (config / "consumerOffset.json").write_bytes(ConsumerOffsetSerializeWrapper(OFFSETS).encode())
    made = back_up(small_config(tmp_path / "data", **changes), Repository(tmp_path / "backups"))
    return made.backup


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    return make(tmp_path)


def test_a_restored_store_is_the_old_one(backup: Backup, tmp_path: Path) -> None:
    root = tmp_path / "restored"
    config = settings_for(backup, root)
    result = restore_backup(backup, config)
    assert (result.rebuilt.queues, result.rebuilt.entries, result.rebuilt.keys) == (2, 100, 100)
    assert list(check_store(root, config)) == []
    for kind in ("commitlog", "consumequeue"):
        for path in (tmp_path / "data" / kind).rglob("[0-9]" * 20):
            same = root / path.relative_to(tmp_path / "data")
            if path.read_bytes().strip(b"\0"):
                assert same.read_bytes() == path.read_bytes(), path
    store = open_store(root)
    assert len(log_records(store)) == 100
    put(store, b"more")
    store.seal()
    assert store.max_offset(TOPIC, 0) == 51
    store.stop()


def test_offsets_after_their_queue_are_reduced(backup: Backup, tmp_path: Path) -> None:
    root = tmp_path / "restored"
    result = restore_backup(backup, settings_for(backup, root))
    assert {(change.name, change.after) for change in result.changes} == {
        (f"{TOPIC}@g queue 1", 50),
        ("gone@g queue 0", 0),
    }
    content = (root / "config/consumerOffset.json").read_bytes()
    table = ConsumerOffsetSerializeWrapper.decode(content).offset_table
    assert table == {f"{TOPIC}@g": {0: 30, 1: 50}, "gone@g": {0: 0}}


def test_queues_whose_messages_have_expired_keep_their_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    for number in range(30):
        put(store, b"old %d" % number, topic="old")
    for number in range(200):
        put(store, b"%d " % number * 200)
    store.seal()
    store.stop()
    for number in range(2):
        (tmp_path / "data/commitlog" / f"{number * SEGMENT:020}").unlink()
    config = small_config(tmp_path / "data")
    backup = back_up(config, Repository(tmp_path / "backups")).backup
    root = tmp_path / "restored"
    result = restore_backup(backup, settings_for(backup, root))
    assert result.empty_queues == 1
    assert list(check_store(root)) == []
    store = open_store(root)
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (30, 30)
    put(store, b"new", topic="old")
    store.seal()
    assert store.max_offset("old", 0) == 31
    store.stop()
    assert list(check_store(root)) == []


def test_extensions_are_rebuilt(tmp_path: Path) -> None:
    changes = {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 4096,
    }
    backup = make(tmp_path, **changes)
    root = tmp_path / "restored"
    restore_backup(backup, settings_for(backup, root))
    assert list((root / "consumequeue_ext" / TOPIC / "0").iterdir())
    assert list(check_store(root)) == []


def test_several_directories(backup: Backup, tmp_path: Path) -> None:
    root = tmp_path / "restored"
    paths = [tmp_path / "disk0", tmp_path / "disk1"]
    properties = {"storePathCommitLog": ",".join(map(str, paths))}
    restore_backup(backup, settings_for(backup, root, properties))
    assert all(any(path.iterdir()) for path in paths)
    store = open_store(root, store_path_commit_log=properties["storePathCommitLog"])
    assert len(log_records(store)) == 100
    store.stop()


def test_a_store_that_is_not_empty_is_refused(backup: Backup, tmp_path: Path) -> None:
    root = tmp_path / "restored"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020}").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"is not empty \(commitlog\)"):
        restore_backup(backup, settings_for(backup, root))
    assert (root / "commitlog" / f"{0:020}").read_bytes() == b"mine"
    assert not (root / "restoring").exists()


def test_a_damaged_backup_is_refused_and_nothing_starts(backup: Backup, tmp_path: Path) -> None:
    path = backup.directory / f"commitlog/{SEGMENT:020}"
    content = path.read_bytes()
    path.write_bytes(b"!" + content[1:])
    root = tmp_path / "restored"
    config = settings_for(backup, root)
    with pytest.raises(StoreError, match="the backup is damaged"):
        restore_backup(backup, config)
    with pytest.raises(StoreError, match="a restore was interrupted"):
        lock_store(root)
    with pytest.raises(StoreError, match="a restore was interrupted"):
        open_store(root)
    path.write_bytes(content)
    restore_backup(backup, config)
    open_store(root).stop()


def test_an_interrupted_restore_of_another_backup(backup: Backup, tmp_path: Path) -> None:
    root = tmp_path / "restored"
    root.mkdir()
    (root / "restoring").write_text("{}")
    with pytest.raises(StoreError, match="interrupted restore of another backup"):
        restore_backup(backup, settings_for(backup, root))


def test_settings_that_do_not_fit(backup: Backup, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog=8192 does not fit"):
        settings_for(backup, tmp_path, {"mappedFileSizeCommitLog": "8192"})
    raft = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": "n0-127.0.0.1:4000",
        "dLegerSelfId": "n0",
    }
    with pytest.raises(StoreError, match="the settings are of a node of a raft group"):
        restore_backup(backup, settings_for(backup, tmp_path / "restored", raft))


def test_an_empty_store(tmp_path: Path) -> None:
    config = small_config(tmp_path / "data")
    (tmp_path / "data").mkdir()
    backup = back_up(config, Repository(tmp_path / "backups")).backup
    root = tmp_path / "restored"
    restore_backup(backup, settings_for(backup, root))
    store = open_store(root)
    put(store)
    store.seal()
    store.stop()


@pytest.mark.parametrize(
    "step", ["_copy_log", "_write_tables", "_rebuild", "_add_empty_queues", "_clamp"]
)
@pytest.mark.parametrize("is_done", [False, True])
def test_a_restore_resumes_after_every_step(
    backup: Backup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    original = getattr(restoring, step)

    def stop(*arguments: object) -> None:
        if is_done:
            original(*arguments)
        raise KeyboardInterrupt

    root = tmp_path / "restored"
    config = settings_for(backup, root)
    with monkeypatch.context() as patched:
        patched.setattr(restoring, step, stop)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(backup, config)
    with pytest.raises(StoreError, match="a restore was interrupted"):
        open_store(root)
    restore_backup(backup, config)
    assert list(check_store(root, config)) == []
    store = open_store(root)
    assert len(log_records(store)) == 100
    store.stop()
