"""Several NameServers that know nothing of each other: brokers tell all, clients need one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.client import Message, Producer
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE


@pytest.fixture
async def name_servers(tmp_path: Path) -> AsyncIterator[list[NameServer]]:
    servers = [
        NameServer(
            NamesrvConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(tmp_path / str(number) / "kvConfig.json"),
                config_store_path=str(tmp_path / str(number) / "namesrv.properties"),
            )
        )
        for number in range(2)
    ]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


@pytest.fixture
async def broker(tmp_path: Path, name_servers: list[NameServer]) -> AsyncIterator[Broker]:
    broker = Broker(
        local_broker(
            namesrv_addr=addresses(name_servers),
        ),
        small_store(tmp_path / "store"),
    )
    await broker.start()
    yield broker
    await broker.stop()


def addresses(servers: list[NameServer]) -> str:
    return ";".join(f"127.0.0.1:{server.port}" for server in servers)


async def test_a_broker_registers_with_all_and_leaves_all(
    tmp_path: Path, name_servers: list[NameServer], broker: Broker
) -> None:
    for server in name_servers:
        assert len(server.routes.cluster_info().broker_addr_table) == 1
    await broker.stop()
    for server in name_servers:
        assert not server.routes.cluster_info().broker_addr_table


@pytest.mark.parametrize("gone", [0, 1])
async def test_clients_live_on_when_one_name_server_is_gone(
    name_servers: list[NameServer], broker: Broker, gone: int
) -> None:
    async with asyncio.timeout(DEADLINE):
        async with Producer(addresses(name_servers), group="before") as producer:
            await producer.send(Message("T", b"1"))
            await name_servers[gone].stop()
            await producer.send(Message("T", b"2"))
            await producer.send(Message("NewTopic", b"3"))  # its route must be asked for
        async with Producer(addresses(name_servers), group="after") as producer:
            await producer.send(Message("T", b"4"))
    assert broker.store is not None
    assert broker.store.max_physical_offset > 0
