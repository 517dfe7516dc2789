from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.raft.offline.backup import complete_node, raft_node_of
from pyromq.raft.offline.check import NodeCheck
from pyromq.raft.offline.files import committed_end, find_node, read_checkpoint
from pyromq.raft.vote_file import VoteFile
from pyromq.store.backup.making import RaftNode, back_up
from pyromq.store.backup.repository import Backup, Repository
from pyromq.store.backup.restoring import restore_backup, settings_for
from pyromq.store.offline.check import check_store
from pyromq.store.results import StoreError
from tests.support.agreed_stores import commit, open_leader, open_member
from tests.support.stores import TOPIC, open_store, put, small_config

PROPERTIES = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "dLegerPeers": "n0-127.0.0.1:4000;n1-127.0.0.1:4001",
    "dLegerSelfId": "n0",
}


def make(tmp_path: Path) -> tuple[Backup, int]:
    """A backup of a live node, and where its committed entries end."""
    store = open_leader(tmp_path / "data", term=3)
    for number in range(100):
        put(store, b"%d " % number * 300, queue_id=number % 2)
    store.seal()
    commit(store)
    committed = store.max_physical_offset
    put(store, b"not committed")
    store.seal()
    (tmp_path / "data/dledger-n0/currterm").write_text("currTerm=7\nvoteLeader=n0\n")
    config = small_config(tmp_path / "data")
    node = raft_node_of(config)
    assert node is not None
    assert (node.node_id, node.term) == ("n0", 7)
    made = back_up(config, Repository(tmp_path / "backups"), raft_node=node)
    store.stop()
    return made.backup, committed


@pytest.mark.parametrize("must_catch_up", [False, True])
@pytest.mark.parametrize("node_id", ["n0", "n1"])
def test_committed_entries_come_back(tmp_path: Path, node_id: str, must_catch_up: bool) -> None:
    backup, committed = make(tmp_path)
    manifest = backup.manifest
    assert manifest.raft is not None
    assert (manifest.log_end, manifest.raft.begin) == (committed, 0)
    root = tmp_path / "restored"
    config = settings_for(backup, root, {**PROPERTIES, "dLegerSelfId": node_id})

    def complete() -> None:
        for _ in range(2):  # a killed restore does it again
            complete_node(config, manifest, must_catch_up=must_catch_up)

    result = restore_backup(backup, config, complete_raft=complete)
    assert (result.rebuilt.log_end, result.rebuilt.entries) == (committed, 100)
    node = find_node(root, config)
    assert node.directory.name == f"dledger-{node_id}"
    assert committed_end(node) == committed
    assert read_checkpoint(node).must_catch_up is must_catch_up
    vote = VoteFile(node.directory).load()
    assert (vote.term, vote.voted_for) == (7, None)
    assert list(check_store(root)) == []
    assert not [finding for finding in NodeCheck(node).findings() if finding.is_damage]
    if node_id == "n0":
        store = open_member(root)
        assert [store.max_offset(TOPIC, queue_id) for queue_id in range(2)] == [50, 50]
        store.stop()


def test_a_log_from_before_the_group(tmp_path: Path) -> None:
    old = open_store(tmp_path / "data")
    for number in range(100):
        put(old, b"old %d " % number * 200)
    old.seal()
    old.stop()
    store = open_leader(tmp_path / "data")
    for number in range(10):
        put(store, b"new %d " % number * 200)
    store.seal()
    commit(store)
    store.stop()
    config = small_config(tmp_path / "data")
    backup = back_up(
        config, Repository(tmp_path / "backups"), raft_node=raft_node_of(config)
    ).backup
    raft = backup.manifest.raft
    assert raft is not None
    assert raft.begin > 0
    root = tmp_path / "restored"
    settings = settings_for(backup, root, PROPERTIES)
    restore_backup(
        backup,
        settings,
        complete_raft=lambda: complete_node(settings, backup.manifest, must_catch_up=False),
    )
    again = open_member(root)
    assert again.max_offset(TOPIC, 0) == 110
    assert again.min_offset(TOPIC, 0) == 0
    again.stop()


def test_entries_that_end_elsewhere_are_refused(tmp_path: Path) -> None:
    backup, committed = make(tmp_path)
    config = settings_for(backup, tmp_path / "restored", PROPERTIES)
    other = replace(backup.manifest, log_end=committed + 1)
    with pytest.raises(StoreError, match=f"not at {committed + 1}: they are damaged"):
        restore_backup(
            backup,
            config,
            complete_raft=lambda: complete_node(config, other, must_catch_up=False),
        )


def test_other_stores_have_no_node(tmp_path: Path) -> None:
    assert raft_node_of(small_config(tmp_path)) is None
    assert RaftNode("n0", 1, 2).committed == 2
