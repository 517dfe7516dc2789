from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.services import name_server_lookup
from pyromq.broker.services.name_server_lookup import NameServerLookup
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from tests.support.brokers import local_broker, small_store
from tests.support.patience import until
from tests.unit.base.test_address_server import AddressServer


@pytest.fixture
def server() -> Iterator[AddressServer]:
    server = AddressServer()
    yield server
    server.close()


class Registration:
    """Takes note of the lists it gets."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []

    async def set_name_servers(self, addresses: list[str]) -> None:
        self.lists.append(addresses)


async def test_a_bad_answer_keeps_the_last_good_list(
    server: AddressServer, caplog: pytest.LogCaptureFixture
) -> None:
    registration = Registration()
    config = BrokerConfig(rmq_address_server_domain=server.domain)
    lookup = NameServerLookup(config, registration)  # type: ignore[arg-type]
    server.status = 500
    await lookup.ask()
    assert "the broker is not registered, asking again in 10 s" in caplog.text
    assert lookup.interval() == 10
    server.status = 200
    await lookup.ask()
    await lookup.ask()
    assert lookup.interval() == 120
    for bad in (b"not an address", b"", b"<html>no</html>"):
        server.body = bad
        await lookup.ask()
        await lookup.ask()
    server.body = b"10.0.0.9:9876"
    await lookup.ask()
    assert registration.lists == [["10.0.0.1:9876", "10.0.0.2:9876"], ["10.0.0.9:9876"]]
    assert caplog.text.count("keeping 10.0.0.1:9876;10.0.0.2:9876, asking again in 120 s") == 3


async def test_a_broker_follows_its_address_server(
    tmp_path: Path, server: AddressServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server_lookup, "FETCH_SECONDS", 0.05)
    first, second = (
        NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / f"kv{number}")))
        for number in (1, 2)
    )
    await first.start()
    await second.start()
    server.body = f"127.0.0.1:{first.port}\n".encode()
    config = local_broker(
        namesrv_addr=None,
        fetch_namesrv_addr_by_address_server=True,
        rmq_address_server_domain=server.domain,
        rmq_address_server_sub_group="eu",
    )
    broker = Broker(config, small_store(tmp_path / "store"))
    await broker.start()
    try:
        await until(lambda: _is_known(first, config.broker_name))
        server.body = f"127.0.0.1:{second.port}\n".encode()
        await until(lambda: _is_known(second, config.broker_name))
        await until(lambda: not _is_known(first, config.broker_name))
        assert set(server.paths) == {"/rocketmq/eu"}
    finally:
        await broker.stop()
        await first.stop()
        await second.stop()


def _is_known(name_server: NameServer, broker_name: str) -> bool:
    return broker_name in str(name_server.routes.cluster_info())
