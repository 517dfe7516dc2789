"""Buffers before the log's files: what is where, who gets them, what a kill costs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.record import BLANK_SIZE
from pyromq.store import chunk
from pyromq.store.config import BrokerRole, FlushDiskType
from pyromq.store.log import transient_store_pool
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.transient_store_pool import NoBufferError, PooledFile, TransientStorePool
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import wait_until
from tests.support.stores import TOPIC, audit, bodies, body_for, killed_copy, open_store, put

SIZE = 16 * 1024
#: Nothing is committed, or flushed, but by the test.
BY_HAND: dict[str, Any] = {
    "transient_store_pool_enable": True,
    "mapped_file_size_commit_log": SIZE,
    "commit_interval_commit_log": 10_000_000,
    "flush_interval_commit_log": 10_000_000,
}


@pytest.fixture
def pool() -> Iterator[TransientStorePool]:
    pool = TransientStorePool(2, SIZE)
    pool.open()
    yield pool
    pool.close()


def make(pool: TransientStorePool, directory: Path, number: int = 0) -> PooledFile:
    file = pool.create(directory, number * SIZE, SIZE)
    assert isinstance(file, PooledFile)
    file.reserve(SIZE)
    return file


# One file


def test_what_is_written_is_read_at_once_and_in_the_file_when_committed(
    pool: TransientStorePool, tmp_path: Path
) -> None:
    file = make(pool, tmp_path)
    file.write(0, b"one")
    file.write(3, b"two")
    assert file.read(0, 6) == b"onetwo"
    assert file.read_many((0, 3), (3, 3)) == [b"one", b"two"]
    assert bytes(file.view(2, 4)) == b"et"
    buffer = bytearray(2)
    assert file.read_into(2, memoryview(buffer)) == 2
    assert buffer == b"et"
    assert not any(file.path.read_bytes())
    file.commit(3)
    assert file.path.read_bytes()[:7] == b"one\0\0\0\0"
    file.commit(SIZE)
    assert file.path.read_bytes()[:7] == b"onetwo\0"
    file.release_buffer()
    assert not file.is_buffered
    assert file.read(0, 6) == b"onetwo"
    assert bytes(file.view(2, 4)) == b"et"
    assert file.read_into(3, memoryview(buffer)) == 2
    assert buffer == b"tw"
    file.delete()
    assert not file.path.exists()


def test_stale_bytes_of_a_buffer_never_reach_a_file(
    pool: TransientStorePool, tmp_path: Path
) -> None:
    for number in range(4):
        file = make(pool, tmp_path, number)
        length = SIZE - number * 1000
        file.write(0, bytes([number + 1]) * length)
        file.commit(SIZE)
        file.release_buffer()
        assert pool.available == 2
        expected = (bytes([number + 1]) * length).ljust(SIZE, b"\0")
        assert file.path.read_bytes() == file.read(0, SIZE) == expected
        file.close()


def test_pages_of_a_buffer_are_never_given_to_the_kernel(
    pool: TransientStorePool, tmp_path: Path
) -> None:
    file = make(pool, tmp_path)
    file.populate(0, SIZE)
    file.write(0, b"x" * SIZE)
    file.release(SIZE)
    file.unlock()
    assert file.is_in_memory(0, SIZE)
    assert file.read(0, SIZE) == b"x" * SIZE
    file.commit(SIZE)
    file.release_buffer()
    file.release(SIZE)
    file.lock(0, SIZE)
    file.unlock()
    file.populate(0, SIZE)
    assert file.read(0, SIZE) == b"x" * SIZE
    file.close()


@pytest.mark.parametrize("locks", [False, True])
def test_memory_is_there_before_it_is_needed(
    pool: TransientStorePool, tmp_path: Path, locks: bool
) -> None:
    pool.locks_memory = locks
    file = make(pool, tmp_path)
    memory = file._map
    for end in (100, 5000, 9000, SIZE):
        file.populate(0, end)
    assert memory is not None
    assert is_resident(memory)
    file.close()
    again = make(pool, tmp_path, 1)
    assert again._map is memory, "the buffer that has its memory is the next to be used"
    again.close()


def is_resident(memory: mmap.mmap) -> bool:
    anchor = ctypes.c_char.from_buffer(memory)
    pages = ctypes.create_string_buffer(-(-len(memory) // mmap.PAGESIZE))
    address = ctypes.c_void_p(ctypes.addressof(anchor))
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(memory)), pages) == 0
    return all(page & 1 for page in pages.raw)


def test_memory_that_may_not_be_locked_is_used_all_the_same(
    pool: TransientStorePool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no")

    monkeypatch.setattr(transient_store_pool, "lock_memory", refused)
    files = [make(pool, tmp_path, number) for number in range(2)]
    for file in files:
        for end in range(4096, SIZE + 1, 4096):
            file.populate(end - 4096, end)
    assert caplog.text.count("ulimit -l") == 1
    for file in files:
        file.close()


def test_short_writes_are_gone_on_with(
    pool: TransientStorePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data[:7]), at))
    file = make(pool, tmp_path)
    file.write(0, b"0123456789" * 10)
    file.commit(100)
    assert file.path.read_bytes()[:101] == b"0123456789" * 10 + b"\0"
    file.close()


def test_a_file_that_is_removed_meanwhile_can_still_be_committed(
    pool: TransientStorePool, tmp_path: Path
) -> None:
    file = make(pool, tmp_path)
    file.write(0, b"one")
    file.unlink()
    file.commit(3)
    file.release_buffer()
    assert file.read(0, 3) == b"one"
    file.close()


# The pool


def test_without_a_free_buffer_no_file_is_made(pool: TransientStorePool, tmp_path: Path) -> None:
    files = [make(pool, tmp_path, number) for number in range(2)]
    with pytest.raises(NoBufferError, match="all 2 buffers"):
        pool.create(tmp_path, 2 * SIZE, SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.path.name for file in files]
    files[0].close()
    make(pool, tmp_path, 2).close()
    files[1].close()
    assert pool.available == 2


def test_there_are_at_least_two_buffers() -> None:
    """The only one would come free when the next segment is there, which would wait for it."""
    pool = TransientStorePool(1, SIZE)
    pool.open()
    assert pool.available == pool.count == 2
    pool.close()


def test_a_file_that_cannot_be_made_costs_no_buffer(
    pool: TransientStorePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(transient_store_pool, "make_file", refused)
        with pytest.raises(OSError, match="full"):
            pool.create(tmp_path, 0, SIZE)
    assert pool.available == 2


# A store


def open_pooled(root: Path, **changes: Any) -> MessageStore:
    return open_store(root, **BY_HAND | changes)


def fill(store: MessageStore, count: int, first: int = 0) -> list[bytes]:
    sent = [b"%05d" % number * 60 for number in range(first, first + count)]
    for number, body in enumerate(sent):
        put(store, body, tags=f"tag{number % 3}", keys=f"k{number}")
        if number % 3 == 0:
            store.seal()
    store.seal()
    return sent


def test_the_files_are_the_same_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "now_ms", lambda: 1_700_000_000_000)
    logs = []
    for name, changes in (("plain", {"transient_store_pool_enable": False}), ("pooled", {})):
        store = open_pooled(tmp_path / name, **changes)
        for round_number in range(12):
            fill(store, 20, round_number * 20)
            store._log.commit()
        audit(store)
        store.stop()
        assert list(check_store(store.config.root, store.config)) == []
        assert not (store.config.root / "abort").exists()
        directory = store.config.commit_log_directory
        logs.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert len(logs[0]) > 5
    assert logs[0] == logs[1]


def test_consumers_see_messages_before_they_are_committed(tmp_path: Path) -> None:
    store = open_pooled(tmp_path)
    sent = fill(store, 100)
    assert store._log.watermarks.committed == 0
    assert bodies(store) == sent
    audit(store)
    segments = store._log.segments.files
    assert isinstance(segments[0], PooledFile)
    assert not any(segments[0].path.read_bytes())
    store._log.commit()
    assert store._log.watermarks.committed == store.max_physical_offset
    full = [file for file in segments[:-1] if isinstance(file, PooledFile)]
    assert full
    assert not any(file.is_buffered for file in full)
    assert bodies(store) == sent
    store.stop()


def test_a_start_goes_on_in_the_file_and_uses_buffers_from_the_next_one_on(tmp_path: Path) -> None:
    store = open_pooled(tmp_path)
    sent = fill(store, 5)
    store.stop()
    again = open_pooled(tmp_path)
    sent += fill(again, 100, 5)
    kinds = [type(file) for file in again._log.segments.files]
    assert kinds[0] is MappedFile
    assert PooledFile in kinds[1:]
    assert bodies(again) == sent
    again.stop()
    third = open_store(tmp_path, mapped_file_size_commit_log=SIZE)
    assert bodies(third) == sent
    audit(third)
    third.stop()


def test_only_what_is_committed_is_flushed(tmp_path: Path) -> None:
    store = open_pooled(tmp_path, flush_interval_commit_log=1, flush_commit_log_thorough_interval=1)
    fill(store, 10)
    marks = store._log.watermarks
    store._log.flush()
    assert (marks.committed, marks.flushed) == (0, 0)
    store._log.commit()
    wait_until(lambda: marks.flushed == marks.committed == marks.written)
    fill(store, 10)
    assert marks.flushed <= marks.committed < marks.written
    store.stop()


@pytest.mark.parametrize("committed", [0, 7, 40, 90])
def test_a_kill_costs_what_was_not_committed_and_nothing_else(
    tmp_path: Path, committed: int
) -> None:
    store = open_pooled(tmp_path / "running")
    sent = fill(store, committed)
    store._log.commit()
    fill(store, 100 - committed, committed)
    assert len(bodies(store)) == 100
    killed = killed_copy(store, tmp_path / "killed")
    store.stop()
    again = open_pooled(killed)
    assert bodies(again) == sent
    assert again.max_offset(TOPIC, 0) == committed
    more = fill(again, 20, 500)
    assert bodies(again) == sent + more
    audit(again)
    again.stop()
    assert list(check_store(killed, again.config)) == []


@pytest.mark.parametrize("fast_fail", [False, True])
def test_all_buffers_are_in_use(tmp_path: Path, fast_fail: bool) -> None:
    store = open_pooled(
        tmp_path, transient_store_pool_size=2, fast_fail_if_no_buffer_in_store_pool=fast_fail
    )
    body = body_for(store, SIZE - BLANK_SIZE)
    for _ in range(2):
        put(store, body)
        store.seal()
    assert store.free_buffers == 0
    if fast_fail:
        for _ in range(2):
            with pytest.raises(PutError) as refused:
                put(store, body)
            assert refused.value.status is PutStatus.NO_BUFFER
        assert len(bodies(store)) == 2
        store._log.commit()
    put(store, body)
    store.seal()
    assert store._log.watermarks.committed == 2 * SIZE - BLANK_SIZE
    assert all(isinstance(file, PooledFile) for file in store._log.segments.files)
    assert bodies(store) == [body] * 3
    audit(store)
    store.stop()
    assert list(check_store(tmp_path, store.config)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"broker_role": BrokerRole.SLAVE},
        {"transient_store_pool_enable": False},
    ],
)
def test_who_has_no_pool(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = open_pooled(tmp_path, **changes)
    store.set_replica(False)  # a promoted replica still has none
    fill(store, 5)
    assert store.free_buffers is None
    assert type(store._log.segments.files[0]) is MappedFile
    assert store._log.committed[0] == store.max_physical_offset
    store.stop()


def test_readers_on_other_threads_never_see_another_segment_s_bytes(tmp_path: Path) -> None:
    """A buffer is taken away, and used again, while somebody reads from it."""
    store = open_pooled(tmp_path, transient_store_pool_size=2, commit_interval_commit_log=1)
    stop = threading.Event()
    wrong: list[object] = []
    places: list[tuple[int, bytes]] = []

    def read() -> None:
        while not stop.is_set():
            for physical, body in places[-8:]:
                record = store.read_record(physical)
                if record is None or body not in record:
                    wrong.append((physical, record))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(600):
        body = b"%06d" % number * 600
        physical = put(store, body)
        store.seal()
        places.append((physical, body))
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    audit(store)
    store.stop()
    assert list(check_store(tmp_path, store.config)) == []
