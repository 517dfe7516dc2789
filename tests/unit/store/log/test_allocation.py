"""Preallocated segments: by the thread, by the writer, and by both at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.store.log import allocation
from pyromq.store.log.allocation import AllocationService
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.transient_store_pool import PooledFile, TransientStorePool
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import wait_until
from tests.support.stores import TOPIC, audit, body_for, open_store, put

SIZE = 64 * 1024


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AllocationService]:
    service = AllocationService(tmp_path, SIZE)
    yield service
    service.stop()


def names(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir())


def test_the_next_segment_is_made_before_it_is_needed(
    tmp_path: Path, service: AllocationService
) -> None:
    service.start()
    file = service.take_next(0)
    assert (file.base, file.size) == (0, SIZE)
    service.follow(file, 0)
    wait_until(lambda: (tmp_path / f"{SIZE:020d}").exists())
    wait_until(lambda: file.reserved == SIZE)
    second = service.take_next(SIZE)
    assert second.base == SIZE
    assert names(tmp_path) == [0, SIZE]
    file.close()
    second.close()


def test_files_with_buffers_are_made_ahead_as_long_as_there_are_buffers(tmp_path: Path) -> None:
    pool = TransientStorePool(2, SIZE)
    pool.open()
    service = AllocationService(tmp_path, SIZE, pool=pool)
    service.start()
    first = service.take_next(0)
    service.follow(first, 0)
    wait_until(lambda: (tmp_path / f"{SIZE:020d}").exists())
    second = service.take_next(SIZE)
    service.follow(second, 0)
    wait_until(lambda: second.reserved == SIZE)
    assert isinstance(first, PooledFile)
    assert isinstance(second, PooledFile)
    # None is left: whether the next one has a buffer shows when it is needed.
    assert names(tmp_path) == [0, SIZE]
    first.release_buffer()
    service.advance(0)
    wait_until(lambda: pool.available == 0)
    service.stop()
    assert names(tmp_path) == [0, SIZE]
    assert pool.available == 1
    first.close()
    second.close()
    assert pool.available == 2
    pool.close()


def test_an_unused_segment_goes_with_the_stop(tmp_path: Path) -> None:
    service = AllocationService(tmp_path, SIZE)
    service.start()
    file = service.take_next(0)
    service.follow(file, 0)
    wait_until(lambda: (tmp_path / f"{SIZE:020d}").exists())
    service.stop()
    assert names(tmp_path) == [0]
    file.close()


def test_a_segment_made_for_another_place_is_not_used(
    tmp_path: Path, service: AllocationService
) -> None:
    file = service.take_next(0)
    service.follow(file, 0)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE]
    other = service.take_next(7 * SIZE)
    assert other.base == 7 * SIZE
    assert names(tmp_path) == [0, 7 * SIZE]
    file.close()
    other.close()


def test_a_segment_that_was_removed_is_made_again(
    tmp_path: Path, service: AllocationService, caplog: pytest.LogCaptureFixture
) -> None:
    """What is written to a file without a name is gone with the process."""
    service.start()
    file = service.take_next(0)
    service.follow(file, 0)
    following = tmp_path / f"{SIZE:020d}"
    wait_until(following.exists)
    wait_until(lambda: file.reserved == SIZE)
    following.unlink()
    second = service.take_next(SIZE)
    assert following.stat().st_size == SIZE
    service.ensure(second, SIZE)
    second.write(0, b"stays")
    assert following.read_bytes()[:5] == b"stays"
    assert "removed by another process" in caplog.text
    file.close()
    second.close()


def test_the_segment_in_use_is_never_made_a_second_time(
    tmp_path: Path, service: AllocationService
) -> None:
    """Between taking a segment and following it the thread still knows the full one."""
    first = service.take_next(0)
    service.follow(first, 0)
    service._work_ahead()
    second = service.take_next(SIZE)
    service._work_ahead()  # the thread wakes up now
    service.follow(second, 0)
    second.reserve(SIZE)
    second.write(0, b"messages")
    third = service.take_next(2 * SIZE)
    assert (tmp_path / f"{SIZE:020d}").read_bytes()[:8] == b"messages"
    for file in (first, second, third):
        file.close()


def test_small_stores_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "RESERVE_STEP", 4096)
    monkeypatch.setattr(allocation, "AHEAD", 8192)
    service = AllocationService(tmp_path, SIZE)
    file = service.take_next(0)
    service.follow(file, 0)
    service._work_ahead()
    assert file.reserved == 8192
    service.advance(5000)
    service._work_ahead()
    assert file.reserved == 16384, "whole steps"
    service.ensure(file, 20_000)
    assert file.reserved == 20480
    assert names(tmp_path) == [0], "the next one is not near"
    service.advance(SIZE - 8192)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE]
    service.stop()
    file.close()


def test_a_full_disk_is_told_and_outlived(
    tmp_path: Path,
    service: AllocationService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = os.posix_fallocate
    full = threading.Event()
    full.set()

    def fallocate(descriptor: int, offset: int, length: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    service.start()
    file = service.take_next(0)
    service.follow(file, 0)
    wait_until(lambda: "preallocation in" in caplog.text)
    with pytest.raises(OSError, match="No space"):
        service.ensure(file, 100)
    full.clear()
    service.advance(0)
    wait_until(lambda: file.reserved == SIZE)
    file.close()


def test_rolls_race_with_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record must outlive hundreds of rolls, whoever made the segments."""
    deleted: list[str] = []
    delete = MappedFile.delete

    def remember(self: MappedFile) -> None:
        deleted.append(self.path.name)
        delete(self)

    monkeypatch.setattr(MappedFile, "delete", remember)
    store = open_store(
        tmp_path, mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=20 * 1000
    )
    for _ in range(400):
        put(store, body_for(store, 4088))
        store.seal()
    assert len(audit(store)) == store.max_offset(TOPIC, 0) == 400
    on_disk = {int(path.name) for path in store.config.commit_log_directory.iterdir()}
    assert set(range(0, 400 * 4096, 4096)) <= on_disk
    assert not [name for name in deleted if int(name) < 400 * 4096]
    store.stop()


