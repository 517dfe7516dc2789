from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyromq.client.consumer.lite_pull import readers as queue_readers
from pyromq.client.consumer.lite_pull.read_ahead import ReadAhead, Reading
from pyromq.client.consumer.lite_pull.readers import QueueReaders
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.subscription import Subscription, TopicSubscription
from pyromq.client.errors import BrokerError
from pyromq.client.options import Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster

QUEUE = MessageQueue("t", "b0", 0)
PULL = RequestCode.PULL_MESSAGE


class Owner:
    """Read one queue of a fake cluster."""

    def __init__(self, cluster: FakeCluster, limits: Limits) -> None:
        self.broker = cluster.brokers[0]
        self.session = Session(Settings.of(cluster.namesrv, {}), HeartbeatData)
        self.ahead = ReadAhead(limits, 1000)
        self.subscriptions = {"t": TopicSubscription(Subscription())}
        self.refusals: list[BrokerError] = []
        self.arrivals = 0
        self.failures = 0
        self.reading = Reading(QUEUE)
        self.readers = QueueReaders(
            self.session,
            QueueAccess(self.session, None),
            self.ahead,
            self.subscriptions,
            pull_batch_size=2,
            arrived=self.arrived,
            refused=self.refusals.append,
        )

    async def find_start(self, reading: Reading) -> None:
        if self.failures:
            self.failures -= 1
            raise LookupError
        reading.next_offset = reading.consumed = 0

    def arrived(self) -> None:
        self.arrivals += 1

    def pulls(self) -> int:
        return len(self.broker.seen(PULL))


@asynccontextmanager
async def owner(limits: Limits | None = None) -> AsyncIterator[Owner]:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        reader = Owner(cluster, limits or Limits())
        reader.session.start()
        try:
            yield reader
        finally:
            await reader.readers.stop(reader.reading)
            await reader.session.close()


async def fill(reader: Owner, count: int) -> None:
    for number in range(count):
        await reader.broker.put("t", 0, b"%d" % number)


async def test_a_queue_is_pulled_ahead_of_the_reader_while_there_is_room() -> None:
    async with owner(Limits(messages=4)) as reader:
        await fill(reader, 10)
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.ahead.count == 4)
        reader.ahead.next_batch()
        assert reader.pulls() == 2
        await until(lambda: reader.ahead.count == 4)
        assert (reader.pulls(), reader.arrivals) == (3, 3)
        assert reader.readers.is_reading(reader.reading)


async def test_a_stopped_queue_is_not_pulled() -> None:
    async with owner() as reader:
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.pulls() == 1)
        await reader.readers.stop(reader.reading)
        await reader.readers.stop(reader.reading)
        assert not reader.readers.is_reading(reader.reading)
        await fill(reader, 1)
        await asyncio.sleep(0.01)
        assert (reader.ahead.count, reader.pulls()) == (0, 1)


async def test_a_restarted_pull_uses_the_new_filter() -> None:
    async with owner() as reader:
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.pulls() == 1)
        reader.subscriptions["t"] = TopicSubscription(Subscription.tags("a"))
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.pulls() == 2)
        assert reader.broker.seen(PULL)[1].ext_fields["subscription"] == "a"


async def test_failures_are_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_readers, "_FIRST_PAUSE_SECONDS", 0.001)
    async with owner() as reader:
        await fill(reader, 1)
        reader.failures = 2
        reader.broker.refusals[PULL] = [(ResponseCode.SYSTEM_BUSY, "busy")]
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.ahead.count == 1)
        assert caplog.text.count("Traceback") == 2
        assert caplog.text.count("busy") == 1
        assert reader.refusals == []


async def test_permanent_refusals_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_readers, "_MAX_PAUSE_SECONDS", 0.001)
    async with owner() as reader:
        await fill(reader, 1)
        reader.broker.refusals[PULL] = [(ResponseCode.NO_PERMISSION, "never")] * 2
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.ahead.count == 1)
        assert [error.remark for error in reader.refusals] == ["never", "never"]


async def test_an_unsubscribed_topic_is_not_pulled() -> None:
    async with owner() as reader:
        reader.subscriptions.clear()
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.reading.next_offset == 0)
        await asyncio.sleep(0.01)
        assert reader.pulls() == 0


async def test_a_broker_that_keeps_moving_offsets_is_not_flooded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with owner() as reader:
        broker = reader.broker

        async def moved(command: RemotingCommand, _writer: object) -> RemotingCommand:
            following = int(command.ext_fields["queueOffset"]) ^ 1
            return broker._pulled(command, ResponseCode.PULL_OFFSET_MOVED, following, [])

        monkeypatch.setattr(broker, "_pull_message", moved)
        began = time.monotonic()
        reader.readers.start(reader.reading, reader.find_start)
        await until(lambda: reader.pulls() >= 4)
        # At most one every 0.05 s.
        assert reader.pulls() <= 1 + (time.monotonic() - began) / 0.05
