"""Slow requests and a slow loop: what sends feel of them, in a broker with its sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.cli.logs import logging_to_files
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.requests import send_request

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
        handlers = {**server.service.handlers, ADMIN: slow}
        server.serve(dataclasses.replace(server.service, handlers=handlers))
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
        handlers = {**server.service.handlers, ADMIN: slow}
        server.serve(dataclasses.replace(server.service, handlers=handlers))
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


@pytest.mark.parametrize(
    ("code", "table"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topics"),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groups"),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, "offsets"),
    ],
)
async def test_requests_for_a_whole_table_share_it_and_end_with_their_peers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, code: RequestCode, table: str
) -> None:
    for number in range(2000):
        broker.topics.create_for_send_back(f"topic-with-a-rather-long-name-{number:05}", 1)
        broker.groups.find(f"group-with-a-rather-long-name-{number:05}")
        broker.offsets.commit(f"group-{number:05}", "topic-with-a-rather-long-name", 0, number)
    await broker.topics.file.saved()
    await broker.groups.file.saved()
    snapshots = 0
    snapshot = getattr(broker, table).snapshot

    def counted() -> object:
        nonlocal snapshots
        snapshots += 1
        return snapshot()

    monkeypatch.setattr(getattr(broker, table), "snapshot", counted)
    requests = b"".join(RemotingCommand(code, opaque=number).encode() for number in range(1000))
    peers = [await asyncio.open_connection("127.0.0.1", broker.port, limit=1) for _ in range(4)]
    client = RemotingClient()
    for _, writer in peers:
        writer.write(requests)
    # Changes of the table do not make one for each request either.
    for number in range(20):
        broker.topics.create_for_send_back(f"another-{number}", 1)
        broker.offsets.commit("group-00000", "topic-with-a-rather-long-name", 0, number)
        answer = await client.request(broker.address, RemotingCommand(code), timeout=DEADLINE)
        assert len(answer.body) > 50_000
    for _, writer in peers:
        writer.transport.abort()
    servers = broker._servers
    await until(lambda: sum(len(server.connections) for server in servers) == 1)
    await until(lambda: not any(server.tasks for server in servers))
    assert broker.lanes.admin.size == 0
    # Each of ours waits for two at most, beside the saves of the topics.
    assert snapshots < 150
    await client.close()


async def test_both_ports_count_their_connections_together(tmp_path: Path) -> None:
    broker = Broker(local_broker(max_connections=10), small_store(tmp_path))
    await broker.start()
    request = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.stop)
        for number in range(9):
            client = RemotingClient()
            stack.push_async_callback(client.close)
            address = f"127.0.0.1:{broker.port - 2 * (number % 2)}"
            answer = await client.request(address, request, timeout=DEADLINE)
            assert answer.code == ResponseCode.SUCCESS
        for port in (broker.port, broker.port - 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), DEADLINE) == b""
            writer.close()
        answer = await client.request(address, request, timeout=DEADLINE)
        assert answer.code == ResponseCode.SUCCESS


async def test_a_peer_can_neither_fill_nor_forge_the_log(tmp_path: Path) -> None:
    level = logging.getLogger().level
    forged = "x\n2026-11-17 00:00:00,000 INFO    pyromq.broker.broker - topic orders deleted"
    requests = [
        RemotingCommand(RequestCode.HEART_BEAT, body=b"{"),
        RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"' + b"9" * 100_000),
        RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields={"topic": "t", "maxNum": forged}),
        RemotingCommand(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, ext_fields={"groupName": forged + "y" * 100_000}
        ),
        RemotingCommand(
            RequestCode.CLONE_GROUP_OFFSET,
            ext_fields={"srcGroup": "s", "destGroup": "d", "topic": forged, "offline": "true"},
        ),
    ]
    with logging_to_files("INFO", tmp_path / "logs", ("broker.log",), 1 << 30, 1):
        broker = Broker(local_broker(), small_store(tmp_path / "store"))
        await broker.start()
        client = RemotingClient()
        for number in range(2000):
            request = dataclasses.replace(requests[number % len(requests)], opaque=0)
            answer = await client.request(broker.address, request, timeout=DEADLINE)
            assert len(answer.remark or "") < 5000
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), DEADLINE)
            writer.close()
        await client.close()
        await broker.stop()
    logging.getLogger().setLevel(level)

    text = (tmp_path / "logs" / "broker.log").read_text()
    lines = text.splitlines()
    assert not any(line.startswith("2026-11-17 00:00:00,000") for line in lines)
    assert all(line.startswith("    ") or re.match(r"\d{4}-\d\d-\d\d ", line) for line in lines)
    assert len(text) < 1_000_000
    assert len(lines) < 1500
    counted = [line for line in lines if "similar lines dropped" in line]
    assert any("request %d failed" in line for line in counted)
    assert any("no RocketMQ frame" in line for line in counted)