def test_a_quick_writer_gets_two_segments_ahead(tmp_path: Path) -> None:
    now = 0.0
    service = AllocationService(tmp_path, SIZE, clock=lambda: now)
    first = service.take_next(0)
    service.follow(first, 0)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE]
    now = 9.0
    second = service.take_next(SIZE)
    service.follow(second, 0)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    now = 30.0
    third = service.take_next(2 * SIZE)
    service.follow(third, 0)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE, 2 * SIZE, 3 * SIZE], "a slow one: one is enough"
    fourth = service.take_next(3 * SIZE)
    assert fourth.base == 3 * SIZE
    service.stop()
    assert names(tmp_path) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    for file in (first, second, third, fourth):
        file.close()


def test_segments_ahead_of_a_quick_writer_can_be_capped(tmp_path: Path) -> None:
    service = AllocationService(tmp_path, SIZE, max_ahead=1, clock=lambda: 0.0)
    files = []
    for base in (0, SIZE, 2 * SIZE):
        files.append(service.take_next(base))
        service.follow(files[-1], 0)
        service._work_ahead()
        assert names(tmp_path)[-1] == base + SIZE
    service.stop()
    for file in files:
        file.close()


def test_both_segments_ahead_go_when_another_is_asked_for(tmp_path: Path) -> None:
    service = AllocationService(tmp_path, SIZE, clock=lambda: 0.0)
    files = [service.take_next(number * SIZE) for number in range(2)]
    service.follow(files[-1], 0)
    service._work_ahead()
    assert names(tmp_path) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    files.append(service.take_next(9 * SIZE))
    assert names(tmp_path) == [0, SIZE, 9 * SIZE]
    for file in files:
        file.close()


def test_a_thread_that_hangs_in_the_kernel_is_not_waited_for(
    tmp_path: Path, service: AllocationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "TIMEOUT", 0.01)
    file = service.take_next(0)
    with service._lock:  # the thread is in the middle of a step
        for call in (lambda: service.take_next(SIZE), lambda: service.ensure(file, 100)):
            with pytest.raises(OSError, match="does not respond"):
                call()
    service.ensure(file, 100)
    file.close()


def test_a_store_says_that_no_segment_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "TIMEOUT", 0.01)
    store = open_store(tmp_path, mapped_file_size_commit_log=4096)
    put(store, body_for(store, 4088))
    with store._log._allocation._lock, pytest.raises(PutError) as refused:
        put(store, body_for(store, 4088))
    assert refused.value.status is PutStatus.CREATE_MAPEDFILE_FAILED
    put(store, body_for(store, 4088))
    assert len(audit(store)) == 2
    store.stop()


@pytest.mark.parametrize("allowed", [True, False])
def test_warm_segments_are_locked_while_they_are_in_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowed: bool,
) -> None:
    locked: dict[int, int] = {}
    populated: dict[int, int] = {}

    def lock(self: MappedFile, start: int, end: int) -> None:
        if not allowed:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        assert locked.get(self.base, 0) == start
        assert end <= self.reserved
        locked[self.base] = end

    monkeypatch.setattr(MappedFile, "lock", lock)
    monkeypatch.setattr(MappedFile, "unlock", lambda self: locked.pop(self.base, None))
    monkeypatch.setattr(
        MappedFile, "populate", lambda self, start, end: populated.update({self.base: end})
    )
    monkeypatch.setattr(allocation, "POPULATE_STEP", 4096)
    monkeypatch.setattr(allocation, "RESERVE_STEP", 8192)
    monkeypatch.setattr(allocation, "AHEAD", 8192)
    service = AllocationService(tmp_path, SIZE, warm=True, clock=lambda: 0.0)
    first = service.take_next(0)
    service.follow(first, 0)
    service._work_ahead()
    whole = {0: SIZE, SIZE: SIZE}
    assert (locked, populated) == ((whole, {}) if allowed else ({}, whole))
    assert first.reserved == SIZE
    second = service.take_next(SIZE)
    service.follow(second, 0)
    service._work_ahead()
    if allowed:
        assert locked == {SIZE: SIZE, 2 * SIZE: SIZE}, "the full one is not"
    assert caplog.text.count("cannot lock") == (0 if allowed else 1)
    service.stop()
    first.close()
    second.close()


def test_a_warm_store_works(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_commit_log=4096, warm_maped_file_enable=True)
    for _ in range(50):
        put(store, body_for(store, 4088))
        store.seal()
    assert len(audit(store)) == 50
    store.stop()


def test_files_are_made_where_they_belong(tmp_path: Path) -> None:
    service = AllocationService(
        tmp_path, SIZE, directory_for=lambda base: tmp_path / str(base // SIZE)
    )
    first = service.take_next(0)
    service.follow(first, 0)
    service._work_ahead()
    second = service.take_next(SIZE)
    assert [file.path.parent.name for file in (first, second)] == ["0", "1"]
    service.stop()
    first.close()
    second.close()


def test_a_slow_creation_is_logged(
    tmp_path: Path,
    service: AllocationService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service.take_next(0).close()
    assert caplog.text == ""
    monkeypatch.setattr(allocation, "SLOW_CREATION_MS", -1)
    service.take_next(SIZE).close()
    assert f"creation of segment {tmp_path}/{SIZE:020d} took" in caplog.text
