from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.broker.broker import Broker
from pyromq.store.config import BrokerRole
from tests.support.brokers import local_broker, small_store


class Part:
    """A part that notes its calls, with the role that the broker had."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.following = True

    async def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def become_master(self) -> None:
        self.calls.append("become_master")

    async def become_replica(self) -> None:
        self.calls.append("become_replica")

    def is_following(self) -> bool:
        return self.following

    def status(self) -> list[Any]:
        return []


async def test_the_broker_drives_its_replication(tmp_path: Path) -> None:
    part = Part()
    store = small_store(tmp_path, broker_role=BrokerRole.SLAVE)
    broker = Broker(local_broker(broker_id=1), store)
    broker._replication = part
    await broker.start()
    assert broker._assembly is not None
    promotion = broker._assembly.parts.promotion
    assert promotion is not None

    assert not (await promotion.promote(BrokerRole.ASYNC_MASTER)).promoted
    part.following = False
    assert (await promotion.promote(BrokerRole.ASYNC_MASTER)).promoted
    await broker.become_replica(1)
    await broker.stop()

    assert part.calls == ["start", "become_master", "become_replica", "stop"]
