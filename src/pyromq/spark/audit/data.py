"""Collect facts about messages: offsets of each queue, damage, transactions, dead letters.

Each task turns a slice of the messages, from a log or a queue, into `Facts`. The driver joins the
facts of all slices (`join`); only then gaps, duplicate offsets and unfinished transactions show.

Facts are small: a queue without gaps is a single range, however many messages it has. All damage is
counted, and a bounded number of cases is described. Pure; used by `auditor`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.message.bulk import Buffer, RecordColumns, body_crcs
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.message_id import HOST_SIZE_V4, decode_host
from pyromq.protocol.message.properties import PRODUCER_GROUP, REAL_TOPIC, RETRY_TOPIC, UNIQ_KEY
from pyromq.protocol.message.record import MessageRecord, decode_record
from pyromq.protocol.names import (
    DEAD_LETTER_TOPIC_PREFIX,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.store.config import MessageStoreConfig
from pyromq.store.recovery.dispatch import QueueRun, queue_runs

#: Cases of damage that are described; all are counted.
MAX_DESCRIBED_DAMAGE: Final = 100
#: Needed to decode delayed messages, although an audit does not use their delivery times.
_LEVELS: Final = DelayLevels(MessageStoreConfig().message_delay_level)

#: An offset in the body of an op message has fewer digits.
_MAX_DIGITS: Final = 20

QueueKey = tuple[str, str, int]


class Damage(NamedTuple):
    """A case of damage, and where it is."""

    place: str
    message: str


class Half(NamedTuple):
    """A half message: its offset, and its transaction."""

    offset: int
    #: Hash of its unique key. A half that the broker stored again has the key of the first one.
    key: bytes
    stored: int
    topic: str
    group: str


@dataclass(slots=True)
class QueueFacts:
    """One queue, or the slice of it that was read."""

    messages: int = 0
    bytes: int = 0
    first_stored: int = 0
    last_stored: int = 0
    #: Ranges of offsets, excluding the second number, in the order of the log.
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, run: QueueRun, stored: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Add the next records."""
        self.messages += run.offsets.size
        self.bytes += int(run.entries["size"].astype(np.int64).sum())
        self._widen(int(stored.min()), int(stored.max()))
        self._extend(_ranges_of(run))

    def join(self, other: QueueFacts) -> None:
        """Add the facts of the slice after this one."""
        self.messages += other.messages
        self.bytes += other.bytes
        if other.messages:
            self._widen(other.first_stored, other.last_stored)
        self._extend(other.ranges)

    def _widen(self, first: int, last: int) -> None:
        self.first_stored = min(self.first_stored or first, first)
        self.last_stored = max(self.last_stored, last)

    def _extend(self, ranges: Iterable[tuple[int, int]]) -> None:
        for start, end in ranges:
            if self.ranges and self.ranges[-1][1] == start:
                self.ranges[-1] = (self.ranges[-1][0], end)
            else:
                self.ranges.append((start, end))

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offsets between others that no message has."""
        covered = sorted(self._since_creation())
        gaps = []
        reached = covered[0][1] if covered else 0
        for start, end in covered[1:]:
            if start > reached:
                gaps.append((reached, start))
            reached = max(reached, end)
        return gaps

    def repeats(self) -> list[tuple[int, int]]:
        """Return the offsets that more than one message has."""
        repeats = []
        reached = 0
        for start, end in sorted(self._since_creation()):
            if start < reached:
                repeats.append((start, min(end, reached)))
            reached = max(reached, end)
        return repeats

    def _since_creation(self) -> list[tuple[int, int]]:
        """Return the ranges since the last offset 0: a recreated topic starts there again."""
        begins = [at for at, (start, _) in enumerate(self.ranges) if start == 0]
        return self.ranges[begins[-1] :] if begins else self.ranges


@dataclass(slots=True)
class Facts:
    """The facts of one slice, or of all slices."""

    broker_name: str
    queues: dict[QueueKey, QueueFacts] = field(default_factory=dict)
    #: Messages by topic and sender address.
    producers: dict[str, Counter[str]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    halves: list[Half] = field(default_factory=list)
    #: Offsets of the halves whose transactions ended.
    ended: set[int] = field(default_factory=set)
    given_up: set[bytes] = field(default_factory=set)
    #: Dead letters by group and original topic.
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    records: int = 0

    def add(self, data: Buffer, base: int, columns: RecordColumns) -> None:
        """Add valid records; `base` is the physical offset of the first byte."""
        self.records += columns.starts.size
        stored = columns.column("store_timestamp")
        hosts = columns.born_hosts()
        for run in queue_runs(data, base, columns, _LEVELS):
            rows = np.searchsorted(
                columns.starts, run.entries["physical_offset"].astype(np.int64) - base
            )
            key = (run.topic, self.broker_name, run.queue_id)
            self.queues.setdefault(key, QueueFacts()).add(run, stored[rows])
            self._count_hosts(data, run.topic, hosts.starts[rows], hosts.lengths[rows])
            self._inspect(data, base, run)

    def add_damage(self, place: str, message: str) -> None:
        """Record a case of damage."""
        self.damage_count += 1
        if len(self.damage) < MAX_DESCRIBED_DAMAGE:
            self.damage.append(Damage(place, message))

    def join(self, other: Facts) -> None:
        """Add the facts of the slice after this one."""
        for key, queue in other.queues.items():
            self.queues.setdefault(key, QueueFacts()).join(queue)
        for topic, hosts in other.producers.items():
            self.producers.setdefault(topic, Counter()).update(hosts)
        self.damage += other.damage[: MAX_DESCRIBED_DAMAGE - len(self.damage)]
        self.damage_count += other.damage_count
        self.halves += other.halves
        self.ended |= other.ended
        self.given_up |= other.given_up
        self.dead_letters.update(other.dead_letters)
        self.records += other.records

    def open_halves(self) -> list[tuple[Half, bool]]:
        """Return the last half of each unfinished transaction, and whether it was abandoned."""
        ended_keys = {half.key for half in self.halves if half.offset in self.ended}
        last: dict[bytes, Half] = {}
        for half in sorted(self.halves):
            if half.key not in ended_keys:
                last[half.key] = half
        return [(half, half.key in self.given_up) for half in sorted(last.values())]

    def _count_hosts(
        self,
        data: Buffer,
        topic: str,
        starts: np.ndarray[tuple[int], np.dtype[np.int64]],
        lengths: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        counts = self.producers.setdefault(topic, Counter())
        content = np.frombuffer(data, np.uint8)
        is_v4 = lengths == HOST_SIZE_V4
        addresses = content[starts[is_v4][:, None] + np.arange(4)]
        packed = addresses.astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        for address, count in zip(*np.unique(packed, return_counts=True), strict=True):
            host = decode_host(int(address).to_bytes(4, "big") + bytes(4))[0]
            counts[host] += int(count)
        for start, length in zip(starts[~is_v4].tolist(), lengths[~is_v4].tolist(), strict=True):
            counts[decode_host(bytes(data[start : start + length]))[0]] += 1

    def _inspect(self, data: Buffer, base: int, run: QueueRun) -> None:
        """Collect transactions and dead letters from system topics."""
        topic = run.topic
        if topic == TRANSACTION_HALF_TOPIC:
            for record in _records(data, base, run):
                properties = record.properties
                self.halves.append(
                    Half(
                        record.queue_offset,
                        _short(properties.get(UNIQ_KEY) or str(record.queue_offset)),
                        record.store_timestamp,
                        properties.get(REAL_TOPIC, ""),
                        properties.get(PRODUCER_GROUP, ""),
                    )
                )
        elif topic == TRANSACTION_OP_TOPIC:
            for record in _records(data, base, run):
                # RocketMQ 5 lists several in one record.
                for text in record.body.split(b","):
                    # Anything longer is not an offset: clients may send anything to this topic.
                    if text.strip().isdigit() and len(text) < _MAX_DIGITS:
                        self.ended.add(int(text))
        elif topic == TRANSACTION_GIVEN_UP_TOPIC:
            for record in _records(data, base, run):
                self.given_up.add(_short(record.properties.get(UNIQ_KEY, "")))
        elif topic.startswith(DEAD_LETTER_TOPIC_PREFIX):
            group = topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            for record in _records(data, base, run):
                self.dead_letters[group, record.properties.get(RETRY_TOPIC, "")] += 1


def join(slices: Iterable[Facts], broker_name: str) -> Facts:
    """Join the facts of all slices of a store or broker, in the order of the log or the queue."""
    joined = Facts(broker_name)
    for each in slices:
        joined.join(each)
    return joined


def wrong_bodies(data: Buffer, columns: RecordColumns) -> list[int]:
    """Return the rows whose body does not match the CRC in the record."""
    wrong: list[int] = np.flatnonzero(
        columns.column("body_crc") != body_crcs(data, columns)
    ).tolist()
    return wrong


def _ranges_of(run: QueueRun) -> Iterator[tuple[int, int]]:
    if run.is_consecutive:
        yield int(run.offsets[0]), int(run.offsets[-1]) + 1
        return
    breaks = np.flatnonzero(run.offsets[1:] != run.offsets[:-1] + 1) + 1
    for offsets in np.split(run.offsets, breaks):
        yield int(offsets[0]), int(offsets[-1]) + 1


def _records(data: Buffer, base: int, run: QueueRun) -> Iterator[MessageRecord]:
    for place, size, _ in run.entries.tolist():
        yield decode_record(bytes(data[place - base : place - base + size]))


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
