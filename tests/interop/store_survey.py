"""What two implementations must agree on about one store directory, and messages to fill it with.

A `Survey` is what a broker serves, asked for in raw frames; `derived_files` is what was made of
the log, as bytes; `java_opens` lets Java's own store bring directories up to date without a
broker around it. Called by the tests of stores that are handed over.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyromq.protocol.message.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    MESSAGE_MAGIC,
    decode_records,
    peek,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from tests.interop.java_programs import BROKER, INTEROP_SOURCES, compiled, run_program
from tests.interop.raw_broker import GROUP, QUEUES, RawBroker, Seed, expected_keys
from tests.support.patience import DEADLINE

SEGMENT = 256 * 1024
QUEUE_ENTRIES = 50
#: Sizes so small that some hundred messages make every kind of file roll. An index file holds
#: enough for Java to need more than a millisecond for it: it names them by the millisecond.
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": str(QUEUE_ENTRIES * 20),
    "maxHashSlotNum": "500",
    "maxIndexNum": "4000",
    "maxMessageSize": str(128 * 1024),
    # Else Java, after a kill, does not index again what was in an index file that it removes,
    # when the checkpoint of the log is ahead of the index's: keys would be missing by chance.
    "messageIndexSafe": "true",
}
TOPICS = 32
LONGEST_TOPIC = "Longest_" + "x" * 119
BUSY_TOPIC = "CompatBusy"
#: How many messages the busy topic gets, all of them in its first queue.
BUSY = 900
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"

_COMPRESSED = 0x1
_PULL_WITH_SUBSCRIPTION = 0x4

Place = tuple[str, int]


@dataclass
class Survey:
    """What a broker serves of some queues and keys, as bytes and numbers."""

    limits: dict[Place, tuple[int, int]] = field(default_factory=dict)
    records: dict[Place, bytes] = field(default_factory=dict)
    by_time: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: Each record once: after a kill the last one of an index file may be in the next one, too.
    by_key: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    by_id: dict[int, bytes] = field(default_factory=dict)


def compat_seeds(prefix: str, *, busy: int = BUSY, rounds: int = 6) -> list[Seed]:
    """Messages for many topics, of every shape that both implementations take."""
    found = []
    for number in range(busy):
        words = [f"{prefix}-{number}-{word}" for word in range(10)]
        properties = {
            "KEYS": " ".join([*words, f"every-{prefix}", f"Schlüssel-键-{number % 7}"]),
            "UNIQ_KEY": f"{prefix}-BUSY-{number:08}",
            "TAGS": f"tag-{number % 5}",
        }
        found.append(Seed(BUSY_TOPIC, 0, [f"busy {number} ".encode() * (number % 40)], properties))
    long_text = zlib.compress(b"compress me " * 5000)
    for topic in (*(f"Compat{number:02}" for number in range(TOPICS)), LONGEST_TOPIC):
        for number in range(rounds):
            queue_id = number % QUEUES
            tagged = {
                "TAGS": f"tag-ä{number % 3}",
                "KEYS": f"{prefix}{number} all-{prefix} 键{number} 🚀",
                "UNIQ_KEY": f"{prefix}-UNIQUE-{number:016}",
                "own": "ü" * (number * 40 + 1),
            }
            found.append(Seed(topic, queue_id, [f"{topic} {number} 消息".encode()], tagged))
        found.append(Seed(topic, 1, [bytes(range(256))]))
        found.append(Seed(topic, 2, [long_text], {"TAGS": "z", "KEYS": prefix}, _COMPRESSED))
        bodies = [f"in a batch, {inner}".encode() * inner for inner in range(1, 6)]
        found.append(Seed(topic, 3, bodies, {"KEYS": f"{prefix}-batch", "TAGS": "batch"}))
    found.extend(
        Seed("Compat00", 0, [b"long properties"], {"long": "p" * length})
        for length in (10_000, 32_000)
    )
    found.append(Seed("Compat01", 0, [b"large" * 20_000], {"KEYS": f"{prefix}-large"}))
    return found


def delayed_seeds(count: int, level: int = 18) -> list[Seed]:
    """Messages that wait for two hours, if the level is not another one."""
    return [
        Seed("CompatLater", 1, [f"later {n}".encode()], {"DELAY": str(level), "KEYS": f"later-{n}"})
        for n in range(count)
    ]


def seeds_at_the_limits() -> list[Seed]:
    """Messages of which some are too long for a store; the broker adds a property of its own."""
    found = [
        Seed("CompatLimits", 0, [b"properties"], {"long": "p" * length})
        for length in (*range(32_734, 32_746), 32_767, 32_768, 40_000)
    ]
    found += [
        Seed("CompatLimits", 1, [b"two bytes each"], {"long": "ü" * length})
        for length in (16_300, 16_370, 16_380, 16_390, 20_000)
    ]
    largest = int(SETTINGS["maxMessageSize"])
    found += [
        Seed("CompatLimits", 2, [b"b" * size]) for size in (largest - 1, largest, largest + 1)
    ]
    found += [Seed("T" * length, 0, [b"topic"]) for length in (126, 127, 128)]
    return found


def expected_counts(sent: Iterable[Seed]) -> Counter[Place]:
    """How many messages each queue got."""
    counts: Counter[Place] = Counter()
    for seed in sent:
        counts[seed.topic, seed.queue_id] += len(seed.bodies)
    return counts


async def survey(broker: RawBroker, sent: Sequence[Seed], *more: Place) -> Survey:
    """Everything of the queues that these were sent to; all of it must be there."""
    found = Survey()
    counts = expected_counts(sent)
    for place in more:
        counts[place] += 1
    for (topic, queue_id), count in sorted(counts.items()):
        await _read_queue(broker, found, topic, queue_id, count)
    # One key of nine: the whole index is compared byte by byte elsewhere.
    for (topic, key), count in list(expected_keys(sent).items())[::9]:
        found.by_key[topic, key] = await _query(broker, topic, key, count)
    return found


async def _read_queue(
    broker: RawBroker, found: Survey, topic: str, queue_id: int, count: int
) -> None:
    deadline = time.monotonic() + DEADLINE
    while (limits := await queue_limits(broker, topic, queue_id))[1] < count:
        assert time.monotonic() < deadline, f"{topic} {queue_id} ends at {limits}, not {count}"
        await asyncio.sleep(0.02)
    found.limits[topic, queue_id] = limits
    data = await pull_all(broker, topic, queue_id, *limits)
    found.records[topic, queue_id] = data
    records = decode_records(data)
    assert [record.queue_offset for record in records] == list(range(*limits)), (topic, queue_id)
    # In a queue of several files Java goes by their times of modification, which for mapped
    # files are too early: it answers with messages behind the right one.
    stamps = [records[n].store_timestamp for n in {0, len(records) // 2, len(records) - 1}]
    times = stamps if len(records) <= QUEUE_ENTRIES else []
    for timestamp in sorted({t + d for t in times for d in (-1, 0, 1)}):
        offset = await offset_by_time(broker, topic, queue_id, timestamp)
        found.by_time[topic, queue_id, timestamp] = offset
    for record in records[::37]:
        answer = await broker.ask(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(record.physical_offset)
        )
        found.by_id[record.physical_offset] = answer.body


async def queue_limits(broker: RawBroker, topic: str, queue_id: int) -> tuple[int, int]:
    """The queue's first offset and the one behind its last."""
    answer = await broker.ask(
        RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, queue_id)
    )
    first = GetMinOffsetResponseHeader.decode(answer.ext_fields).offset
    answer = await broker.ask(
        RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, queue_id)
    )
    return first, GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset


