"""The flush thread: intervals, errors that pass, and what the checkpoint may say."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.message.units import CHECKPOINT, CONSUME_QUEUE_ENTRY_SIZE
from pyromq.store import flush
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.config import FlushDiskType
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import PutError, PutStatus
from tests.support.patience import until, wait_until
from tests.support.stores import TOPIC, bodies, open_store, put

FAST = {
    "flush_interval_commit_log": 1,
    "flush_interval_consume_queue": 1,
    "flush_commit_log_thorough_interval": 1,
    "flush_consume_queue_least_pages": 0,
}
#: No flush of its own within any test.
NEVER = {
    "flush_interval_commit_log": 10_000_000,
    "flush_interval_consume_queue": 10_000_000,
    "flush_commit_log_thorough_interval": 10_000_000,
}
Opener = Callable[..., MessageStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    stores: list[MessageStore] = []

    def open_one(**changes: Any) -> MessageStore:
        stores.append(open_store(tmp_path / "store", **changes))
        return stores[-1]

    yield open_one
    for store in stores:
        store.stop()


def checkpoint_of(store: MessageStore) -> tuple[int, int, int]:
    """The times in the file; zeros before its first save."""
    content = (store.config.root / "checkpoint").read_bytes()
    times: tuple[int, int, int] = CHECKPOINT.unpack_from(content.ljust(CHECKPOINT.size, b"\0"))
    return times


def flushed(store: MessageStore) -> bool:
    marks = store._log.watermarks
    return marks.flushed == marks.written > 0


def test_what_is_written_is_flushed_by_and_by(opened: Opener) -> None:
    store = opened(**FAST)
    put(store)
    store.seal()
    wait_until(lambda: flushed(store))
    stored = store.earliest_time(TOPIC, 0)
    wait_until(lambda: checkpoint_of(store)[:2] == (stored, stored))
    assert not store.queue(TOPIC, 0).dirty


def test_few_pages_wait_for_the_thorough_flush(opened: Opener) -> None:
    store = opened(**(NEVER | {"flush_commit_log_least_pages": 4}))
    put(store, b"x" * 3 * 4096)
    store.seal()
    assert not store._flush._is_log_due()
    put(store, b"x" * 4096)
    store.seal()
    assert store._flush._is_log_due()


@pytest.mark.parametrize("timed", [True, False])
def test_dirty_pages_wait_for_the_interval_only_if_flushes_are_timed(
    opened: Opener, timed: bool
) -> None:
    store = opened(**NEVER, flush_commit_log_timed=timed, flush_commit_log_least_pages=2)
    put(store, b"x" * 4096)
    store.seal()
    time.sleep(0.1)
    assert store._log.watermarks.flushed == 0
    put(store, b"x" * 4096)
    store.seal()
    if timed:
        time.sleep(0.1)
        assert store._log.watermarks.flushed == 0
    else:
        wait_until(lambda: flushed(store))


async def test_no_response_waits_for_the_fsync_of_a_queue(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow_sync(queue: ConsumeQueue) -> None:
        began.set()
        may_end.wait()

    monkeypatch.setattr(ConsumeQueue, "sync", slow_sync)
    store = opened(
        **(NEVER | {"flush_interval_consume_queue": 1}),
        flush_consume_queue_least_pages=0,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )
    try:
        put(store)
        store.seal()
        wait_until(began.is_set)
        put(store)
        waiter = store.end_chunk()
        assert waiter is not None
        assert await waiter is AckOutcome.STORED
    finally:
        may_end.set()


#: Entries that fill a page of a consume queue.
PAGE_OF_ENTRIES = -(-4096 // CONSUME_QUEUE_ENTRY_SIZE)


def fill_page(store: MessageStore, queue_id: int = 0) -> None:
    for _ in range(PAGE_OF_ENTRIES):
        put(store, queue_id=queue_id)
    store.seal()


def synced_queues(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    synced: list[int] = []
    sync = ConsumeQueue.sync

    def noted(self: ConsumeQueue) -> None:
        synced.append(self.queue_id)
        sync(self)

    monkeypatch.setattr(ConsumeQueue, "sync", noted)
    return synced


def test_queues_with_few_dirty_pages_wait_for_the_thorough_flush(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(**NEVER, flush_consume_queue_least_pages=2)
    synced = synced_queues(monkeypatch)
    for queue_id in (0, 1):
        fill_page(store, queue_id)
    fill_page(store, 1)
    store._flush._flush_queues(thorough=False)
    assert synced == [1]
    assert store._checkpoint.queue_timestamp == 0  # queue 0 is not on disk
    store._flush._flush_queues(thorough=False)
    assert synced == [1]  # neither was written to since
    fill_page(store, 0)
    store._flush._flush_queues(thorough=False)
    assert synced == [1, 0]
    assert store._checkpoint.queue_timestamp > 0


def test_a_thorough_flush_syncs_the_queues_that_were_put_off(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(**NEVER)
    synced = synced_queues(monkeypatch)
    put(store)
    store.seal()
    store._flush._flush_queues(thorough=False)
    assert synced == []
    store._flush._flush_queues()
    assert synced == [0]
    store._flush._flush_queues()
    assert synced == [0]
    assert store._checkpoint.queue_timestamp > 0


def test_the_thorough_interval_of_the_queues_is_their_own(opened: Opener) -> None:
    store = opened(**(FAST | {"flush_consume_queue_least_pages": 1000}))
    put(store)
    store.seal()
    wait_until(lambda: flushed(store))
    wait_until(lambda: store.queue(TOPIC, 0) in store._flush._deferred)
    assert store._checkpoint.queue_timestamp == 0
    object.__setattr__(store.config, "flush_consume_queue_thorough_interval", 1)  # live
    wait_until(lambda: store._checkpoint.queue_timestamp > 0)


def test_pages_are_counted_from_the_last_sync(opened: Opener) -> None:
    store = opened(**NEVER)
    queue = store.queue(TOPIC, 0)
    fill_page(store)
    assert queue.dirty_pages == 1
    queue.sync()
    assert queue.dirty_pages == 0
    fill_page(store)
    assert queue.dirty_pages == 1
    queue.truncate(0)
    assert (queue.dirty_pages, queue.synced_to) == (0, 0)


def test_a_slow_flush_is_reported(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flush, "SLOW_FLUSH_MS", -1)
    store = opened(**NEVER)
    put(store)
    store.seal()
    store._flush._flush_log()
    store._flush._flush_queues()
    assert "flush of the commit log took" in caplog.text
    assert "flush of the consume queues took" in caplog.text


def test_an_idle_store_says_nothing_new(opened: Opener) -> None:
    store = opened(**NEVER)
    store._flush._flush_log()
    store._flush._flush_queues()
    store._flush._save_checkpoint()
    assert checkpoint_of(store) == (0, 0, 0)


def test_a_log_that_cannot_be_flushed_takes_nothing_more(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second sync would prove nothing: the kernel may have dropped what it could not write."""
    failing = [True]
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    store = opened(**FAST)
    put(store, b"written")
    store.seal()
    wait_until(lambda: "flush failed" in caplog.text)
    failing[0] = False
    put(store, b"in the same moment")
    store.seal()
    with pytest.raises(PutError, match=r"flush failed.*restart") as refused:
        put(store, b"later")
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store._log.watermarks.flushed == 0
    assert bodies(store) == [b"written", b"in the same moment"]


