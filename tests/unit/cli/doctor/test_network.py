from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from pyromq.broker.broker import Broker
from pyromq.cli.doctor.finding import Finding, Level
from pyromq.cli.doctor.network import Access, examine_broker, examine_name_server, probe
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from tests.support.apache_rocketmq import free_port
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, wait_until

ACCESS = Access(timeout=DEADLINE)


async def findings(examine: Callable[[], Iterator[Finding]]) -> dict[str, Finding]:
    return await asyncio.to_thread(lambda: {each.check: each for each in examine()})


async def test_a_running_cluster(tmp_path: Path) -> None:
    name_server = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kv.json"),
            config_store_path=str(tmp_path / "n.properties"),
        )
    )
    await name_server.start()
    at = f"127.0.0.1:{name_server.port}"
    broker = Broker(local_broker(broker_name="b", namesrv_addr=at), small_store(tmp_path / "s"))
    await broker.start()
    try:
        found = await findings(
            lambda: examine_broker(broker.address, ACCESS, has_replica_port=True)
        )
        assert found["broker"].level is Level.OK
        assert found["broker clock"].level is Level.OK
        assert found["port"].level is Level.OK
        for name, level in (("b", Level.OK), ("other", Level.FAIL)):

            def ask(name: str = name) -> Iterator[Finding]:
                return examine_name_server(at, ACCESS, name)

            if level is Level.OK:
                await until_registered(ask)
            assert (await findings(ask))["registration"].level is level
        both = await asyncio.to_thread(lambda: list(probe([broker.address, at], ACCESS)))
        assert [each.level for each in both] == [Level.OK, Level.OK]
    finally:
        await broker.stop()
        await name_server.stop()


async def until_registered(ask: Callable[[], Iterator[Finding]]) -> None:
    def is_registered() -> bool:
        return {each.check: each.level for each in ask()}.get("registration") is Level.OK

    await asyncio.to_thread(wait_until, is_registered)


def test_nobody_is_there() -> None:
    address = f"127.0.0.1:{free_port()}"
    access = Access(timeout=5)
    for found in (
        list(examine_broker(address, access, has_replica_port=True)),
        list(examine_name_server(address, access, "b")),
        list(probe([address], access)),
        list(examine_broker("nonsense", access, has_replica_port=True)),
    ):
        assert [each.level for each in found] == [Level.FAIL]
        assert found[0].advice
