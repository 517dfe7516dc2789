from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from pyromq.broker.state.persistence import PersistenceError, TableFile


class Counter:
    """A table of one number whose snapshots can be held up while they are written."""

    def __init__(self) -> None:
        self.value = 0
        self.encoded: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def snapshot(self) -> Counter.Frozen:
        return Counter.Frozen(self, self.value)

    class Frozen:
        def __init__(self, counter: Counter, value: int) -> None:
            self.counter, self.value = counter, value

        def encode(self) -> bytes:
            assert self.counter.gate.wait(10)
            self.counter.encoded.append(self.value)
            return str(self.value).encode()


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def file(tmp_path: Path, counter: Counter) -> TableFile:
    return TableFile(tmp_path / "config" / "table.json", counter.snapshot)


def test_first_start_has_no_table(file: TableFile) -> None:
    assert file.load(int) is None


def test_a_save_keeps_the_previous_version(file: TableFile, counter: Counter) -> None:
    for counter.value in (1, 2, 3):
        file.save()
    assert file.load(int) == 3
    assert file.path.with_name("table.json.bak").read_bytes() == b"2"
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "table.json",
        "table.json.bak",
    ]


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xff\xfe"])
def test_backup_is_used_with_a_warning(
    file: TableFile, counter: Counter, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    for counter.value in (1, 2):
        file.save()
    if content is None:
        file.path.unlink()
    else:
        file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.load(int) == 1
    assert len(caplog.records) == 1
    assert str(file.path) in caplog.text


def test_unreadable_table_and_backup_stop_the_start(file: TableFile, counter: Counter) -> None:
    for counter.value in (1, 2):
        file.save()
    for path in file.path.parent.iterdir():
        path.write_bytes(b"garbage")
    with pytest.raises(PersistenceError) as raised:
        file.load(int)
    assert str(file.path) in str(raised.value)
    assert "table.json.bak" in str(raised.value)
    assert "Restore" in str(raised.value)


def test_unreadable_table_without_backup_stops_the_start(file: TableFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(b"")
    with pytest.raises(PersistenceError, match="cannot read"):
        file.load(int)


def test_failed_save_names_the_file_and_leaves_the_table(file: TableFile, counter: Counter) -> None:
    file.save()
    file.path.with_name("table.json.tmp").mkdir()
    counter.value = 5
    with pytest.raises(PersistenceError, match=str(file.path)):
        file.save()
    assert file.load(int) == 0


def test_save_soon_without_a_loop_saves_at_once(file: TableFile, counter: Counter) -> None:
    counter.value = 4
    file.save_soon()
    assert file.load(int) == 4


async def test_changes_during_a_save_share_the_next_one(file: TableFile, counter: Counter) -> None:
    counter.gate.clear()
    file.save_soon()
    await asyncio.sleep(0)
    for counter.value in range(1, 1001):
        file.save_soon()
    counter.gate.set()
    await file.close()
    assert file.load(int) == 1000
    assert counter.encoded == [0, 1000, 1000]


async def test_background_failure_is_logged_and_the_next_save_works(
    file: TableFile, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = file.path.with_name("table.json.tmp")
    obstacle.mkdir(parents=True)
    with caplog.at_level(logging.ERROR):
        file.save_soon()
        assert file._task is not None
        await file._task
    assert str(file.path) in caplog.text
    obstacle.rmdir()
    counter.value = 9
    await file.close()
    assert file.load(int) == 9


async def test_a_failed_save_is_retried_on_request(
    file: TableFile, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    file.path.parent.mkdir(parents=True, exist_ok=True)
    blocked = file.path.with_name(file.path.name + ".tmp")
    blocked.mkdir()
    file.save_if_failed()
    assert file._task is None, "nothing has failed yet"
    for _ in range(3):
        file.save_soon()
        assert file._task is not None
        await file._task
    assert caplog.text.count("keeping the table in memory until it can be saved") == 1
    blocked.rmdir()
    file.save_if_failed()
    task = file._task
    assert task is not None
    await task
    assert file.path.exists()
    file.save_if_failed()
    assert file._task is task, "nothing to do"


def test_an_older_snapshot_never_replaces_a_newer_one(file: TableFile, counter: Counter) -> None:
    counter.value = 1
    older = file._take()
    counter.value = 2
    file.save()
    file._write(*older)
    assert file.load(int) == 2