class NoDescriptors:
    """Opening a file below a directory fails, as without any descriptor, while `failing`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.failing = True
        self.tries = 0
        real = os.open

        def open_(path: Any, flags: int, mode: int = 0o777, **others: Any) -> int:
            if self.failing and str(path).startswith(str(directory)):
                self.tries += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return real(path, flags, mode, **others)

        monkeypatch.setattr(os, "open", open_)


def test_a_sync_that_could_not_be_tried_is_tried_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = opened(**FAST)
    put(store, b"before")
    store.seal()
    wait_until(lambda: flushed(store))
    none = NoDescriptors(monkeypatch, tmp_path)
    put(store, b"meanwhile")
    store.seal()
    wait_until(lambda: none.tries > 100)
    assert not flushed(store)
    put(store, b"is taken, too")
    store.seal()
    none.failing = False
    wait_until(lambda: flushed(store))
    wait_until(lambda: not store.queue(TOPIC, 0).dirty)
    assert bodies(store) == [b"before", b"meanwhile", b"is taken, too"]


async def test_sync_flush_goes_on_when_descriptors_are_free_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = opened(**(NEVER | {"flush_disk_type": FlushDiskType.SYNC_FLUSH}))
    put(store)
    store.seal()
    none = NoDescriptors(monkeypatch, tmp_path)
    waiter = store.end_chunk()
    assert waiter is not None
    await until(lambda: none.tries > 50)
    assert not waiter.done()
    none.failing = False
    assert await waiter is AckOutcome.STORED


def test_a_sync_that_was_tried_and_failed_is_final_whatever_the_error(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a file that could not be opened was not tried."""

    def fdatasync(_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fdatasync)
        store = opened(**FAST)
        put(store)
        store.seal()
        wait_until(lambda: "flush failed" in caplog.text)
    put(store, b"in the same moment")
    store.seal()
    with pytest.raises(PutError, match="restart"):
        put(store)


