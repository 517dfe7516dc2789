from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.format import HEADER_SIZE, INDEX_UNIT_SIZE
from pyromq.raft.offline.files import committed_end, find_node, read_checkpoint
from pyromq.store.config import MessageStoreConfig
from pyromq.store.results import StoreError
from tests.support.raft_logs import open_log


def fill(root: Path, committed: int = 3) -> Path:
    log = open_log(root / "dledger-n1")
    log.append_bodies(1, [b"x" * 100] * 6)
    log.commit(committed)
    log.stop()
    return root


def test_a_node_is_found_in_its_store(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in (tmp_path, tmp_path / "dledger-n1"):
        node = find_node(path)
        assert (node.root, node.node_id) == (tmp_path, "n1")
        assert node.data == tmp_path / "dledger-n1" / "data"
        assert node.index == tmp_path / "dledger-n1" / "index"


def test_settings_tell_where_it_is(tmp_path: Path) -> None:
    fill(tmp_path)
    settings = {
        "storePathRootDir": str(tmp_path),
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": "n1-10.0.0.1:1;n2-10.0.0.1:2",
        "dLegerSelfId": "n1",
        "storePathDLedgerCommitLog": "/disk2",
    }
    node = find_node(tmp_path, MessageStoreConfig.load(settings)[0])
    assert (node.data, node.node_id) == (Path("/disk2"), "n1")
    other = MessageStoreConfig.load({**settings, "dLegerSelfId": "n2"})[0]
    with pytest.raises(StoreError, match="dledger-n2 is not a directory: the node has never"):
        find_node(tmp_path, other)
    plain = MessageStoreConfig(store_path_root_dir=str(tmp_path))
    assert find_node(tmp_path, plain).node_id == "n1"


def test_none_and_several_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no node of a raft group"):
        find_node(tmp_path)
    fill(tmp_path)
    (tmp_path / "dledger-n2").mkdir()
    with pytest.raises(StoreError, match=r"several nodes \(dledger-n1, dledger-n2\)"):
        find_node(tmp_path)


def test_the_end_of_what_is_committed(tmp_path: Path) -> None:
    node = find_node(fill(tmp_path))
    assert read_checkpoint(node).committed_index == 3
    assert committed_end(node) == 4 * (HEADER_SIZE + 100)
    checkpoint = node.directory / "checkpoint"
    checkpoint.write_text("committedIndex=what")
    assert read_checkpoint(node).committed_index == -1, "no earlier one was saved"
    assert committed_end(node) == 0
    (node.directory / "checkpoint.bak").write_text("endIndex=5\ncommittedIndex=1\n")
    assert committed_end(node) == 2 * (HEADER_SIZE + 100)
    checkpoint.unlink()
    assert committed_end(node) == 2 * (HEADER_SIZE + 100)


def test_an_index_without_the_entry_is_refused(tmp_path: Path) -> None:
    node = find_node(fill(tmp_path))
    (index,) = node.index.iterdir()
    with index.open("r+b") as file:
        file.seek(3 * INDEX_UNIT_SIZE)
        file.write(bytes(INDEX_UNIT_SIZE))
    with pytest.raises(StoreError, match="lacks entry 3, which is committed: run pyromq raft"):
        committed_end(node)
    (node.data / "stray").touch()
    with pytest.raises(StoreError, match=r"stray is not a segment.*: run pyromq raft check"):
        committed_end(node)
