from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from click.testing import CliRunner, Result

from pyromq.cli.broker import broker
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(replicas=1, settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic("T", queues=1)
        cluster.brokers[0].await_replicas()
        yield cluster


def show(*arguments: str) -> Result:
    return CliRunner().invoke(broker, ["replicas", *arguments])


def test_a_master_shows_its_replicas(cluster: Cluster) -> None:
    result = show(cluster.brokers[0].address)
    assert result.exit_code == 0
    assert "is ASYNC_MASTER, broker id 0; its log is from 0 to" in result.output
    assert "pyromq" in result.output
    assert "lag, bytes" in result.output


def test_a_replica_shows_its_master(cluster: Cluster) -> None:
    master = cluster.brokers[0]
    result = show(master.replicas[0].address)
    port = int(master.address.rpartition(":")[2])
    assert "is SLAVE, broker id 1" in result.output
    assert f"it follows 127.0.0.1:{port + 1}" in result.output


def test_figures_for_programs(cluster: Cluster) -> None:
    result = show(cluster.brokers[0].address, "--json")
    figures = orjson.loads(result.output)
    assert figures["role"] == "ASYNC_MASTER"
    assert [replica["broker_id"] for replica in figures["replicas"]] == [1]


def test_a_master_without_replicas() -> None:
    with Cluster(settings=PATIENT_PROPERTIES) as alone:
        assert "it has no replicas" in show(alone.brokers[0].address).output


def test_other_servers_and_addresses(cluster: Cluster) -> None:
    result = show(cluster.namesrv)
    assert result.exit_code == 1
    assert "not a broker of pyromq" in result.output
    result = show("127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from 127.0.0.1:1" in result.output
    assert show("nonsense").exit_code == 2
