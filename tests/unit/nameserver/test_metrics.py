from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.metrics.settings import ExporterType
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.metrics import FAMILIES
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.metrics import fetched, scraped
from tests.support.patience import DEADLINE


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    made = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kv.json"),
            metrics_exporter_type=ExporterType.PROM,
            metrics_prom_exporter_port=0,
        )
    )
    await made.start()
    yield made
    await made.stop()
    await made.stop()


def port_of(server: NameServer) -> int:
    assert server.metrics_port is not None
    return server.metrics_port


async def test_an_empty_name_server(server: NameServer) -> None:
    found = await scraped(port_of(server))
    assert found.value("pyromq_nameserver_info", node_type="nameserver") == 1
    assert found.value("pyromq_nameserver_topics") == 0
    status, text = await fetched(port_of(server), "/readyz")
    assert (status, json.loads(text)["checks"]) == (200, {"running": "ok"})


async def test_brokers_and_requests(server: NameServer, tmp_path: Path) -> None:
    broker = Broker(
        local_broker(broker_name="b", namesrv_addr=f"127.0.0.1:{server.port}"),
        small_store(tmp_path / "store"),
    )
    await broker.start()
    client = RemotingClient()
    try:
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        await client.request(f"127.0.0.1:{server.port}", request, DEADLINE)
        found = await scraped(port_of(server))
        labels = {"broker_cluster": "DefaultCluster", "role": "master"}
        assert found.value("pyromq_nameserver_brokers", **labels) == 1
        assert found.value("pyromq_nameserver_broker_has_master", broker="b") == 1
        assert found.value("pyromq_nameserver_broker_last_seen_seconds", broker="b") >= 0
        assert found.value("pyromq_nameserver_topics") > 0
        name = "pyromq_nameserver_requests_total"
        assert found.value(name, request_code="get_broker_cluster_info") == 1
        assert found.value(name, request_code="register_broker") >= 1
        known = {family.name.removesuffix("_total") for family in FAMILIES}
        served = {family.name.removesuffix("_total") for family in found.families}
        assert {name for name in served if name.startswith("pyromq_")} <= known
    finally:
        await client.close()
        await broker.stop()
    found = await scraped(port_of(server))
    assert found.series("pyromq_nameserver_broker_has_master") == []


def test_without_metrics_there_is_no_port(tmp_path: Path) -> None:
    server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
    assert server.metrics_port is None
