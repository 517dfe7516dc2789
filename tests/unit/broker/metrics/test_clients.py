from __future__ import annotations

from pyromq.broker.metrics.clients import ClientMetrics
from pyromq.broker.state.connections import Client
from pyromq.protocol.wire.codes import LanguageCode
from tests.support.metrics import Scrape, collected
from tests.unit.broker.fakes import FakeConnection
from tests.unit.broker.metrics.metered import MeteredBroker

PROCESSORS = {
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat"),
    *("lite_pull", "transaction", "consumer_manager", "admin", "reply"),
}


async def scrape(broker: MeteredBroker) -> Scrape:
    return await collected(ClientMetrics(broker.parts, broker.instruments).collect)


async def test_connections(broker: MeteredBroker) -> None:
    consumer = broker.connect_consumer("g", "orders")
    for name in ("p", "q"):
        broker.producers.register(name, Client(FakeConnection(name), name, LanguageCode.GO, 401))
    found = await scrape(broker)
    producer = {"language": "go", "version": "v4_9_4", "protocol_type": "remoting"}
    assert found.value("rocketmq_producer_connections", **producer) == 2
    labels = {
        "consumer_group": "g",
        "language": "java",
        "version": "v4_9_7",
        "consume_mode": "push",
        "is_system": "false",
    }
    assert found.value("rocketmq_consumer_connections", **labels) == 1
    broker.consumers.disconnect(consumer)
    assert (await scrape(broker)).series("rocketmq_consumer_connections") == []


async def test_processors(broker: MeteredBroker) -> None:
    found = await scrape(broker)
    assert found.values_of("rocketmq_processor_watermark", "processor") == PROCESSORS
    assert found.value("rocketmq_processor_watermark", processor="admin") == 0
    assert found.value("pyromq_parked_pulls") == 0


async def test_latencies_by_request(broker: MeteredBroker) -> None:
    broker.put(b"a")  # creates the topic, so the kernel leaves it to the handlers
    found = await scrape(broker)
    labels = {
        "request_code": "send_message_v2",
        "response_code": "any",
        "result": "success",
        "protocol_type": "remoting",
        "is_long_polling": "false",
    }
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert found.value(name, **labels) == 1
    # Requests that nobody sent have no series.
    assert found.series(name, request_code="pull_message") == []
