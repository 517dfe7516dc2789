"""What is deleted, when, and what readers see of it. The clock and the disk are the tests'."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.store import retention as module
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.results import GetStatus, PutError, PutStatus, StoreError
from pyromq.store.retention import Retention
from tests.support.patience import wait_until
from tests.support.stores import (
    FOREVER,
    QUEUE_ENTRIES,
    TOPIC,
    audit,
    bodies,
    body_for,
    killed_copy,
    open_store,
    properties_of,
    put,
    put_batch,
    read_all,
)

SEGMENT = 4096
HOUR = 3600.0
#: Noon: none of the hours of deleteWhen.
NOON = datetime(2026, 3, 1, 12).timestamp()


class World:
    """A store, the time and how full its disks are."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.now = NOON
        self.percent: Callable[[Path], int] = lambda path: 10
        self.store = open_store(
            root,
            **{
                "mapped_file_size_commit_log": SEGMENT,
                "delete_commit_log_files_interval": 0,
                "delete_consume_queue_files_interval": 0,
                **settings,
            },
        )
        own = self.store.retention
        self.retention = self.store.retention = Retention(
            own._config,
            own._log,
            own._index,
            own._queues,
            own._refuse_puts,
            now=lambda: self.now,
            percent_of=lambda path: self.percent(path),
        )

    def fill(self, segments: int, *, age_hours: float = 0.0, keys: str = "") -> None:
        """So many segments of one message each, that were written so long ago."""
        size = SEGMENT - 8 - len(properties_of(keys=keys))
        for _ in range(segments):
            put(self.store, body_for(self.store, size), keys=keys)
            self.store.seal()
        self.store._log.flush()
        modified = self.now - age_hours * HOUR
        for file in self.store._log.segments.files:
            os.utime(file.path, (modified, modified))

    @property
    def segments(self) -> list[int]:
        """The segments that the store has, which must be those on the disk."""
        numbers = [file.base // SEGMENT for file in self.store._log.segments.files]
        ahead = numbers[-1] if numbers else -1
        on_disk = self.on_disk
        assert [number for number in on_disk if number <= ahead] == numbers
        return numbers

    @property
    def on_disk(self) -> list[int]:
        directory = self.store.config.commit_log_directory
        return sorted(int(path.name) // SEGMENT for path in directory.iterdir())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    world.store.stop()


async def test_expired_files_that_are_not_mapped_go_too(tmp_path: Path) -> None:
    """More queues and segments than may be mapped."""
    world = World(tmp_path, max_mapped_files=2)
    for _ in range(3 * QUEUE_ENTRIES):
        for queue_id in range(4):
            put(world.store, b"x" * 300, queue_id=queue_id)
        world.store.seal()
    world.store._log.flush()
    world.fill(2, age_hours=73)
    world.retention.execute_delete_files_manually()
    before = len(world.segments)
    while len(world.segments) > 2:
        await world.retention.clean()
        world.retention.execute_delete_files_manually()
    assert before > 6
    assert len(world.store._open_files) <= 2
    for queue_id in range(1, 4):
        queue = world.store.queue(TOPIC, queue_id)
        assert (queue.min_offset, len(queue.segments.files)) == (queue.next_offset, 1)
        assert len(list(queue.segments.directory.iterdir())) == 1
    assert bodies(world.store)[-1]
    world.store.stop()


async def test_nothing_goes_before_its_time(world: World) -> None:
    world.fill(5, age_hours=71.9)
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [0, 1, 2, 3, 4]
    assert len(audit(world.store)) == 5


async def test_nothing_goes_at_the_wrong_hour(world: World) -> None:
    world.fill(5, age_hours=1000)
    await world.retention.clean()
    assert world.segments == [0, 1, 2, 3, 4]


async def test_the_expired_go_at_the_hour_and_the_last_one_stays(world: World) -> None:
    world.fill(5, age_hours=73)
    world.now = datetime(2026, 3, 2, 4, 30).timestamp()
    await world.retention.clean()
    assert world.segments == [4]
    assert world.store.min_physical_offset == 4 * SEGMENT
    assert world.store.min_offset(TOPIC, 0) == 4
    assert [record.queue_offset for record in audit(world.store)] == [4]
    world.fill(1)
    assert [record.queue_offset for record in read_all(world.store)] == [4, 5]


async def test_several_hours(tmp_path: Path) -> None:
    world = World(tmp_path, delete_when="04;12;16")
    world.fill(3, age_hours=73)
    await world.retention.clean()
    assert world.segments == [2]
    world.store.stop()


async def test_a_young_segment_keeps_those_behind_it(world: World) -> None:
    world.fill(5, age_hours=73)
    young = world.store._log.segments.files[2].path
    os.utime(young, (world.now, world.now))
    world.percent = lambda path: 76
    await world.retention.clean()
    assert world.segments == [2, 3, 4]


@pytest.mark.parametrize(("percent", "left"), [(75, 4), (76, 1)])
async def test_a_fuller_disk_makes_it_any_hour(world: World, percent: int, left: int) -> None:
    world.fill(4, age_hours=73)
    world.percent = lambda path: percent
    await world.retention.clean()
    assert len(world.segments) == left


@pytest.mark.parametrize(
    ("percent", "forcibly", "left"), [(85, True, 4), (86, True, 1), (86, False, 4)]
)
async def test_a_nearly_full_disk_does_not_wait_for_the_time(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    percent: int,
    forcibly: bool,
    left: int,
) -> None:
    world = World(tmp_path, clean_file_forcibly_enable=forcibly)
    world.fill(4)
    world.percent = lambda path: percent
    await world.retention.clean()
    assert len(world.segments) == left
    told = f"{percent}% full, and no segment of the log can be deleted"
    assert (told in caplog.text) == (left == 4)
    world.store.stop()


async def test_the_queues_disk_counts_too(world: World) -> None:
    world.fill(4)
    queues = world.store.config.consume_queue_directory
    world.percent = lambda path: 95 if path == queues else 10
    await world.retention.clean()
    assert world.segments == [3]
    with pytest.raises(PutError, match=f"disk of {queues} is 95% full"):
        put(world.store, b"x")


async def test_by_hand_for_twenty_turns(world: World) -> None:
    world.fill(3, age_hours=73)
    world.retention.execute_delete_files_manually()
    await world.retention.clean()
    assert world.segments == [2]
    for _ in range(18):
        await world.retention.clean()
    world.fill(2, age_hours=73)
    await world.retention.clean()
    assert world.segments == [4]
    world.fill(2, age_hours=73)
    await world.retention.clean()
    assert world.segments == [4, 5, 6]


async def test_ten_at_a_time(world: World) -> None:
    world.fill(25, age_hours=73)
    world.percent = lambda path: 80
    for left in (15, 5, 1, 1):
        await world.retention.clean()
        assert len(world.segments) == left


async def test_what_is_not_flushed_stays(tmp_path: Path) -> None:
    world = World(tmp_path, flush_interval_commit_log=3_600_000)
    world.fill(4, age_hours=73)
    world.store._log.watermarks.flushed = 2 * SEGMENT + 1
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [2, 3]
    world.store.stop()


async def test_puts_are_refused_above_the_warning_level_and_taken_again_below(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(3)
    world.percent = lambda path: 90
    await world.retention.check_disk()
    put(world.store, b"still taken")
    world.percent = lambda path: 91
    await world.retention.check_disk()
    for _ in range(2):
        with pytest.raises(PutError) as refused:
            put(world.store, b"refused")
        assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert str(world.store.config.commit_log_directory) in refused.value.reason
        assert "91% full" in refused.value.reason
    with pytest.raises(PutError) as refused:
        world.store.put_batch(world.store.queue(TOPIC, 0), b"", b"", 0, 0, bytes(8), 0)
    assert len(read_all(world.store)) == 4, "reads go on"
    await world.retention.check_disk()
    assert caplog.text.count("refusing messages until there is room") == 1
    world.percent = lambda path: 90
    await world.retention.check_disk()
    put(world.store, b"taken again")
    assert bodies(world.store)[3:] == [b"still taken", b"taken again"]
    audit(world.store)


async def test_queues_lose_whole_segments_and_keep_their_last_one(world: World) -> None:
    store = world.store
    other = QUEUE_ENTRIES * 3 + 2
    for number in range(other):
        put(store, b"%d" % number, topic="Old", keys=f"k{number}")
    store.seal()
    put(store, b"kept", topic="Quiet")
    world.fill(QUEUE_ENTRIES * 2 + 3, age_hours=73)
    world.percent = lambda path: 80
    for _ in range(3):
        await world.retention.clean()
    first = world.segments[0]
    old, current = store.queue("Old", 0), store.queue(TOPIC, 0)
    assert (old.min_offset, old.next_offset) == (other, other)
    assert len(old.segments.files) == 1
    # A segment that still has an entry stays whole.
    entries = enumerate(current.entries(), current.segments.first_offset // 20)
    alive = [offset for offset, (place, _, _) in entries if place >= first * SEGMENT]
    assert current.min_offset == alive[0]
    assert current.segments.first_offset // 20 <= current.min_offset
    assert current.min_offset - current.segments.first_offset // 20 < QUEUE_ENTRIES
    on_disk = sorted(
        path.name for path in (store.config.consume_queue_directory / TOPIC / "0").iterdir()
    )
    assert on_disk == [file.path.name for file in current.segments.files]
    assert store.queue("Quiet", 0).next_offset == 1
    result = store.get("Old", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, other)
    audit(store)
    # Offsets go on where they were, also after a restart.
    store.stop()
    again = open_store(store.config.root, mapped_file_size_commit_log=SEGMENT)
    assert again.max_offset("Old", 0) == other
    put(again, b"new", topic="Old")
    assert [record.queue_offset for record in read_all(again, "Old")] == [other]
    audit(again)
    again.stop()
    world.store = open_store(store.config.root, mapped_file_size_commit_log=SEGMENT)


async def test_index_files_go_with_their_messages(world: World) -> None:
    store = world.store
    for number in range(200):
        put(store, b"x" * 500, keys=f"key{number}")
    world.fill(1, age_hours=73)
    wait_until(lambda: store.dispatch_behind == 0)
    before = len(list(store.config.index_directory.iterdir()))
    assert store.query(TOPIC, "key0", 8, 0, FOREVER) == [0]
    world.percent = lambda path: 80
    for _ in range(5):
        await world.retention.clean()
    after = len(list(store.config.index_directory.iterdir()))
    assert 1 <= after < before
    assert store.query(TOPIC, "key0", 8, 0, FOREVER) == []


async def test_an_index_that_is_behind_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    store = world.store
    full = threading.Event()
    full.set()
    real = store._index.put_span

    def failing(span: Any, prefix: int = 0) -> int:
        if full.is_set():
            raise OSError(28, "No space left on device")
        return real(span, prefix)

    monkeypatch.setattr(store._index, "put_span", failing)
    world.fill(6, age_hours=73, keys="key")
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [5]
    full.clear()
    wait_until(lambda: store.dispatch_behind == 0)
    assert store.query(TOPIC, "key", 8, 0, FOREVER) == [5 * SEGMENT]
    store.stop()


async def test_a_pull_in_the_middle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has lost segments, the queues not yet: the pull says so and goes on behind."""
    world.fill(6, age_hours=73)
    world.percent = lambda path: 80
    seen: list[GetStatus] = []
    remove_all = module._remove_all
    loop = asyncio.get_running_loop()

    def pull() -> None:
        result = world.store.get(TOPIC, 0, 0, 1)
        seen.append(result.status)

    def remove(files: Any) -> None:
        asyncio.run_coroutine_threadsafe(_call(pull), loop).result(10)
        remove_all(files)

    monkeypatch.setattr(module, "_remove_all", remove)
    await world.retention.clean()
    assert GetStatus.MESSAGE_WAS_REMOVING in seen
    assert set(seen) <= {
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_TOO_SMALL,
    }
    result = world.store.get(TOPIC, 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 5)


async def _call(function: Callable[[], None]) -> None:
    function()


async def test_reads_on_other_threads_never_fail(world: World) -> None:
    world.fill(40, age_hours=73)
    world.percent = lambda path: 80
    stop = threading.Event()
    faults: list[BaseException] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        try:
            while not stop.is_set():
                for number in range(40):
                    record = world.store.read_record(number * SEGMENT)
                    assert record is None or len(record) == SEGMENT - 8
                    reads += 1
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        await world.retention.clean()
    stop.set()
    for thread in threads:
        thread.join()
    assert (faults, world.segments) == ([], [39])
    assert reads


@pytest.mark.parametrize("looks", [1, 2])
def test_a_segment_that_leaves_between_two_looks_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Look-ups of other threads ask first whether a record is there, then read it."""
    world = World(tmp_path)
    world.fill(3)
    holds = CommitLog.holds
    asked = 0

    def leave(self: CommitLog, offset: int, size: int) -> bool:
        nonlocal asked
        asked += 1
        answer = holds(self, offset, size)
        if asked == looks:
            self.segments.take_first()
        return answer

    monkeypatch.setattr(CommitLog, "holds", leave)
    assert world.store.read_record(0) is None
    assert asked == looks
    monkeypatch.undo()
    assert world.store.read_record(SEGMENT) is not None
    world.store.stop()


async def test_a_file_that_cannot_be_removed_is_named_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(6, age_hours=73)
    stuck = {world.store._log.segments.files[1].path}
    attempts: list[str] = []
    unlink = MappedFile.unlink

    def failing(self: MappedFile) -> None:
        attempts.append(self.path.name)
        if self.path in stuck:
            raise OSError(16, "Device or resource busy", str(self.path))
        unlink(self)

    monkeypatch.setattr(MappedFile, "unlink", failing)
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.on_disk[0] == 1, "what is behind it stays: no gap"
    assert len(world.store._log.segments.files) == 4
    (name,) = stuck
    assert re.search(rf"cannot delete \S*{name}, retrying", caplog.text)
    tried = len(attempts)
    await world.retention.clean()
    assert len(attempts) == tried, "not yet"
    world.now += 121
    stuck.clear()
    await world.retention.clean()
    assert world.segments == [5]
    assert len(audit(world.store)) == 1


async def test_files_of_queues_that_cannot_be_removed_are_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store
    for number in range(QUEUE_ENTRIES * 3):
        put(store, b"%d" % number, topic="Old")
    world.fill(5, age_hours=73)
    directory = store.config.consume_queue_directory / "Old" / "0"
    unlink = MappedFile.unlink
    stuck = True

    def failing(self: MappedFile) -> None:
        if stuck and self.path.parent == directory:
            raise OSError(16, "Device or resource busy")
        unlink(self)

    monkeypatch.setattr(MappedFile, "unlink", failing)
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [5]
    assert len(list(directory.iterdir())) == 3
    stuck = False
    world.now += 121
    await world.retention.clean()
    assert len(list(directory.iterdir())) == 1


async def test_files_of_a_queue_go_in_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one that cannot be removed nothing is: a start would refuse the gap."""
    store = world.store
    world.fill(QUEUE_ENTRIES + 1, age_hours=73)
    directory = store.config.consume_queue_directory / TOPIC / "0"
    unlink = MappedFile.unlink
    stuck = {directory / f"{0:020d}"}

    def failing(self: MappedFile) -> None:
        if self.path in stuck:
            raise OSError(16, "Device or resource busy")
        unlink(self)

    monkeypatch.setattr(MappedFile, "unlink", failing)
    world.percent = lambda path: 80
    await world.retention.clean()
    world.fill(QUEUE_ENTRIES, age_hours=73)
    await world.retention.clean()
    assert len(store.queue(TOPIC, 0).segments.files) == 1
    assert len(list(directory.iterdir())) == 3
    stuck.clear()
    world.now += 121
    await world.retention.clean()
    assert len(list(directory.iterdir())) == 1


async def test_a_stop_in_the_middle_leaves_a_store_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, delete_commit_log_files_interval=3_600_000)
    world.fill(6, age_hours=73)
    world.percent = lambda path: 80
    cleaning = asyncio.create_task(world.retention.clean())
    await asyncio.to_thread(wait_until, lambda: world.on_disk[0] > 0)
    cleaning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cleaning
    world.store.stop()
    store = open_store(tmp_path, mapped_file_size_commit_log=SEGMENT)
    assert [record.queue_offset for record in read_all(store)] == [1, 2, 3, 4, 5]
    store.stop()


async def test_offsets_go_on_after_a_kill_too(world: World, tmp_path: Path) -> None:
    """Queues of which nothing is left in the log keep their place."""
    store = world.store
    for number in range(QUEUE_ENTRIES + 3):
        put(store, b"%d" % number, topic="Old")
    put_batch(store, [b"a", b"b"], topic="Short")
    world.fill(5, age_hours=73)
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [5]
    ends = {queue.topic: queue.next_offset for queue in store.queues()}
    assert ends == {"Old": QUEUE_ENTRIES + 3, "Short": 2, TOPIC: 5}
    for has_checkpoint in (True, False):
        name = f"{tmp_path.name}-{has_checkpoint}"
        copy = killed_copy(store, tmp_path.with_name(name))
        if not has_checkpoint:
            (copy / "checkpoint").unlink(missing_ok=True)
        again = open_store(copy, mapped_file_size_commit_log=SEGMENT)
        assert {queue.topic: queue.next_offset for queue in again.queues()} == ends
        put(again, b"new", topic="Old")
        put(again, b"new", topic="Short")
        assert len(audit(again)) == 3
        again.stop()


async def test_a_segment_that_somebody_removed_is_in_nobody_s_way(world: World) -> None:
    world.fill(3, age_hours=73)
    world.store._log.segments.files[0].path.unlink()
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.segments == [2]


async def test_queues_without_a_message_in_the_log(world: World) -> None:
    store = world.store
    for topic in ("Old", "Both", *TOPICS_WITH_PROGRESS):
        put(store, b"expired", topic=topic)
    store.seal()
    world.fill(3, age_hours=73)
    put(store, b"new", topic="Both")
    store.seal()
    store.queue("Empty", 0)
    await world.retention.clean_expired_queues()
    assert store.queue("Old", 0).next_offset == 1  # the log still has it

    world.retention.execute_delete_files_manually()
    await world.retention.clean()
    await world.retention.clean_expired_queues()

    ends = {queue.topic: queue.next_offset for queue in store.queues() if queue.next_offset}
    assert ends == {"Both": 2, TOPIC: 3, **dict.fromkeys(TOPICS_WITH_PROGRESS, 1)}
    assert not (store.config.consume_queue_directory / "Old" / "0").exists()
    # It begins anew, also for who held the queue.
    put(store, b"again", topic="Old")
    store.seal()
    assert bodies(store, topic="Old") == [b"again"]


def test_another_store_of_the_same_kind_needs_no_loop(tmp_path: Path) -> None:
    """Retention is only run by who runs the store."""
    store: MessageStore = open_store(tmp_path)
    put(store)
    store.stop()


# Several directories


def moved(world: World, target: Path, numbers: list[int]) -> list[Path]:
    """Stop the store and carry segments of its log elsewhere."""
    world.store.stop()
    target.mkdir()
    paths = []
    for number in numbers:
        name = f"{number * SEGMENT:020d}"
        paths.append((world.store.config.commit_log_directory / name).rename(target / name))
    return paths


async def test_read_only_segments_are_served_and_never_deleted(tmp_path: Path) -> None:
    root, archive = tmp_path / "store", tmp_path / "archive"
    world = World(root)
    world.fill(6, age_hours=73)
    old = moved(world, archive, [0, 1, 2])
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in old]
    settings = {"read_only_commit_log_store_paths": str(archive)}
    world = World(root, **settings)
    assert len(audit(world.store)) == 6
    world.fill(2)
    for path, (_, modified) in zip(old, before, strict=True):
        os.utime(path, ns=(modified, modified))
    for file in world.store._log.segments.files[:5]:
        os.utime(file.path, (world.now - 73 * HOUR,) * 2)
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in old]
    assert len(audit(world.store)) == 8
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.store.min_offset(TOPIC, 0) == 5
    assert len(audit(world.store)) == 3
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in old] == before
    # What stood between has gone: the archive is left alone now.
    world.store.stop()
    world = World(root, **settings)
    assert world.store.min_offset(TOPIC, 0) == 5
    assert len(audit(world.store)) == 3
    world.store.stop()


async def test_an_archive_of_any_size_does_not_keep_the_disk_from_being_cleaned(
    tmp_path: Path,
) -> None:
    root, archive = tmp_path / "store", tmp_path / "archive"
    world = World(root)
    world.fill(30, age_hours=73)
    moved(world, archive, list(range(15)))
    world = World(root, read_only_commit_log_store_paths=str(archive))
    world.percent = lambda path: 80
    await world.retention.clean()
    assert world.on_disk[0] == 25, "ten files were deleted, fifteen of the archive passed over"
    world.store.stop()


def test_a_log_does_not_go_on_in_a_read_only_directory(tmp_path: Path) -> None:
    root, archive = tmp_path / "store", tmp_path / "archive"
    world = World(root)
    world.fill(2)
    put(world.store, b"in the third segment")
    (last, *_) = moved(world, archive, [2])
    before = last.read_bytes()
    with pytest.raises(StoreError, match=f"{last} must be changed"):
        open_store(
            root,
            mapped_file_size_commit_log=SEGMENT,
            read_only_commit_log_store_paths=str(archive),
        )
    assert last.read_bytes() == before


async def test_a_full_last_segment_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.fill(3)
    put(world.store, b"forces the blank end of the segment before it")
    world.store.stop()
    (tmp_path / "commitlog" / f"{3 * SEGMENT:020d}").unlink()
    world = World(tmp_path)
    world.percent = lambda path: 86
    await world.retention.clean()
    assert world.segments == [2]
    put(world.store, b"goes on")
    assert len(audit(world.store)) == 2
    world.store.stop()


def test_a_log_goes_on_behind_a_full_read_only_segment(tmp_path: Path) -> None:
    root, archive = tmp_path / "store", tmp_path / "archive"
    world = World(root)
    world.fill(3)
    put(world.store, b"forces the blank end of the segment before it")
    world.store.stop()
    (root / "commitlog" / f"{3 * SEGMENT:020d}").unlink()
    moved(world, archive, [0, 1, 2])
    store = open_store(
        root,
        mapped_file_size_commit_log=SEGMENT,
        read_only_commit_log_store_paths=str(archive),
    )
    put(store, b"new")
    assert [record.queue_offset for record in audit(store)] == [0, 1, 2, 3]
    store.stop()


async def test_a_log_in_two_directories(tmp_path: Path) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    settings = {"store_path_commit_log": f"{one},{two}"}
    world = World(tmp_path / "store", **settings)
    world.fill(6, age_hours=73)
    assert len(audit(world.store)) == 6
    world.store.stop()
    assert sorted(int(path.name) // SEGMENT for path in one.iterdir()) == [0, 2, 4]
    assert sorted(int(path.name) // SEGMENT for path in two.iterdir()) == [1, 3, 5]
    world = World(tmp_path / "store", **settings)
    assert len(audit(world.store)) == 6
    # Room on one of the two disks is enough, and it gets the new segments.
    world.percent = lambda path: 95 if path == one else 10
    await world.retention.clean()
    world.fill(4)
    newest = [file.path.parent for file in world.store._log.segments.files[-3:]]
    assert newest == [two, two, two]
    world.percent = lambda path: 95 if path in (one, two) else 10
    await world.retention.check_disk()
    with pytest.raises(PutError, match="95% full"):
        put(world.store)
    assert len(audit(world.store)) == 10
    world.store.stop()