async def offset_by_time(broker: RawBroker, topic: str, queue_id: int, timestamp: int) -> int:
    """The queue offset that the broker finds for a time."""
    answer = await broker.ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader(topic, queue_id, timestamp),
    )
    return SearchOffsetResponseHeader.decode(answer.ext_fields).offset


async def pull_all(broker: RawBroker, topic: str, queue_id: int, first: int, end: int) -> bytes:
    """The records of a queue from `first` to `end`, one behind the other."""
    data = b""
    offset = first
    while offset < end:
        header = PullMessageRequestHeader(
            consumer_group=GROUP,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=_PULL_WITH_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
        )
        answer = await broker.ask(RequestCode.PULL_MESSAGE, header)
        data += answer.body
        offset = PullMessageResponseHeader.decode(answer.ext_fields).next_begin_offset
    return data


async def _query(broker: RawBroker, topic: str, key: str, count: int) -> list[bytes]:
    """The records with a key, at most the 64 newest, newest first; the index is built late."""
    header = QueryMessageRequestHeader(
        topic=topic, key=key, max_num=64, begin_timestamp=0, end_timestamp=1 << 50
    )
    deadline = time.monotonic() + DEADLINE
    while True:
        answer = await broker.ask(RequestCode.QUERY_MESSAGE, header, ResponseCode.QUERY_NOT_FOUND)
        records, position = [], 0
        while position < len(answer.body):
            size, _ = peek(answer.body[position : position + BLANK_SIZE])
            records.append(answer.body[position : position + size])
            position += size
        if len(records) >= min(count, 64):
            return list(dict.fromkeys(records))
        assert time.monotonic() < deadline, f"{topic} {key}: {len(records)} instead of {count}"
        await asyncio.sleep(0.05)


def derived_files(root: Path) -> dict[str, bytes]:
    """Every file that is made from the log; index files by their rank, for their names are times.

    Left out are segments without an entry: either side may or may not have made the next one.
    """
    files = {
        str(path.relative_to(root)): data
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file() and any(data := path.read_bytes())
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        files[f"index {number}"] = path.read_bytes()
    return files


def differing(ours: dict[str, bytes], theirs: dict[str, bytes]) -> list[str]:
    """What is not the same, by name: bytes would fill the screen."""
    return [
        f"{name}: {_first_difference(ours.get(name), theirs.get(name))}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


def _first_difference(ours: bytes | None, theirs: bytes | None) -> str:
    if ours is None or theirs is None:
        return "only theirs" if ours is None else "only ours"
    for position, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            start = position // 20 * 20
            return f"at {position}: {ours[start : start + 20]!r} and {theirs[start : start + 20]!r}"
    return f"{len(ours)} and {len(theirs)} bytes"


def log_records(root: Path, segment: int = SEGMENT) -> Iterator[tuple[int, bytes]]:
    """All records of a commit log with their offsets, blank ones too, up to the end."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        base, position = int(path.name), 0
        while position < segment:
            size, magic = peek(data[position : position + BLANK_SIZE])
            if magic not in (MESSAGE_MAGIC, BLANK_MAGIC):
                return
            yield base + position, data[position : position + size]
            position += size


def java_opens(scratch: Path, *stores: Path, **changes: str) -> dict[str, dict[str, Any]]:
    """Let Java open these stores, bring them up to date and close them; what it saw, by name."""
    properties = scratch / "opener.properties"
    settings = {**SETTINGS, **changes}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    lines = run_program(
        compiled(INTEROP_SOURCES / "store", BROKER),
        "StoreOpener",
        [str(properties), *map(str, stores)],
    )
    return {line["store"]: line for line in lines}
