"""Slow requests and a slow loop: what sends feel of them, in a broker with its sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE
from tests.unit.broker.wired import send_request

ADMIN = RequestCode.GET_BROKER_RUNTIME_INFO


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = local_broker()
    broker = Broker(config, small_store(tmp_path))
    await broker.start()
    yield broker
    await broker.stop()


async def test_a_slow_admin_request_delays_no_send(broker: Broker) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def slow_work() -> None:
        begun.set()
        assert let_go.wait(DEADLINE)

    async def slow(_: object, request: RemotingCommand) -> RemotingCommand:
        await broker.lanes.admin.run(slow_work)
        return request.answer()

    for server in broker._servers:
        server.handlers = {**server.handlers, ADMIN: slow}
    client = RemotingClient()
    admin = asyncio.create_task(
        client.request(broker.address, RemotingCommand(ADMIN), timeout=DEADLINE)
    )
    assert await asyncio.to_thread(begun.wait, DEADLINE)

    for _ in range(200):
        answer = await client.request(broker.address, send_request(), timeout=DEADLINE)
        assert answer.code == ResponseCode.SUCCESS

    assert not admin.done()
    let_go.set()
    assert (await admin).code == ResponseCode.SUCCESS
    await client.close()


async def test_a_stop_answers_what_is_under_way_and_refuses_new_sends(tmp_path: Path) -> None:
    config = local_broker()
    broker = Broker(config, small_store(tmp_path))
    await broker.start()
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def slow(_: object, request: RemotingCommand) -> RemotingCommand:
        begun.set()
        await let_go.wait()
        return request.answer(remark="done")

    for server in broker._servers:
        server.handlers = {**server.handlers, ADMIN: slow}
    client = RemotingClient()
    under_way = asyncio.create_task(
        client.request(broker.address, RemotingCommand(ADMIN), timeout=DEADLINE)
    )
    await begun.wait()
    stopping = asyncio.create_task(broker.stop())

    async with asyncio.timeout(DEADLINE):
        while True:
            answer = await client.request(broker.address, send_request(), timeout=DEADLINE)
            if answer.code != ResponseCode.SUCCESS:
                break
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    let_go.set()
    assert (await under_way).remark == "done"
    await stopping
    assert not (tmp_path / "abort").exists()
    await client.close()
