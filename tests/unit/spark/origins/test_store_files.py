"""The files below a store origin: entries of consume queues, and segments of the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyromq.protocol.message.record import decode_record
from pyromq.spark.origins.store_files import QueueEntries, StoreLog, leading_count
from tests.support.stores import TOPIC, open_store, put


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path / "store")
    for number in range(5):
        put(store, b"%d" % number)
    store.seal()
    store.stop()
    return tmp_path / "store"


@pytest.fixture
def log(root: Path) -> Iterator[StoreLog]:
    log = StoreLog([root / "commitlog"])
    yield log
    log.close()


def test_entries(root: Path) -> None:
    entries = QueueEntries(root / "consumequeue" / TOPIC / "0")
    assert (entries.first_offset, entries.end_offset()) == (0, 5)
    assert entries.entry(0)[0] == entries.place(0) == 0
    assert entries.entry(5) == (0, 0)
    assert entries.read(3, 100)["size"].tolist()[:3] == [entries.entry(3)[1]] * 2 + [0]
    assert entries.next_offset(0) is None


def test_no_queue(tmp_path: Path) -> None:
    entries = QueueEntries(tmp_path / "nothing")
    assert entries.bases == []
    assert not entries.read(0, 1).size


def test_records_close_together_are_not_copied(root: Path, log: StoreLog) -> None:
    entries = QueueEntries(root / "consumequeue" / TOPIC / "0")
    found = entries.read(0, 5)
    places, sizes = found["physical_offset"].astype(np.int64), found["size"].astype(np.int64)
    assert log.holds(places, sizes).all()
    assert log.fitting(places, sizes) == 5
    buffer, starts = log.gather(places, sizes)
    assert isinstance(buffer.obj, memoryview) or buffer.readonly
    assert [decode_record(buffer, start).body for start in starts.tolist()] == [
        b"%d" % number for number in range(5)
    ]


def test_bytes_beyond_the_end_are_zero(log: StoreLog) -> None:
    end = log.bases[-1] + log.segment_size
    buffer, starts = log.gather(np.array([end - 8]), np.array([16]))
    assert bytes(buffer) == bytes(16)
    assert starts.tolist() == [0]
    assert log.read(end, 8) == b""
    assert not log.holds(np.array([end]), np.array([100])).any()


def test_what_is_written(root: Path, log: StoreLog) -> None:
    entries = QueueEntries(root / "consumequeue" / TOPIC / "0")
    place, size = entries.entry(4)
    assert log.is_written(place, size)
    assert not log.is_written(place + size, size)
    assert log.store_timestamp(place) > 0
    assert log.damage_at(place + size, log.segment_size) is None
    assert log.damage_at(place + 1, log.segment_size) == "these bytes are not a record"


def test_leading_flags() -> None:
    assert leading_count(np.array([True, True, False, True])) == 2
    assert leading_count(np.array([True])) == 1
    assert leading_count(np.array([False])) == 0
