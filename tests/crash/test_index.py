"""The key index after a crash: nothing that it lacks is taken for indexed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pyromq.protocol.message.units import CHECKPOINT
from pyromq.store.offline.check import check_store
from tests.support.patience import wait_until
from tests.support.stores import FOREVER, audit, killed_copy, open_store, put

#: Three entries in a file, behind the one that is never used.
INDEX = {"max_index_num": 4, "max_hash_slot_num": 8}


def test_keys_of_a_message_in_two_files_are_all_found(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", flush_interval_commit_log=1, **INDEX)
    for number in range(2):
        put(store, keys=f"a{number} b{number}")  # the first file is full with a1
    store.seal()
    sealed = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > sealed)
    put(store, keys="later")
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    # The first file, and no more, counts as synced.
    (last_of_first,) = store.query("TopicTest", "a1", 1, 0, FOREVER)
    assert len(list((tmp_path / "store" / "index").iterdir())) == 2
    copy = killed_copy(store, tmp_path / "killed")
    end_of_first = sorted((copy / "index").iterdir())[0].read_bytes()[8:16]
    (copy / "checkpoint").write_bytes(CHECKPOINT.pack(0, 0, int.from_bytes(end_of_first, "big")))
    store.stop()
    again = open_store(copy, **INDEX)
    audit(again)
    assert last_of_first in again.query("TopicTest", "b1", 10, 0, FOREVER)
    again.stop()


def test_an_index_file_that_is_not_full_is_made_again(tmp_path: Path) -> None:
    """A kill may come between an entry and its slot: such a file looks whole by its header."""
    store = open_store(tmp_path / "store", **INDEX)
    put(store, keys="one")
    put(store, keys="two")
    store.seal()
    copy = killed_copy(store, tmp_path / "killed")
    store.stop()
    (file,) = (copy / "index").iterdir()
    data = bytearray(file.read_bytes())
    end = int.from_bytes(data[8:16], "big")
    (copy / "checkpoint").write_bytes(CHECKPOINT.pack(end, end, end))
    data[40 : 40 + 4 * 8] = bytes(4 * 8)  # every slot
    file.write_bytes(data)
    again = open_store(copy, **INDEX)
    audit(again)
    again.stop()


@pytest.mark.parametrize("clean", [True, False])
def test_index_files_that_know_more_than_the_log_are_made_again(
    tmp_path: Path, clean: bool
) -> None:
    """A power cut may take the log's end and leave the index of it."""
    store = open_store(tmp_path, **INDEX)
    places = [put(store, keys=f"k{number}") for number in range(8)]
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    if not clean:
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").write_bytes(CHECKPOINT.pack(0, 0, FOREVER))
    (segment,) = (tmp_path / "commitlog").iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data[: places[4]] + bytes(len(data) - places[4]))
    again = open_store(tmp_path, **INDEX)
    assert again.max_physical_offset == places[4]
    for number in range(4):
        put(again, b"another", keys=f"new{number}")
    again.seal()
    audit(again)
    assert not again.query("TopicTest", "k7", 10, 0, FOREVER)
    again.stop()


@pytest.mark.parametrize("byte", range(8))
def test_each_byte_of_where_an_entry_points_is_checked(tmp_path: Path, byte: int) -> None:
    store = open_store(tmp_path, max_index_num=256, max_hash_slot_num=8)
    for number in range(20):
        put(store, keys=f"k{number}")
    store.seal()
    wait_until(lambda: store.dispatch_behind == 0)
    store.stop()
    assert list(check_store(tmp_path, store.config)) == []
    (file,) = (tmp_path / "index").iterdir()
    data = bytearray(file.read_bytes())
    data[40 + 4 * 8 + 20 * 10 + 4 + byte] ^= 1  # the physical offset of entry 10
    file.write_bytes(data)
    assert [violation.file for violation in check_store(tmp_path, store.config)] != []