async def test_sync_flush_waits_until_the_bytes_are_on_the_disk(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    syncs: list[int] = []
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        may_sync.wait(10)
        syncs.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    store = opened(**(NEVER | {"flush_disk_type": FlushDiskType.SYNC_FLUSH}))
    waiters = []
    for number in range(20):
        put(store, b"%d" % number)
        waiters.append(store.end_chunk())
        assert store.end_chunk() is None, "nothing new to wait for"
        await asyncio.sleep(0)
    assert not any(waiter is None or waiter.done() for waiter in waiters)
    may_sync.set()
    outcomes = await asyncio.gather(*[waiter for waiter in waiters if waiter is not None])
    assert set(outcomes) == {AckOutcome.STORED}
    assert flushed(store)
    assert len(syncs) < 20, "chunks that came while one sync ran share the next"


async def test_sync_flush_that_takes_too_long_is_told(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        may_sync.wait(10)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    store = opened(
        **(NEVER | {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 20})
    )
    put(store)
    waiter = store.end_chunk()
    assert waiter is not None
    assert await waiter is AckOutcome.FLUSH_TIMED_OUT
    may_sync.set()


async def test_sync_flush_that_fails_is_told_at_once(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fdatasync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = opened(**(NEVER | {"flush_disk_type": FlushDiskType.SYNC_FLUSH}))
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    put(store)
    first = store.end_chunk()
    assert first is not None
    assert await first is AckOutcome.FLUSH_FAILED
    put(store, b"in the same moment")
    second = store.end_chunk()
    assert second is not None
    assert await second is AckOutcome.FLUSH_FAILED
    with pytest.raises(PutError, match="flush failed"):
        put(store)
    monkeypatch.undo()


async def test_async_flush_waits_for_nothing(opened: Opener) -> None:
    store = opened(**NEVER)
    put(store)
    assert store.end_chunk() is None


def test_a_queue_whose_sync_failed_is_synced_again_before_the_checkpoint(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(**NEVER)
    for queue_id in range(3):
        put(store, queue_id=queue_id)
    store.seal()
    synced: list[int] = []
    fails = [1]
    sync = ConsumeQueue.sync

    def failing(self: ConsumeQueue) -> None:
        if self.queue_id in fails:
            raise OSError(errno.EIO, "Input/output error")
        synced.append(self.queue_id)
        sync(self)

    monkeypatch.setattr(ConsumeQueue, "sync", failing)
    with pytest.raises(OSError, match="Input"):
        store._flush._flush_queues()
    assert store._checkpoint.queue_timestamp == 0
    fails.clear()
    store._flush._flush_queues()
    assert sorted(synced) == [0, 1, 2]
    assert store._checkpoint.queue_timestamp > 0


def test_a_queue_that_was_deleted_meanwhile_is_passed_over(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(**NEVER)
    put(store, topic="Gone")
    put(store, topic="Kept")
    store.seal()
    gone = store.queue("Gone", 0)
    file = gone.segments.files[0]
    store.remove_topic("Gone")
    gone.segments.files.append(file)  # as the thread may have seen the list before
    store._flush._flush_queues()
    gone.segments.files.clear()
    assert store._checkpoint.queue_timestamp > 0
    assert not store.queue("Kept", 0).dirty


def test_a_queue_written_during_its_sync_is_synced_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(**NEVER)
    put(store)
    store.seal()
    sync = MappedFile.sync

    def write_meanwhile(self: MappedFile) -> None:
        monkeypatch.setattr(MappedFile, "sync", sync)
        put(store)
        store.seal()
        sync(self)

    monkeypatch.setattr(MappedFile, "sync", write_meanwhile)
    store._flush._flush_queues()
    assert store.queue(TOPIC, 0).dirty
    assert list(store._flush._dirty) == [store.queue(TOPIC, 0)]


def test_a_stop_flushes_everything(opened: Opener) -> None:
    store = opened(**NEVER)
    put(store)
    stored_before = store.chunk_time()
    store.stop()
    assert store._log.watermarks.flushed == store._log.watermarks.written > 0
    assert checkpoint_of(store)[:2] == (stored_before, stored_before)
