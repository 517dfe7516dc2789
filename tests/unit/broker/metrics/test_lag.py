from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.metrics.lag import LagMetrics
from pyromq.protocol.wire.bodies import MessageModel
from pyromq.store.message_store import MessageStore
from tests.support.metrics import Scrape, collected
from tests.support.requests import pull_request
from tests.unit.broker.metrics.metered import MeteredBroker

LAG = "rocketmq_consumer_lag_messages"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[MeteredBroker]:
    made = MeteredBroker(tmp_path, metrics_queue_topics="shown")
    yield made
    await made.close()


async def scrape(broker: MeteredBroker) -> Scrape:
    await broker.counted()
    return await collected(LagMetrics(broker.parts).collect)


def age(broker: MeteredBroker, milliseconds: int) -> None:
    """Let the clock of the collectors be so far after the first message."""
    first = broker.store.store_time(0)
    assert first is not None
    broker.now = first + milliseconds


async def test_an_offline_group_has_lag(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", b"c", topic="orders")
    broker.put(b"d", topic="orders", queue_id=1)
    broker.commit("g", "orders", 1)
    broker.commit("g", "orders", 1, queue_id=1)
    age(broker, 90_000)
    found = await scrape(broker)
    labels = {"consumer_group": "g", "topic": "orders", "is_retry": "false", "is_system": "false"}
    assert found.value(LAG, **labels) == 2
    assert found.value("pyromq_consumer_queue_lag_max_messages", **labels) == 2
    seconds = found.value("pyromq_consumer_queue_lag_max_seconds", **labels)
    assert 0 < seconds <= 90
    assert found.value("rocketmq_consumer_lag_latency_milliseconds", **labels) == seconds * 1000
    assert found.value("rocketmq_consumer_ready_messages", **labels) == 2
    assert found.value("rocketmq_consumer_inflight_messages", **labels) == 0


async def test_one_stuck_queue_shows(broker: MeteredBroker) -> None:
    broker.put(*[b"x"] * 10, topic="orders", queue_id=2)
    for queue_id, offset in ((0, 0), (1, 0), (2, 3)):
        broker.commit("g", "orders", offset, queue_id)
    found = await scrape(broker)
    assert found.value(LAG, topic="orders") == 7
    assert found.value("pyromq_consumer_queue_lag_max_messages", topic="orders") == 7


async def test_queues_are_shown_for_some_topics(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", topic="shown")
    broker.put(b"a", topic="hidden")
    broker.commit("g", "shown", 1)
    broker.commit("g", "hidden", 0)
    age(broker, 5000)
    found = await scrape(broker)
    name = "pyromq_consumer_queue_lag_messages"
    assert found.values_of(name, "topic") == {"shown"}
    assert found.value(name, topic="shown", queue_id="0") == 1
    assert found.value("pyromq_consumer_queue_lag_seconds", topic="shown", queue_id="0") > 0
    object.__setattr__(broker.config, "metrics_queue_topics", "*")  # as live_config does
    assert (await scrape(broker)).values_of(name, "topic") == {"shown", "hidden"}


async def test_what_was_pulled_is_in_flight(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", b"c", topic="orders")
    broker.commit("g", "orders", 0)
    for _ in range(2):  # the second one through the kernel, if it is there
        broker.fast.exchange(
            pull_request(topic="orders", consumerGroup="g", queueId="0", maxMsgNums="2")
        )
    age(broker, 1000)
    found = await scrape(broker)
    assert found.value(LAG, consumer_group="g") == 3
    assert found.value("rocketmq_consumer_inflight_messages", consumer_group="g") == 2
    assert found.value("rocketmq_consumer_ready_messages", consumer_group="g") == 1
    queueing = found.value("rocketmq_consumer_queueing_latency_milliseconds", consumer_group="g")
    assert 0 < queueing <= 1000


async def test_a_group_that_is_done_has_zeros(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.commit("g", "orders", 1)
    found = await scrape(broker)
    assert {sample.value for sample in found.samples} == {0.0}


async def test_broadcast_groups_have_no_lag(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.commit("g", "orders", 0)
    broker.connect_consumer("g", "orders", model=MessageModel.BROADCASTING)
    assert (await scrape(broker)).samples == []


async def test_deleted_names_disappear(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.commit("g", "orders", 0)
    broker.commit("h", "orders", 0)
    assert (await scrape(broker)).values_of(LAG, "consumer_group") == {"g", "h"}
    broker.groups.delete("g")  # its offsets stay, as with mqadmin deleteSubGroup
    assert (await scrape(broker)).values_of(LAG, "consumer_group") == {"h"}
    broker.topics.delete("orders")
    assert (await scrape(broker)).samples == []


async def test_expired_messages_have_no_age(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", topic="orders")
    broker.commit("g", "orders", 0)
    queue = broker.store.find_queue("orders", 0)
    assert queue is not None
    queue.min_offset = 2
    age(broker, 60_000)
    found = await scrape(broker)
    assert found.value("pyromq_consumer_queue_lag_max_seconds") == 0
    assert found.value(LAG) == 2  # as RocketMQ's tools count


async def test_retry_topics_are_marked(broker: MeteredBroker) -> None:
    broker.topics.create_for_send_back("%RETRY%g", 1)
    broker.commit("g", "%RETRY%g", 0)
    assert (await scrape(broker)).value(LAG, topic="%RETRY%g", is_retry="true") == 0
    broker.put(b"a", topic="%RETRY%g")
    assert (await scrape(broker)).value(LAG, topic="%RETRY%g", is_retry="true") == 1


async def test_times_on_disk_are_read_in_a_thread(
    broker: MeteredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put(b"a", topic="orders")
    broker.commit("g", "orders", 0)
    age(broker, 7000)
    reads = []
    store_time = MessageStore.store_time

    def noted(store: MessageStore, offset: int) -> int | None:
        reads.append(offset)
        return store_time(store, offset)

    monkeypatch.setattr(MessageStore, "is_cold", lambda *_: True)
    monkeypatch.setattr(MessageStore, "store_time", noted)
    metrics = LagMetrics(broker.parts)
    for _ in range(3):
        found = await collected(metrics.collect)
        assert found.value("pyromq_consumer_queue_lag_max_seconds") == 7
    # Once: the time of a stored message never changes.
    assert reads == [0]


async def test_a_slow_disk_does_not_hold_up_a_scrape(
    broker: MeteredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        broker.put(b"a", topic=f"t{number}")
        broker.commit("g", f"t{number}", 0)
    age(broker, 9000)
    monkeypatch.setattr(MessageStore, "is_cold", lambda *_: True)
    monkeypatch.setattr("pyromq.broker.metrics.lag._DISK_SECONDS", 0.0)
    metrics = LagMetrics(broker.parts)
    known = []
    for _ in range(5):
        found = await collected(metrics.collect)
        known.append(
            sum(value > 0 for value in found.series("pyromq_consumer_queue_lag_max_seconds"))
        )
    assert known == [1, 2, 3, 4, 5]
