"""The offline tools on the store of a raft node: its log is in entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.format import HEADER_SIZE
from pyromq.raft.offline.files import committed_end, find_node
from pyromq.store.offline.check import ViolationKind, check_store, guess_config
from pyromq.store.offline.log_parts import plan_parts
from pyromq.store.offline.raft_store import StoreLog, entry_directory, refuse_raft_store
from pyromq.store.offline.rebuild import rebuild_store, require_log
from pyromq.store.offline.truncate import truncate_store
from pyromq.store.results import StoreError
from tests.support.agreed_stores import commit, log_of, open_leader, open_member
from tests.support.patience import wait_until
from tests.support.stores import SEGMENT, bodies, open_store, put, small_config
from tests.unit.store.offline.test_rebuild import derived

COUNT = 150


def fill(root: Path, *, uncommitted: int = 0) -> None:
    """Several files of entries, of which the last ones are not committed."""
    store = open_leader(root)
    for number in range(COUNT + uncommitted):
        put(store, b"%04d" % number * 300, queue_id=number % 3, keys=f"k{number}", tags="t")
    store.seal()
    commit(store, log_of(store).end_index - uncommitted)
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()


def fill_mixed(root: Path) -> None:
    """A commit log from before the group, then entries."""
    store = open_store(root)
    for number in range(COUNT):
        put(store, b"%04d" % number * 300, queue_id=number % 3, keys=f"old{number}")
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    fill(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store", uncommitted=2)
    return tmp_path / "store"


def test_where_the_entries_are(root: Path, tmp_path: Path) -> None:
    data = root / "dledger-n0" / "data"
    assert entry_directory(small_config(root)) == data
    assert entry_directory(small_config(tmp_path / "other")) is None
    elsewhere = small_config(
        root,
        enable_dleger_commit_log=True,
        dleger_group="g",
        dleger_peers="n0-127.0.0.1:1",
        dleger_self_id="n0",
        store_path_dledger_commit_log="/disk2",
    )
    assert entry_directory(elsewhere) == Path("/disk2")
    assert guess_config(root).mapped_file_size_commit_log == SEGMENT
    other = root / "dledger-n1" / "data"
    other.mkdir(parents=True)
    assert entry_directory(small_config(root)) == data, "an empty directory is no node's"
    (other / f"{0:020d}").touch()
    with pytest.raises(StoreError, match=r"several raft nodes \(dledger-n0, dledger-n1\)"):
        entry_directory(small_config(root))


def test_tools_for_commit_logs_refuse(root: Path, tmp_path: Path) -> None:
    config = small_config(root)
    with pytest.raises(StoreError, match=r"belongs to a node of a raft group.*: do this"):
        refuse_raft_store(config, "do this")
    refuse_raft_store(small_config(tmp_path / "other"), "do this")
    with pytest.raises(StoreError, match="use pyromq store check and pyromq store rebuild"):
        require_log(config)
    with pytest.raises(StoreError, match="use pyromq store check"):
        plan_parts(config)
    with pytest.raises(StoreError, match="the group decides where its log ends"):
        truncate_store(config, 0)


def test_a_sound_store_has_no_violation(root: Path) -> None:
    assert list(check_store(root)) == []
    assert list(check_store(root, small_config(root))) == []


def test_a_store_with_an_old_commit_log_has_none_either(tmp_path: Path) -> None:
    fill_mixed(tmp_path)
    log = StoreLog(small_config(tmp_path))
    log.load()
    assert log.framing_at(0).prefix == 0
    assert log.framing_at(log.segments.end_offset - 1).prefix == HEADER_SIZE
    log.segments.close()
    assert list(check_store(tmp_path)) == []


def test_a_log_that_begins_in_the_middle_of_a_file_is_sound(tmp_path: Path) -> None:
    store = open_member(tmp_path)
    log = log_of(store)
    log.rebuild(7, 1000)
    log.append_bodies(1, [_record(1000 + HEADER_SIZE)])
    commit(store)
    store.stop()
    assert list(check_store(tmp_path)) == []
    (data,) = (tmp_path / "dledger-n0" / "data").iterdir()
    _write(data, 500, b"?")
    assert [each.kind for each in check_store(tmp_path)] == [ViolationKind.RECORD]


def test_damage_is_found_in_each_part(root: Path) -> None:
    data = sorted((root / "dledger-n0" / "data").iterdir())
    record = 200_000
    log = StoreLog(small_config(root))
    log.load()
    log.segments.close()
    # Body, size and offset of records in the second file.
    content = data[1].read_bytes()
    at = content.index(b"\xda\xa3\x20\xa7", 10_000) - 4
    _write(data[1], at + 100, b"\x00\x00\x00")
    found = list(check_store(root))
    assert {each.kind for each in found} == {ViolationKind.BODY_CRC}
    assert found[0].file == data[1]
    _write(data[1], at + 4, b"\x00\x00\x00\x00")
    kinds = {each.kind for each in check_store(root)}
    assert ViolationKind.RECORD in kinds, record
    assert ViolationKind.QUEUE_ENTRY in kinds


def test_rebuilt_files_equal_the_originals(root: Path) -> None:
    before = derived(root)
    config = guess_config(root)
    with pytest.raises(StoreError, match="belongs to a node of a raft group"):
        rebuild_store(config)
    made = rebuild_store(config, committed=committed_end(find_node(root)))
    assert derived(root) == before
    assert made.entries == COUNT
    assert list(check_store(root)) == []
    # The last two entries are still for the group to decide on.
    store = open_member(root)
    assert store.agreement is not None
    assert store.agreement.committed < log_of(store).written
    commit(store)
    assert len(bodies(store)) == (COUNT + 2) // 3 + 1
    store.stop()


def test_rebuilt_files_of_a_store_with_an_old_commit_log(tmp_path: Path) -> None:
    fill_mixed(tmp_path)
    before = derived(tmp_path)
    made = rebuild_store(guess_config(tmp_path), committed=committed_end(find_node(tmp_path)))
    assert derived(tmp_path) == before
    assert made.entries == 2 * COUNT
    assert made.log_begin == 0


def _record(offset: int) -> bytes:
    from tests.support.records import make_record

    return make_record(physical_offset=offset, queue_id=0, queue_offset=0)


def _write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
