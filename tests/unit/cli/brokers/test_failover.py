from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.cli.brokers.child import Order
from pyromq.cli.brokers.failover import Failover, Member, master_ports, until_following
from pyromq.cli.brokers.roles import Role, replica, save_role, saved_role
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.server import NameServer
from pyromq.protocol.wire.bodies import BrokerData, ClusterInfo
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE

MASTER = Role("SYNC_MASTER", 0)
PROMOTED = Role("ASYNC_MASTER", 0)
ORDER = Order({"brokerName": "broker-0", "brokerRole": "SYNC_MASTER", "brokerId": "0"})


class Group:
    """A NameServer's table, and a failover of a master with two replicas."""

    def __init__(self, server: NameServer, directory: Path, away_seconds: float) -> None:
        self.server = server
        self.files = {name: directory / name for name in ("broker-0", "first", "second")}
        roles = (MASTER, replica(1), replica(2))
        members = {
            name: Member("broker-0", role, self.files[name])
            for name, role in zip(self.files, roles, strict=True)
        }
        members["other"] = Member("broker-1", MASTER, directory / "other")
        self.failover = Failover(server, members, away_seconds=away_seconds)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    running = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"))
    await running.start()
    yield running
    await running.stop()


def register(monkeypatch: pytest.MonkeyPatch, server: NameServer, **addresses: str) -> None:
    """Let the NameServer know these masters."""

    table = {
        name.replace("_", "-"): BrokerData(
            "DefaultCluster", name, {0: address} if address else {1: "127.0.0.1:1"}
        )
        for name, address in addresses.items()
    }
    monkeypatch.setattr(server.routes, "cluster_info", lambda: ClusterInfo(table, {}))


def role_of(order: Order) -> tuple[str, str]:
    assert order.properties["brokerName"] == "broker-0"
    return order.properties["brokerRole"], order.properties["brokerId"]


async def test_a_replica_returns_as_one(server: NameServer, tmp_path: Path) -> None:
    failover = Group(server, tmp_path, 3600).failover
    assert failover.pause("first", 0.5) == 0.5
    order = await failover.wait("first", 4711, ORDER, 0.0)
    assert role_of(order) == ("SLAVE", "1")
    assert order.is_replica


async def test_a_master_returns_as_one_if_nobody_was_promoted(
    server: NameServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group(server, tmp_path, 60)
    assert group.failover.pause("broker-0", 1.0) == 60
    assert group.failover.pause("broker-0", 100.0) == 100
    for address in ("", "127.0.0.1:4711", "nonsense"):  # its own registration proves nothing
        register(monkeypatch, server, broker_0=address, broker_1="127.0.0.1:5000")
        assert role_of(await group.failover.wait("broker-0", 4711, ORDER, 0.0)) == (
            "SYNC_MASTER",
            "0",
        )
    assert saved_role(group.files["broker-0"]) is None
    assert "broker-0 was the master: promote a replica now, with pyromq broker" in caplog.text


async def test_a_replaced_master_returns_as_a_replica(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(server, tmp_path, 3600)
    waiting = asyncio.ensure_future(group.failover.wait("broker-0", 4711, ORDER, 3600))
    await asyncio.sleep(0)
    assert not waiting.done()
    save_role(group.files["second"], PROMOTED)
    register(monkeypatch, server, broker_0="127.0.0.1:4719")
    async with asyncio.timeout(DEADLINE):
        order = await waiting
    assert role_of(order) == ("SLAVE", "2"), "not the id of the new master"
    assert saved_role(group.files["broker-0"]) == replica(2)

    # The promoted one dies, and returns as what it was: the order of its first start is older.
    assert group.failover.pause("second", 1.0) == 3600
    register(monkeypatch, server)
    second = Order({"brokerName": "broker-0", **replica(2).properties()})
    assert role_of(await group.failover.wait("second", 4719, second, 0.0)) == ("ASYNC_MASTER", "0")

    # Or the first one is promoted again.
    save_role(group.files["broker-0"], PROMOTED)
    register(monkeypatch, server, broker_0="127.0.0.1:4711")
    assert role_of(await group.failover.wait("second", 4719, second, 3600)) == ("SLAVE", "2")
    assert saved_role(group.files["second"]) == replica(2)


async def test_ports_of_masters(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, server, a="10.0.0.1:10911", b="", c="nonsense")
    assert master_ports(server, ["a", "b", "c", "d"]) == {"a": 10911}


async def test_waiting_for_replicas(caplog: pytest.LogCaptureFixture) -> None:
    async with Cluster(replicas=1) as cluster:
        (master,) = cluster.brokers
        await until_following([master.replicas[0].address], DEADLINE)
        assert "not all replicas follow" not in caplog.text
        # A master follows nobody, and a stopped broker does not answer.
        await until_following([master.address], 0.1)
        assert caplog.text.count("not all replicas follow their masters after 0.1 s") == 1
        await master.stop_async()
        await until_following([master.address], 0.1)
        assert caplog.text.count("not all replicas follow their masters after 0.1 s") == 2
