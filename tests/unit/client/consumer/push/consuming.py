"""Handler and cluster shared by the tests of the push consumer."""

from __future__ import annotations

import asyncio
from typing import Any

from pyromq.client.consumer.push.consumer import PushConsumer
from pyromq.client.consumer.push.handling import Retry
from pyromq.client.consumer.start_from import StartFrom
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster

TOPICS = {"t": {"b0": 2}, "%RETRY%g": {"b0": 1}}
FIRST, SECOND = (MessageQueue("t", "b0", number) for number in range(2))


class Handler:
    """Record message bodies; wait at `gate`, return `result`."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.result: Retry | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: ReceivedMessage) -> Retry | None:
        self.seen.append(message.body)
        await self.gate.wait()
        return self.result


def make(cluster: FakeCluster, handler: Any, **options: Any) -> PushConsumer:
    return PushConsumer(
        cluster.namesrv,
        **{
            "group": "g",
            "handler": handler,
            "subscriptions": {"t": "*"},
            "start_from": StartFrom.FIRST,
            **options,
        },
    )


def heartbeat(broker: FakeBroker) -> HeartbeatData:
    return HeartbeatData.decode(broker.seen(RequestCode.HEART_BEAT)[-1].body)
