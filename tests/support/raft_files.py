"""The files of raft nodes, of either system: entries in order, and what differs between nodes.

    with each node stopped:
        entries = assert_same_files({"n0": store0, "n1": store1}, at_least=end)

An entry has DLedger's header (48 bytes, big endian) and a body, which is one record of a commit
log. Compared are data files and index files byte by byte, and consume queues entry by entry, up to
where the shortest log ends. Called by tests, on any thread. Nothing of `pyromq.raft` is imported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.store.offline.compare import Span, compare_queues

#: magic, size, index, term, position, channel, chain crc, body crc, size of the body.
_HEADER: Final = struct.Struct(">iiqqqiiii")
_MAGIC: Final = 1
_BLANK: Final = -1
_INDEX_UNIT: Final = 32
_MAX_DIFFERENCES: Final = 10


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry of a node's log."""

    index: int
    term: int
    position: int
    body: bytes

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + _HEADER.size + len(self.body)

    def record(self) -> MessageRecord:
        """Return its message."""
        return decode_record(self.body)


def read_entries(store: Path) -> Iterator[Stored]:
    """Yield the entries of the node whose store this is, up to the end of its log."""
    files = _files(store, "data")
    expected: int | None = None
    for path in files:
        content = path.read_bytes()
        base = int(path.name)
        at = 0
        while at + 8 <= len(content):
            magic, size = struct.unpack_from(">ii", content, at)
            if magic == _BLANK:
                break
            if magic != _MAGIC:
                return
            _, _, index, term, position, *zeros, body_size = _HEADER.unpack_from(content, at)
            if expected is not None and index != expected:
                return  # behind the end: a truncated log may leave old entries there
            assert position == base + at, f"{path}: the entry at {at} says {position}"
            assert size == body_size + _HEADER.size, f"{path}: sizes of entry {index}"
            assert zeros == [0, 0, 0], f"{path}: entry {index} has {zeros}"
            yield Stored(index, term, position, content[at + _HEADER.size : at + size])
            expected = index + 1
            at += size


def assert_same_files(stores: Mapping[str, Path], *, at_least: int) -> list[Stored]:
    """Fail unless all nodes have the same log, at least up to a position; return its entries."""
    logs = {node: list(read_entries(store)) for node, store in stores.items()}
    ends = {node: entries[-1].end if entries else 0 for node, entries in logs.items()}
    assert min(ends.values()) >= at_least, f"a log ends before {at_least}: {ends}"
    shortest = min(logs.values(), key=len)
    for node, entries in logs.items():
        for ours, theirs in zip(shortest, entries, strict=False):
            assert ours == theirs, f"{node} has {theirs}\nanother one {ours}"
    end = shortest[-1].end
    for name, size in (("data", end), ("index", (shortest[-1].index + 1) * _INDEX_UNIT)):
        first, *others = stores.items()
        for node, store in others:
            problem = _difference(_files(first[1], name), _files(store, name), size)
            assert problem is None, f"{name} files of {first[0]} and {node} differ at {problem}"
    problems = list(islice(_queue_differences(list(stores.values()), end), _MAX_DIFFERENCES))
    assert not problems, "consume queues differ:\n" + "\n".join(problems)
    return shortest


def _queue_differences(stores: Sequence[Path], end: int) -> Iterator[str]:
    span = Span(0, end, end, may_move=True)
    first = stores[0] / "consumequeue"
    for store in stores[1:]:
        for difference in compare_queues(first, store / "consumequeue", span):
            yield f"{store}: {difference}"


def _files(store: Path, name: str) -> list[Path]:
    (directory,) = store.glob(f"dledger-*/{name}")
    return sorted(path for path in directory.iterdir() if path.name.isdecimal())


def _difference(first: list[Path], second: list[Path], end: int) -> int | None:
    """Return the first position below `end` where files differ."""
    ours, theirs = _joined(first, end), _joined(second, end)
    if ours == theirs:
        return None
    places = (at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
    return next(places, min(len(ours), len(theirs)))


def _joined(files: list[Path], end: int) -> bytes:
    parts = []
    for path in files:
        if (start := int(path.name)) < end:
            with path.open("rb") as file:
                parts.append(file.read(end - start))
    return b"".join(parts)
