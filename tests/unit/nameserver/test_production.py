from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.production import ProductionRoutes
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader, RegisterBrokerRequestHeader
from pyromq.remoting.client import RemotingClient


def name_server(directory: Path, *, cluster_test: bool = False) -> NameServer:
    return NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            cluster_test=cluster_test,
            kv_config_path=str(directory / "kvConfig.json"),
            config_store_path=str(directory / "namesrv.properties"),
        )
    )


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


@pytest.fixture
async def production(tmp_path: Path, client: RemotingClient) -> AsyncIterator[NameServer]:
    """A NameServer that knows a topic."""
    server = name_server(tmp_path)
    await server.start()
    header = RegisterBrokerRequestHeader(
        broker_name="a",
        broker_addr="10.0.0.1:10911",
        cluster_name="c",
        ha_server_addr="10.0.0.1:10912",
        broker_id=0,
    )
    wrapper = TopicConfigSerializeWrapper({"orders": TopicConfig("orders", 4, 4)})
    request = RemotingCommand(
        RequestCode.REGISTER_BROKER,
        ext_fields=header.encode(),
        body=RegisterBrokerBody(wrapper).encode(),
    )
    answer = await client.request(address_of(server), request)
    assert answer.code == ResponseCode.SUCCESS
    yield server
    await server.stop()


def address_of(server: NameServer) -> str:
    return f"127.0.0.1:{server.port}"


async def route(client: RemotingClient, server: NameServer, topic: str) -> RemotingCommand:
    fields = GetRouteInfoRequestHeader(topic).encode()
    return await client.request(
        address_of(server), RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=fields)
    )


async def test_a_test_cluster_knows_the_topics_of_production(
    tmp_path: Path,
    client: RemotingClient,
    production: NameServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first one is not there; the second one knows.
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{address_of(production)}")
    testing = name_server(tmp_path / "test", cluster_test=True)
    await testing.start()
    try:
        found = await route(client, testing, "orders")
        assert found.code == ResponseCode.SUCCESS
        (broker,) = TopicRouteData.decode(found.body).broker_datas
        assert broker.broker_addrs == {0: "10.0.0.1:10911"}
        missing = await route(client, testing, "nowhere")
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    finally:
        await testing.stop()


async def test_without_cluster_test_nobody_is_asked(
    tmp_path: Path,
    client: RemotingClient,
    production: NameServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", address_of(production))
    other = name_server(tmp_path / "other")
    await other.start()
    try:
        assert (await route(client, other, "orders")).code == ResponseCode.TOPIC_NOT_EXIST
    finally:
        await other.stop()


async def test_servers_that_name_themselves_do_not_ask_in_circles(
    tmp_path: Path, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    testing = name_server(tmp_path / "test", cluster_test=True)
    await testing.start()
    monkeypatch.setenv("NAMESRV_ADDR", address_of(testing))
    try:
        assert (await route(client, testing, "orders")).code == ResponseCode.TOPIC_NOT_EXIST
    finally:
        await testing.stop()


@pytest.mark.parametrize("environment", [{}, {"NAMESRV_ADDR": "nonsense"}])
async def test_without_addresses_there_is_no_route(environment: dict[str, str]) -> None:
    routes = ProductionRoutes(environment)

    assert await routes.route("orders") is None
    await routes.close()
