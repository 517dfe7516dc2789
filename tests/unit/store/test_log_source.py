from __future__ import annotations

import itertools
from pathlib import Path
from zlib import crc32

from pyromq.store.log_source import MAX_CHECKED, LogSource
from pyromq.store.message_store import MessageStore
from tests.support.stores import SEGMENT, open_store, put


def filled(root: Path, count: int = 300) -> MessageStore:
    store = open_store(root)
    for number in range(count):
        put(store, bytes([number % 256]) * 700)
    store.seal()
    return store


def boundaries(store: MessageStore) -> list[int]:
    """Where records begin, by the entries of the only queue; and the end of the log."""
    (queue,) = store.queues()
    return [entry.physical_offset for entry in queue.entries()] + [store.max_physical_offset]


def test_slices_are_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path)
    source = store.replication.source
    assert source.first == 0
    assert source.end == store.max_physical_offset
    offset = 0
    while offset < source.end:
        data = source.slice(offset, 10_000)
        assert 0 < len(data) <= 10_000
        assert offset // SEGMENT == (offset + len(data) - 1) // SEGMENT
        assert bytes(data) == store._log.read(offset, len(data))
        offset += len(data)
    assert offset == source.end
    assert len(source.slice(source.end, 100)) == 0
    assert len(source.slice(source.end + SEGMENT, 100)) == 0
    assert source.newest_segment == source.end - source.end % SEGMENT
    store.stop()


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    store = filled(tmp_path)
    data = store.replication.source.slice(0, 1000)
    before = bytes(data)
    first = store._log.segments.take_first()
    first.unlink()
    first.close()
    assert bytes(data) == before
    assert store.replication.source.first == SEGMENT
    assert len(store.replication.source.slice(0, 10)) == 0
    store.stop()


def test_only_ends_of_records_are_boundaries(tmp_path: Path) -> None:
    store = filled(tmp_path, 120)
    source, places = store.replication.source, set(boundaries(store))
    # Blank records begin at a boundary, and end at the next segment.
    sizes = [place for place in places if place % SEGMENT]
    for offset in range(store.max_physical_offset + 1):
        if source.is_boundary(offset) != (offset in places):
            assert offset % SEGMENT == 0 or offset > max(
                place for place in sizes if place // SEGMENT == offset // SEGMENT
            )
    assert not source.is_boundary(store.max_physical_offset + 1)
    assert not source.is_boundary(-1)
    store.stop()


def test_the_boundary_below(tmp_path: Path) -> None:
    store = filled(tmp_path, 120)
    source = store.replication.source
    places = [offset for offset in range(source.end + 1) if source.is_boundary(offset)]
    for before, after in itertools.pairwise(places):
        for offset in (before, before + 1, after - 1):
            assert source.boundary_below(offset) == before
    assert source.boundary_below(places[-1]) == places[-1]
    store.stop()


def test_checksums(tmp_path: Path) -> None:
    store = filled(tmp_path)
    source = store.replication.source
    content = b"".join(bytes(source.slice(base, SEGMENT)) for base in range(0, source.end, SEGMENT))
    for start, end in ((0, 0), (0, 100), (SEGMENT - 10, SEGMENT + 10), (5, source.end)):
        assert source.checksum(start, end) == crc32(content[start:end])
    assert source.checksum(0, source.end + 1) is None
    assert source.checksum(10, 5) is None
    assert source.checksum(0, MAX_CHECKED + 1) is None
    store._log.segments.take_first()
    assert source.checksum(0, 10) is None
    store.stop()


def test_an_empty_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    source: LogSource = store.replication.source
    assert (source.first, source.end) == (0, 0)
    assert source.is_boundary(0)
    assert source.checksum(0, 0) == 0
    assert not source.must_wait(0, 100)
    store.stop()
