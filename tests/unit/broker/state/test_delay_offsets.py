from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.broker.state.persistence import PersistenceError
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper

#: As RocketMQ 4.9.7 writes it.
JAVA_FILE = b'{\n\t"offsetTable":{1:10,2:0,18:9223372036854775807\n\t}\n}'
OFFSETS = {1: 10, 2: 0, 18: (1 << 63) - 1}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "delayOffset.json"


def opened(root: Path) -> DelayOffsetTable:
    table = DelayOffsetTable(root / "config", root / "abort")
    table.load()
    return table


def content(file: Path) -> bytes:
    return file.read_bytes()


def write(file: Path, data: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(data)


def inode(file: Path) -> int:
    return file.stat().st_ino


async def test_the_file_is_like_javas(tmp_path: Path, file: Path) -> None:
    write(file, JAVA_FILE)
    table = opened(tmp_path)
    assert table.table() == DelayOffsetSerializeWrapper(OFFSETS)
    assert [table.get(level) for level in (1, 2, 3)] == [10, 0, 0]
    await table.close()
    assert content(file) == JAVA_FILE
    assert file.with_name("delayOffset.json.bak").read_bytes() == JAVA_FILE


async def test_an_empty_table_is_saved_and_read(tmp_path: Path, file: Path) -> None:
    await opened(tmp_path).close()
    assert content(file) == b'{\n\t"offsetTable":{\n\t}\n}'
    assert opened(tmp_path).table().offset_table == {}


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, file: Path) -> None:
    write(file, b'{"offsetTable":{1:"many"}}')
    with pytest.raises(PersistenceError, match=r"delayOffset\.json"):
        opened(tmp_path)


async def test_only_flushed_deliveries_are_saved(tmp_path: Path, file: Path) -> None:
    table = opened(tmp_path)
    table.begin(100)
    table.move({1: 1}, 200)
    assert not table.settle(199)
    table.move({1: 2}, 300)
    assert not table.settle(199)
    assert table.settle(200)  # the first delivery is on the disk, the second is not
    table.save_if_changed()
    await table.file.saved()
    assert b"{1:1\n" in content(file)
    assert table.get(1) == 2

    assert table.settle(300)
    written = inode(file)
    table.save_if_changed()
    await table.file.saved()
    assert b"{1:2\n" in content(file)
    assert inode(file) != written
    written = inode(file)
    table.save_if_changed()
    await table.file.saved()
    assert inode(file) == written


async def test_a_stop_without_the_last_flush_saves_flushed_deliveries(
    tmp_path: Path, file: Path
) -> None:
    table = opened(tmp_path)
    table.begin(0)
    table.move({1: 1}, 200)
    table.settle(200)
    table.move({1: 2}, 300)
    table.settle(250)
    await table.close()
    assert b"{1:1\n" in content(file)
    assert file.with_name("delayOffset.progress").exists()


async def test_a_clean_stop_leaves_no_note(tmp_path: Path, file: Path) -> None:
    table = opened(tmp_path)
    table.begin(0)
    table.move({1: 1}, 200)
    table.settle(200)
    await table.close()
    assert not file.with_name("delayOffset.progress").exists()


def killed(root: Path) -> None:
    """A broker that delivered, noted it, saved nothing and was killed."""
    (root / "abort").touch()
    table = opened(root)
    table.begin(100)
    table.move({1: 7, 2: 3}, 500)


def test_after_a_kill_the_note_counts(tmp_path: Path) -> None:
    killed(tmp_path)
    table = opened(tmp_path)
    table.begin(500)
    assert table.table().offset_table == {1: 7, 2: 3}
    again = opened(tmp_path)  # killed before anything was delivered
    again.begin(500)
    assert again.table().offset_table == {1: 7, 2: 3}


def test_the_note_does_not_count_for_a_log_that_lost_its_end(tmp_path: Path) -> None:
    killed(tmp_path)
    table = opened(tmp_path)
    table.begin(499)
    assert table.table().offset_table == {}


def test_the_note_does_not_count_after_a_clean_stop(tmp_path: Path) -> None:
    killed(tmp_path)
    (tmp_path / "abort").unlink()  # as after a run of RocketMQ, which does not know the note
    table = opened(tmp_path)
    table.begin(10_000)
    assert table.table().offset_table == {}


def test_a_file_that_is_ahead_of_the_note_counts(tmp_path: Path, file: Path) -> None:
    killed(tmp_path)
    file.write_bytes(b'{"offsetTable":{1:9,2:1,3:4}}')
    table = opened(tmp_path)
    table.begin(500)
    assert table.table().offset_table == {1: 9, 2: 3, 3: 4}


async def test_a_stop_before_any_delivery_saves_the_note(tmp_path: Path, file: Path) -> None:
    killed(tmp_path)
    table = opened(tmp_path)
    table.begin(500)
    table.settle(500)
    await table.close()
    assert b"{1:7,2:3\n" in content(file)
    assert not file.with_name("delayOffset.progress").exists()


async def test_a_copy_replaces_levels_and_is_saved(tmp_path: Path, file: Path) -> None:
    write(file, JAVA_FILE)
    table = opened(tmp_path)
    table.begin(1000)
    table.take_over({1: 7, 3: 9}, 500)
    assert table.table().offset_table == {**OFFSETS, 1: 7, 3: 9}, "back, and without a loss"
    await table.file.saved()
    assert opened(tmp_path).table().offset_table == {**OFFSETS, 1: 7, 3: 9}
    assert table.settle(500), "what was taken over is fsynced"
    await table.close()
    assert not (tmp_path / "config" / "delayOffset.progress").exists()


async def test_a_copy_outlives_a_kill_only_with_the_log_that_it_counts(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.begin(1000)
    table.take_over({1: 7}, 500)
    await table.file.saved()
    table.move({1: 8}, 1200)  # promoted since
    (tmp_path / "abort").touch()
    again = opened(tmp_path)
    again.begin(1100)
    assert again.get(1) == 7, "the copy of the last delivery is not in the log"
    (tmp_path / "config" / "delayOffset.json").unlink()
    (tmp_path / "config" / "delayOffset.json.bak").unlink(missing_ok=True)
    late = opened(tmp_path)
    late.begin(1100)
    assert late.get(1) == 7
