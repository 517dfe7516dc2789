from __future__ import annotations

import time

from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from pyromq.client.consumer.push.info import running_info
from pyromq.client.consumer.push.options import Order, PushSettings
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.protocol.wire.bodies import MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_consumer import ConsumeStatus, ProcessQueueInfo
from tests.unit.client.received_messages import QUEUE, received
from tests.unit.client.sessions import session_at


async def test_running_info_uses_java_names() -> None:
    before = int(time.time() * 1000) - 10_100
    process_queue = ProcessQueue(QUEUE, 5, Limits())
    process_queue.put([received(offset, bytes(1024 * 1024)) for offset in (5, 7)], 9)
    process_queue.last_locked = process_queue.last_pulled = time.monotonic() - 10
    waiting = MessageQueue("t", "b0", 1)
    async with session_at("127.0.0.1:1;127.0.0.1:2", namespace="tenant") as session:
        info = running_info(
            session,
            "g",
            PushSettings(order=Order.ORDERLY, max_handlers=7),
            started_at=12_000,
            subscriptions=[SubscriptionData("t")],
            process_queues={QUEUE: process_queue, waiting: None},
            stats={"t": TopicStats()},
        )
    for name, value in {
        "PROP_NAMESERVER_ADDR": "127.0.0.1:1;127.0.0.1:2",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "true",
        "PROP_THREADPOOL_CORE_SIZE": "7",
        "PROP_CONSUMER_START_TIMESTAMP": "12000",
        "consumerGroup": "tenant%g",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    }.items():
        assert info.properties[name] == value
    assert info.mq_table[waiting] == ProcessQueueInfo()
    state = info.mq_table[QUEUE]
    assert before <= state.last_lock_timestamp <= int(time.time() * 1000)
    assert before <= state.last_pull_timestamp <= int(time.time() * 1000)
    assert (state.commit_offset, state.cached_msg_min_offset, state.cached_msg_max_offset) == (
        5,
        5,
        7,
    )
    assert (state.cached_msg_count, state.cached_msg_size_in_mib, state.locked) == (2, 2, True)
    assert (state.last_consume_timestamp, state.droped) == (0, False)
    assert info.status_table == {"t": ConsumeStatus()}
