"""Java takes over stores whose log was truncated, whoever wrote them, and finds the same end."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.config import load_broker_properties
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.record import BLANK_MAGIC, decode_record, decode_records, peek
from pyromq.store.config import MessageStoreConfig
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import check_store
from pyromq.store.offline.truncate import truncate_store
from tests.interop.java_programs import javac_or_skip
from tests.interop.raw_broker import RawBroker
from tests.interop.store_survey import (
    BUSY_TOPIC,
    SEGMENT,
    SETTINGS,
    compat_seeds,
    java_opens,
    log_records,
    pull_all,
    queue_limits,
)
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.stores import log_records as records_of
from tests.support.stores import put

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

HOST = encode_host("127.0.0.1", 10911)


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    java_or_skip()
    javac_or_skip()


def config_of(root: Path) -> MessageStoreConfig:
    return load_broker_properties({**SETTINGS, "storePathRootDir": str(root)}).store


def apache(store: Path, namesrv: str) -> ApacheRocketMQ:
    return ApacheRocketMQ(
        store=store,
        broker_properties=SETTINGS,
        broker_only=True,
        namesrv_address=namesrv,
        jvm_options=QUICK_JVM_OPTIONS,
    )


def written_here(root: Path) -> None:
    store = MessageStore(config_of(root), HOST)
    store.start()
    for number in range(900):
        keys = f"k{number} all"
        put(store, b"%04d" % number * 250, queue_id=number % 3, tags="t", keys=keys)
        store.seal()
    store.stop()


async def written_by_java(root: Path, namesrv: str) -> None:
    """A broker of Java's that is killed."""
    server = apache(root, namesrv)
    try:
        server.start()
        broker = RawBroker(server.broker_address)
        try:
            for seed in compat_seeds("first"):
                await broker.send(seed)
        finally:
            await broker.close()
    finally:
        server.kill()
    assert (root / "abort").exists()


@pytest.fixture(scope="module")
def by_java(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("truncate") / "theirs"
    asyncio.run(written_by_java(root, namesrv))
    return root


def places(root: Path) -> list[tuple[int, int]]:
    """Offset and magic of every record, blank ones too."""
    return [(offset, peek(record)[1]) for offset, record in log_records(root)]


def expected_limits(root: Path, offset: int) -> dict[str, list[int]]:
    """The limits of each queue, if the log ends at `offset`."""
    counts: defaultdict[str, int] = defaultdict(int)
    for place, data in log_records(root):
        if place < offset and peek(data)[1] != BLANK_MAGIC:
            record = decode_record(data)
            counts[f"{record.topic}/{record.queue_id}"] += 1
    return {name: [0, count] for name, count in counts.items()}


def test_java_takes_over_truncated_stores(by_java: Path, tmp_path: Path) -> None:
    written_here(tmp_path / "ours")
    expected: dict[str, tuple[int, dict[str, list[int]]]] = {}
    sources = {source.name: source for source in (tmp_path / "ours", by_java)}
    for writer, source in sources.items():
        found = places(source)
        blank = next(offset for offset, magic in found if magic == BLANK_MAGIC)
        assert found[-1][0] > 2 * SEGMENT
        offsets = {
            "middle": found[len(found) // 2][0],
            "segment": SEGMENT,
            "blank": blank,
            "last": found[-1][0],
        }
        for name, offset in offsets.items():
            copy = Path(shutil.copytree(source, tmp_path / f"{writer}-{name}"))
            truncate_store(config_of(copy), offset, apply=True)
            expected[copy.name] = offset, expected_limits(source, offset)
    seen: dict[str, dict[str, Any]] = java_opens(tmp_path, *(tmp_path / name for name in expected))
    for name, (offset, limits) in expected.items():
        assert (seen[name]["end"], seen[name]["queues"]) == (offset, limits), name
        store = MessageStore(config_of(tmp_path / name), HOST)
        store.start()
        try:
            assert store.max_physical_offset == offset, name
            kept = [
                data
                for place, data in log_records(sources[name.split("-")[0]])
                if place < offset and peek(data)[1] != BLANK_MAGIC
            ]
            assert records_of(store) == [decode_record(data) for data in kept], name
        finally:
            store.stop()
        assert list(check_store(tmp_path / name, config_of(tmp_path / name))) == [], name


async def test_a_java_broker_serves_a_truncated_store_and_goes_on(
    by_java: Path, namesrv: str, tmp_path: Path
) -> None:
    """Where a segment starts, and with the tables of a broker."""
    store = Path(shutil.copytree(by_java, tmp_path / "store"))
    kept = [
        decode_record(data)
        for place, data in log_records(store)
        if place < SEGMENT and peek(data)[1] != BLANK_MAGIC
    ]
    truncate_store(config_of(store), SEGMENT, apply=True)
    bodies = [record.body for record in kept if record.topic == BUSY_TOPIC]
    server = apache(store, namesrv)
    try:
        server.start()
        broker = RawBroker(server.broker_address)
        try:
            assert await queue_limits(broker, BUSY_TOPIC, 0) == (0, len(bodies))
            served = decode_records(await pull_all(broker, BUSY_TOPIC, 0, 0, len(bodies)))
            assert [record.body for record in served] == bodies
            seed = compat_seeds("second", busy=1, rounds=0)[0]
            assert (await broker.send(seed)).queue_offset == len(bodies)
            more = decode_records(
                await pull_all(broker, BUSY_TOPIC, 0, len(bodies), len(bodies) + 1)
            )
            assert more[0].physical_offset == SEGMENT
        finally:
            await broker.close()
    finally:
        server.kill()
