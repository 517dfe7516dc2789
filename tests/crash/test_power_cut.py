"""Power cuts at random moments: what the disk had stays, and no rule of the store is broken.

Messages below the flushed mark must be there afterwards. Of the rest any number may be, from
the first on; a record that is served is one that was sent.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyromq.store import chunk
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from tests.crash.writer import Told, body_of, put_chunk
from tests.support.crash import seeds
from tests.support.power_cut import Disk
from tests.support.stores import STORE_HOST, audit, small_config

SETTINGS = {
    "mapped_file_size_commit_log": 32 * 1024,
    "mapped_file_size_consume_queue": 20 * 300,
    "max_hash_slot_num": 64,
    "max_index_num": 128,
    "flush_interval_commit_log": 1,
    "flush_interval_consume_queue": 1,
    "flush_consume_queue_least_pages": 0,
    "flush_commit_log_thorough_interval": 2,
    "max_msgs_num_batch": 1000,
}
GENERATIONS = 3
CHUNKS = 30


class Lineage:
    """A store through several cuts: what was stored, and what must still be there."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.choose = random.Random(seed)
        self.stored: list[Told] = []
        self.promised: list[Told] = []
        self._directory = directory
        self._seed = seed
        self._names = itertools.count()
        self._numbers = itertools.count(1_000, 10_000_000)
        self._store: MessageStore

    def live(self) -> None:
        """Write and lose power, again and again."""
        disk = self._new_disk(self._new_path())
        for _ in range(GENERATIONS):
            if self.choose.random() < 0.3:
                # A kill of the process first: all is there, some of it not on the disk.
                with self._running(disk):
                    self._write(disk)
                    disk = disk.killed(self._new_path())
            disk.cut_at = self.choose.randint(1, 250)
            disk.on_cut = self._promise
            with self._running(disk):
                self._write(disk)
                disk.cut()
            root = disk.restore(self._new_path())
            disk = self._new_disk(root)
            self._check(disk.killed(self._new_path()).root)

    @contextmanager
    def _running(self, disk: Disk) -> Iterator[None]:
        """A store on the disk; what it does is recorded until it is stopped."""
        self._store = MessageStore(small_config(disk.root, **SETTINGS), STORE_HOST)
        with disk.recording():
            try:
                self._store.start()
                yield
            finally:
                self._store.stop()

    def _write(self, disk: Disk) -> None:
        store = self._store
        number = next(self._numbers)
        for _ in range(CHUNKS):
            told = put_chunk(store, self.choose, number)
            number += len(told)
            store.seal()
            self.stored += told
            if self.choose.random() < 0.3:
                disk.write_back()
            if disk.remains is not None:
                break
        if self.choose.random() < 0.3:
            store.stop()

    def _promise(self) -> None:
        """What the store says is on the disk, at the moment of the cut."""
        flushed = self._store._log.watermarks.flushed
        self.promised = [message for message in self.stored if message.physical < flushed] or (
            self.promised
        )

    def _check(self, root: Path) -> None:
        """Recover: what was promised is there, what is there was sent, everything agrees."""
        config = small_config(root, **SETTINGS)
        store = MessageStore(config, STORE_HOST)
        store.start()
        try:
            found = set()
            for record in audit(store):
                number = int(record.body.partition(b":")[0])
                assert record.body == body_of(number)
                place = (record.topic, record.queue_id, record.queue_offset, record.physical_offset)
                found.add(Told(*place, number))
        finally:
            store.stop()
        assert found <= set(self.stored)
        lost = set(self.promised) - found
        assert not lost, f"lost {len(lost)}: {min(lost, key=lambda told: told.physical)}"
        assert [str(violation) for violation in check_store(root, config)] == []
        self.stored = [message for message in self.stored if message in found]

    def _new_disk(self, root: Path) -> Disk:
        root.mkdir(exist_ok=True)
        return Disk(root, random.Random(self.choose.random()))

    def _new_path(self) -> Path:
        return self._directory / f"store{next(self._names)}"


@pytest.fixture(autouse=True)
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store each chunk 100 ms after the previous one, so that checkpoints matter."""
    clock = itertools.count(1_700_000_000_000, 100)
    monkeypatch.setattr(chunk, "now_ms", clock.__next__)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_flushed_survives_power_cuts(tmp_path: Path, seed: int) -> None:
    Lineage(tmp_path, seed).live()


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(300))
def test_what_was_flushed_survives_many_power_cuts(tmp_path: Path, seed: int) -> None:
    Lineage(tmp_path, seed).live()
