"""One store directory, two implementations: what one wrote, the other serves, byte for byte.

A store is filled through the broker of one, stopped cleanly or killed, opened by the other, and
both are asked for everything in raw frames. The other then goes on writing, and hands it back.
These stores are of default sizes, those of test_store_compat.py small, with more of everything:
the long run looks at what that one does, too.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.interop.raw_broker import RawBroker, Seed, Snapshot, seeds
from tests.interop.servers import PyromqServer
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPICS = ("ExchangeSingle", "ExchangeBare", "ExchangeBatch")
ROUNDS = 12

Server = PyromqServer | ApacheRocketMQ
#: Makes a server on a store; Java's registers at a NameServer.
Starter = Callable[[Path, str], Server]


def pyromq(store: Path, _: str) -> Server:
    return PyromqServer(store=store)


def apache(store: Path, namesrv: str) -> Server:
    return ApacheRocketMQ(
        store=store,
        broker_only=True,
        namesrv_address=namesrv,
        jvm_options=QUICK_JVM_OPTIONS,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A directory for stores of default sizes: gigabytes, so nothing stays behind."""
    java_or_skip()
    directory = tmp_path / "store"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(pyromq, apache, id="pyromq-to-apache"),
        pytest.param(apache, pyromq, id="apache-to-pyromq", marks=pytest.mark.soak),
    ],
)
async def test_handed_over_after_a_clean_stop(
    first: Starter, second: Starter, store: Path, namesrv: str
) -> None:
    sent = seeds("first", ROUNDS)
    with running(first(store, namesrv)) as server:
        before = await filled(server, sent)
        server.stop()
    assert not (store / "abort").exists()
    with running(second(store, namesrv)) as server:
        async with connected(server) as broker:
            assert await broker.snapshot(sent) == before
            more = seeds("second", 4)
            for seed in more:
                answer = await broker.send(seed)
                _, end = before.limits[seed.topic, seed.queue_id]
                assert answer.queue_offset >= end
            after = await broker.snapshot(sent + more)
        server.stop()
    for place, records in before.records.items():
        assert after.records[place].startswith(records)
    with running(first(store, namesrv)) as server:
        async with connected(server) as broker:
            assert await broker.snapshot(sent + more) == after


@pytest.mark.soak
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(pyromq, apache, id="pyromq-to-apache"),
        pytest.param(apache, pyromq, id="apache-to-pyromq"),
    ],
)
async def test_handed_over_after_a_kill(
    first: Starter, second: Starter, store: Path, namesrv: str
) -> None:
    sent = seeds("first", ROUNDS)
    with running(first(store, namesrv)) as server:
        before = await filled(server, sent)
        server.kill()
    assert (store / "abort").exists()
    with running(second(store, namesrv)) as server:
        async with connected(server) as broker:
            after = await broker.snapshot(sent)
            for topic, queue_id in before.limits:
                answer = await broker.send(Seed(topic, queue_id, [b"goes on"]))
                assert answer.queue_offset == before.limits[topic, queue_id][1]
    # Offsets are written every five seconds: a killed broker may lose the last ones.
    after.consumed = before.consumed
    assert after == before


async def filled(server: Server, sent: list[Seed]) -> Snapshot:
    """Send everything, consume a part of it, and read it all back."""
    async with connected(server) as broker:
        for seed in sent:
            await broker.send(seed)
        for topic in TOPICS:
            await broker.commit(topic, 1, 2)
        snapshot = await broker.snapshot(sent)
    assert sum(end for _, end in snapshot.limits.values()) == sum(len(s.bodies) for s in sent)
    assert snapshot.consumed["ExchangeSingle", 1] == 2
    return snapshot


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A started server that is ended at once, however the block ends: a test that wants a clean
    stop says so, and Java's takes ten seconds.
    """
    try:
        server.start()
        yield server
    finally:
        server.clean_up() if isinstance(server, PyromqServer) else server.kill()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[RawBroker]:
    broker = RawBroker(server.broker_address)
    try:
        yield broker
    finally:
        await broker.close()
