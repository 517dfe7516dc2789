"""A NameServer on a real socket, asked by a real client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.nameserver import server as server_module
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.kv_config import KVConfigFileError
from pyromq.nameserver.route_table import BROKER_EXPIRY
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import Encoding, RemotingCommand
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader, RegisterBrokerRequestHeader
from pyromq.protocol.wire.headers_admin import PutKVConfigRequestHeader
from pyromq.remoting.client import RemotingClient
from tests.support.patience import DEADLINE, until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def config(directory: Path) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(directory / "kvConfig.json"),
        config_store_path=str(directory / "namesrv.properties"),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def name_server(tmp_path: Path, clock: Clock) -> AsyncIterator[NameServer]:
    name_server = NameServer(config(tmp_path), clock)
    await name_server.start()
    yield name_server
    await name_server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


async def ask(
    client: RemotingClient, name_server: NameServer, command: RemotingCommand
) -> RemotingCommand:
    return await client.request(f"127.0.0.1:{name_server.port}", command)


async def register(client: RemotingClient, name_server: NameServer) -> RemotingCommand:
    header = RegisterBrokerRequestHeader("broker-a", "a:1", "c", "a:2", 0)
    body = RegisterBrokerBody(TopicConfigSerializeWrapper({"t": TopicConfig("t")}))
    command = RemotingCommand(
        RequestCode.REGISTER_BROKER, ext_fields=header.encode(), body=body.encode()
    )
    return await ask(client, name_server, command)


def route_request(encoding: Encoding = Encoding.JSON) -> RemotingCommand:
    return RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        ext_fields=GetRouteInfoRequestHeader("t").encode(),
        encoding=encoding,
    )


@pytest.mark.parametrize("encoding", Encoding)
async def test_register_and_ask(
    name_server: NameServer, client: RemotingClient, encoding: Encoding
) -> None:
    assert (await register(client, name_server)).code == ResponseCode.SUCCESS
    answer = await ask(client, name_server, route_request(encoding))
    assert answer.code == ResponseCode.SUCCESS
    assert TopicRouteData.decode(answer.body).broker_datas[0].broker_addrs == {0: "a:1"}


async def test_errors_are_answers(name_server: NameServer, client: RemotingClient) -> None:
    answer = await ask(client, name_server, route_request())
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    answer = await ask(client, name_server, RemotingCommand(RequestCode.REGISTER_BROKER))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "RegisterBrokerRequestHeader: field brokerName is missing" in (answer.remark or "")
    answer = await ask(client, name_server, RemotingCommand(RequestCode.SEND_MESSAGE))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_broker_that_disconnects_is_removed(
    name_server: NameServer, client: RemotingClient
) -> None:
    broker = RemotingClient()
    await register(broker, name_server)
    assert (await ask(client, name_server, route_request())).code == ResponseCode.SUCCESS
    await broker.close()
    await until(lambda: name_server.routes.route("t") is None)


async def test_a_silent_broker_is_removed_and_its_connection_closed(
    name_server: NameServer, client: RemotingClient, clock: Clock
) -> None:
    await register(client, name_server)
    clock.now = BROKER_EXPIRY
    name_server.remove_dead_brokers()
    assert name_server.routes.route("t") is not None
    clock.now = BROKER_EXPIRY + 1
    name_server.remove_dead_brokers()
    assert name_server.routes.route("t") is None
    await until(lambda: not name_server._server.connections)


async def test_dead_brokers_are_looked_for_all_the_time(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_SCAN", 0.0)
    monkeypatch.setattr(server_module, "SCAN_INTERVAL", 0.005)
    name_server = NameServer(config(tmp_path), clock)
    await name_server.start()
    try:
        for _ in range(2):
            broker = RemotingClient()
            await register(broker, name_server)
            clock.now += BROKER_EXPIRY + 1
            await until(lambda: not name_server._server.connections)
            assert name_server.routes.route("t") is None
            await broker.close()
    finally:
        await name_server.stop()


async def test_a_scan_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_SCAN", 0.0)
    monkeypatch.setattr(server_module, "SCAN_INTERVAL", 0.005)
    name_server = NameServer(config(tmp_path))
    scans = 0

    def fail(_: float) -> list[Any]:
        nonlocal scans
        scans += 1
        raise RuntimeError("broken table")

    monkeypatch.setattr(name_server.routes, "remove_expired", fail)
    await name_server.start()
    try:
        await until(lambda: scans >= 3)
    finally:
        await name_server.stop()


async def test_kv_configuration_survives_a_restart(tmp_path: Path, client: RemotingClient) -> None:
    put = PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "t", "broker-a:4").encode()
    first = NameServer(config(tmp_path))
    await first.start()
    answer = await ask(client, first, RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=put))
    assert answer.code == ResponseCode.SUCCESS
    await first.stop()
    second = NameServer(config(tmp_path))
    await second.start()
    try:
        assert b"broker-a:4" in (await register(client, second)).body
    finally:
        await second.stop()


async def test_a_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with open(settings.kv_config_path, "wb") as file:  # noqa: ASYNC230
        file.write(b"{")
    name_server = NameServer(settings)
    with pytest.raises(KVConfigFileError, match=settings.kv_config_path):
        await name_server.start()
    await name_server.stop()


async def test_stop_twice_and_without_start(tmp_path: Path) -> None:
    name_server = NameServer(config(tmp_path))
    await name_server.stop()
    await name_server.start()
    await name_server.stop()
    await name_server.stop()


async def test_a_port_in_use_is_an_error(tmp_path: Path, name_server: NameServer) -> None:
    second = NameServer(
        NamesrvConfig(
            listen_port=name_server.port,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "other.json"),
        )
    )
    with pytest.raises(OSError, match=r"address already in use|Address already in use"):
        await second.start()
    await second.stop()


async def test_connections_and_unfinished_requests_have_the_limits_of_the_settings(
    tmp_path: Path,
) -> None:
    settings = dataclasses.replace(
        config(tmp_path), max_connections=10, max_received_bytes=1_000_000
    )
    name_server = NameServer(settings)
    await name_server.start()
    peers = [await asyncio.open_connection("127.0.0.1", name_server.port) for _ in range(9)]
    refused, closed = await asyncio.open_connection("127.0.0.1", name_server.port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(refused.read(), DEADLINE) == b""
    connections = name_server._server.connections
    await until(lambda: len(connections) == 9)
    for _, writer in peers:
        writer.write((8_000_000).to_bytes(4, "big") + bytes(200_000))
    await until(lambda: len(connections) < 9)
    for writer in (closed, *(writer for _, writer in peers)):
        writer.transport.abort()
    await name_server.stop()
