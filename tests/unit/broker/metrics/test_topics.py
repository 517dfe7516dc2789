from __future__ import annotations

from pyromq.broker.metrics.topics import TopicMetrics
from tests.support.metrics import Scrape, collected
from tests.support.requests import pull_request
from tests.unit.broker.metrics.metered import MeteredBroker


async def scrape(broker: MeteredBroker, *, orphans: int = 0) -> Scrape:
    await broker.counted()
    return await collected(TopicMetrics(broker.parts, orphans=lambda: orphans).collect)


async def test_messages_in(broker: MeteredBroker) -> None:
    broker.put(b"a" * 100, b"b" * 2000, topic="orders")
    found = await scrape(broker)
    labels = {"topic": "orders", "message_type": "normal", "is_system": "false"}
    assert found.value("rocketmq_messages_in_total", **labels) == 2
    stored = broker.store.max_physical_offset
    assert found.value("rocketmq_throughput_in_total", **labels) == stored
    assert found.value("rocketmq_message_size_bytes_bucket", le="1024.0", **labels) == 1
    assert found.value("rocketmq_message_size_bytes_bucket", le="4096.0", **labels) == 2
    assert found.value("rocketmq_message_size_bytes_sum", **labels) == stored


async def test_a_topic_without_messages_has_zeros(broker: MeteredBroker) -> None:
    broker.topics.create_for_send("quiet", "TBW102", 4)
    found = await scrape(broker)
    assert found.value("rocketmq_messages_in_total", topic="quiet") == 0
    assert found.series("rocketmq_message_size_bytes_count", topic="quiet") == []
    assert (
        found.value(
            "rocketmq_messages_in_total",
            topic="SCHEDULE_TOPIC_XXXX",
            is_system="true",
            message_type="delay",
        )
        == 0
    )


async def test_retry_and_dead_letter_topics_do_not_count(broker: MeteredBroker) -> None:
    broker.topics.create_for_send_back("%RETRY%g", 1)
    broker.topics.create_for_send_back("%DLQ%g", 1)
    topics = (await scrape(broker)).values_of("rocketmq_messages_in_total", "topic")
    assert "SELF_TEST_TOPIC" in topics
    assert not {"%RETRY%g", "%DLQ%g"} & topics


async def test_messages_out(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", topic="orders")
    broker.groups.find("g")
    broker.fast.exchange(pull_request(topic="orders", consumerGroup="g", queueId="0"))
    found = await scrape(broker)
    labels = {"topic": "orders", "consumer_group": "g", "is_retry": "false", "is_system": "false"}
    assert found.value("rocketmq_messages_out_total", **labels) == 2
    assert (
        found.value("rocketmq_throughput_out_total", **labels) == broker.store.max_physical_offset
    )


async def test_deleted_topics_and_groups_disappear(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.groups.find("g")
    broker.stats.pulled("g", "orders", 0, 1, 10)
    broker.stats.sent_back("g", "orders")
    broker.stats.sent_to_dlq("g", "orders")
    broker.stats.transaction_ended("orders", is_commit=True)
    names = (
        "rocketmq_messages_in_total",
        "rocketmq_messages_out_total",
        "rocketmq_send_to_dlq_messages_total",
        "pyromq_sent_back_messages_total",
        "rocketmq_commit_messages_total",
    )
    found = await scrape(broker)
    assert all("orders" in found.values_of(name, "topic") for name in names)
    broker.groups.delete("g")
    found = await scrape(broker)
    assert found.series("rocketmq_messages_out_total") == []
    assert found.series("rocketmq_send_to_dlq_messages_total") == []
    broker.topics.delete("orders")
    found = await scrape(broker)
    assert not any("orders" in found.values_of(name, "topic") for name in names)


async def test_failures(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.groups.find("g")
    for _ in range(3):
        broker.stats.sent_back("g", "orders")
    broker.stats.sent_to_dlq("g", "orders")
    found = await scrape(broker)
    assert found.value("pyromq_sent_back_messages_total", consumer_group="g", topic="orders") == 3
    assert found.value("rocketmq_send_to_dlq_messages_total", consumer_group="g") == 1
    assert found.value("pyromq_refused_puts_total") == 0


async def test_transactions(broker: MeteredBroker) -> None:
    broker.put(b"a", topic="orders")
    broker.stats.transaction_ended("orders", is_commit=True)
    broker.stats.transaction_ended("orders", is_commit=False)
    broker.stats.transaction_ended("orders", is_commit=False)
    found = await scrape(broker, orphans=5)
    assert found.value("rocketmq_commit_messages_total", topic="orders") == 1
    assert found.value("rocketmq_rollback_messages_total", topic="orders") == 2
    assert found.value("rocketmq_half_messages") == 0
    assert found.value("pyromq_half_messages_without_producer") == 5
