from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyromq.admin import Admin, AdminError
from pyromq.admin.errors import UnreachableError
from pyromq.admin.messages.fence import Fence, FenceLostError
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.testing import Cluster
from tests.support.patience import until

SOURCE = MessageQueue("%DLQ%billing", "broker-0", 0)


@asynccontextmanager
async def _process(rocketmq: Cluster) -> AsyncIterator[Admin]:
    """Another process: a client with connections of its own."""
    async with Admin(rocketmq.namesrv) as admin:
        yield admin


async def test_one_process_at_a_time(rocketmq: Cluster, admin: Admin) -> None:
    address = rocketmq.brokers[0].address
    waits: list[float] = []
    mine = Fence(admin.session, SOURCE)
    await mine.acquire(address)
    await mine.acquire(address)
    await mine.check(address)
    async with _process(rocketmq) as other:
        theirs = Fence(other.session, SOURCE, waits.append, max_wait=0.3)
        with pytest.raises(AdminError, match="resent by another process"):
            await theirs.acquire(address)
        assert waits
        await Fence(other.session, MessageQueue("%DLQ%other", "broker-0", 0)).acquire(address)

        await mine.release()
        await theirs.acquire(address)


async def test_the_lock_of_a_dead_process_ends_with_its_connection(
    rocketmq: Cluster, admin: Admin
) -> None:
    address = rocketmq.brokers[0].address
    async with _process(rocketmq) as other:
        await Fence(other.session, SOURCE).acquire(address)
        mine = asyncio.create_task(Fence(admin.session, SOURCE).acquire(address))
        await asyncio.sleep(0.3)
        assert not mine.done()
    await mine


async def test_a_lost_connection_loses_the_lock(rocketmq: Cluster, admin: Admin) -> None:
    address = rocketmq.brokers[0].address
    fence = Fence(admin.session, SOURCE)
    await fence.acquire(address)
    connection = await admin.session.client.remoting.connect(address)
    connection._end("cut by the test")
    with pytest.raises(FenceLostError, match="connection"):
        await fence.check(address)
    await fence.restart()
    await fence.check(address)


async def test_a_broker_that_is_gone(rocketmq: Cluster, admin: Admin) -> None:
    address = rocketmq.brokers[0].address
    fence = Fence(admin.session, SOURCE)
    await fence.acquire(address)
    rocketmq.brokers[0].kill()

    async def is_lost() -> bool:
        try:
            await fence.check(address)
        except (UnreachableError, FenceLostError):
            return True
        return False

    await until(is_lost)
    await fence.release()
