from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.metrics.exporter import FAMILIES, ExporterMetrics
from pyromq.broker.metrics.lag import LagMetrics
from pyromq.broker.services.stats import PutTimes
from pyromq.broker.state.connections import Client
from pyromq.protocol.wire.codes import LanguageCode
from tests.support.metrics import Scrape, collected
from tests.unit.broker.fakes import FakeConnection
from tests.unit.broker.metrics.metered import MeteredBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[MeteredBroker]:
    made = MeteredBroker(tmp_path, broker_name="b", metrics_exporter_names_enable=True)
    yield made
    await made.close()


async def scrape(broker: MeteredBroker) -> Scrape:
    await broker.counted()
    lag = LagMetrics(broker.parts)
    return await collected(lag.collect, ExporterMetrics(broker.parts, lag).collect)


async def test_off_by_default(tmp_path: Path) -> None:
    broker = MeteredBroker(tmp_path)
    lag = LagMetrics(broker.parts)
    assert (await collected(ExporterMetrics(broker.parts, lag).collect)).samples == []
    await broker.close()


async def test_topics(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", topic="orders")
    broker.put(b"c", topic="orders", queue_id=1)
    broker.topics.create_for_send_back("%RETRY%g", 1)
    broker.topics.create_for_send_back("%DLQ%g", 1)
    broker.put(b"d", topic="%RETRY%g")
    broker.put(b"e", b"f", topic="%DLQ%g")
    found = await scrape(broker)
    assert found.value("rocketmq_producer_offset", topic="orders", broker="b") == 3
    assert found.value("rocketmq_topic_retry_offset", topic="%RETRY%g") == 1
    assert found.value("rocketmq_topic_dlq_offset", group="g") == 2
    assert found.value("rocketmq_group_dlqdiff", group="g", topic="%DLQ%g") == 2
    assert found.series("rocketmq_producer_offset", topic="%RETRY%g") == []


async def test_groups(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b", b"c", topic="orders")
    broker.commit("g", "orders", 1)
    broker.topics.create_for_send_back("%RETRY%g", 1)
    broker.put(b"d", topic="%RETRY%g")
    broker.commit("g", "%RETRY%g", 0)
    broker.connect_consumer("g", "orders")
    broker.producers.register("p", Client(FakeConnection(), "p", LanguageCode.JAVA, 407))
    found = await scrape(broker)
    assert found.value("rocketmq_group_diff", group="g", topic="orders") == 2
    assert found.value("rocketmq_group_retrydiff", group="g", topic="%RETRY%g") == 1
    assert found.value("rocketmq_consumer_offset", group="g", topic="orders") == 1
    assert found.value("rocketmq_group_count", group="g") == 1
    assert found.value("rocketmq_producer_count", group="p") == 1
    assert found.series("rocketmq_group_get_latency_by_storetime", group="g", topic="orders")


async def test_every_runtime_value_is_there(broker: MeteredBroker) -> None:
    broker.put(b"a", b"b")
    found = await scrape(broker)
    runtime = {family.name for family in FAMILIES if "brokeruntime" in family.name}
    assert len(runtime) == 63
    assert runtime <= found.names()
    name = "rocketmq_brokeruntime_"
    assert found.value(f"{name}putmessage_times_total", brokerIP="127.0.0.1:10911") == 2
    assert found.value(f"{name}put_message_size_total") == broker.store.max_physical_offset
    assert found.value(f"{name}commitlog_maxoffset") == broker.store.max_physical_offset
    assert found.value(f"{name}remain_transientstore_buffer_numbs") == 0x7FFFFFFF
    assert 0 < found.value(f"{name}commitlog_disk_ratio") < 1
    assert found.value(f"{name}send_threadpoolqueue_capacity") == 10_000


async def test_put_times(broker: MeteredBroker) -> None:
    broker.stats.put_times = PutTimes(100, (7, 9, 4000, 20_000))
    found = await scrape(broker)
    name = "rocketmq_brokeruntime_pmdt_"
    assert found.value(f"{name}0ms") == 100
    assert found.value(f"{name}0to10ms") == 2
    assert found.value(f"{name}4to5s") == 1
    assert found.value(f"{name}10stomore") == 1
