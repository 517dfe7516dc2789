"""Segments made ahead: by the thread, by the writer, and by both at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.store import allocation
from pyromq.store.allocation import AllocationService
from pyromq.store.mapped_file import MappedFile
from tests.support.stores import TOPIC, audit, body_for, open_store, put, wait_until

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
    wait_until(lambda: "cannot make room ahead" in caplog.text)
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
