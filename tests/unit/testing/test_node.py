from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.state.persistence import PersistenceError
from pyromq.testing.node import Node, check_settings
from tests.support.patience import DEADLINE
from tests.support.stores import put

SETTINGS = {
    "brokerName": "b",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(SETTINGS, tmp_path / "node")
    yield made
    await made.stop()
    made.release()


async def test_it_keeps_its_port_and_its_messages(node: Node) -> None:
    assert node.address == "127.0.0.1:0"
    await node.start()
    await node.start()
    address = node.address
    assert node.broker is not None
    assert node.broker.store is not None
    put(node.broker.store, b"one")
    node.broker.store.seal()
    end = node.log_end
    assert end > 0
    await node.kill()
    await node.kill()
    assert node.log_end == 0
    assert node.directory.name == "1"
    await node.start({"fileReservedTime": "12"})
    assert (node.address, node.log_end) == (address, end)
    await node.stop()
    node.empty()
    await node.start()
    assert node.log_end == 0


async def test_nobody_gets_its_ports_while_it_is_stopped(node: Node) -> None:
    await node.start()
    port = int(node.address.rpartition(":")[2])
    for end in (node.kill, node.stop):
        await node.start()
        await end()
        for each in (port - 2, port, port + 1):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", each))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", each), DEADLINE)
    node.release()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))


async def test_it_keeps_the_role_that_its_broker_had(node: Node) -> None:
    assert (node.is_replica, node.broker_id) == (False, 0)
    await node.start()
    assert node.broker is not None
    await node.broker.become_replica(3)
    assert node.is_replica
    await node.stop()
    assert (node.is_replica, node.broker_id) == (True, 3)
    await node.start()
    assert node.broker.role.broker_id == 3
    assert not node.was_promoted
    await node.broker.become_master()
    assert node.was_promoted
    node.keep_role()
    assert not node.was_promoted
    await node.kill()
    assert not node.is_replica
    node.set_replica(2)
    assert (node.is_replica, node.broker_id) == (True, 2)
    node.restore_role()
    assert (node.is_replica, node.broker_id) == (False, 0)


async def test_a_broker_that_cannot_do_its_job_stops(node: Node) -> None:
    await node.start()
    assert node.broker is not None
    node.broker._replication_stopped("the logs differ")
    assert node.failure == "the logs differ"
    await node.start()  # waits for the stop: two brokers cannot have the same files
    assert node.failure is None
    assert node.broker is not None


async def test_a_start_that_fails_leaves_nothing_behind(node: Node) -> None:
    node.directory.parent.mkdir()
    node.directory.touch()
    with pytest.raises(PersistenceError, match="Not a directory"):
        await node.start()
    assert node.broker is None
    node.directory.unlink()
    await node.start()


def test_mistakes_in_settings_are_errors() -> None:
    check_settings({"brokerRole": "SYNC_MASTER"})
    with pytest.raises(ConfigError, match="has no effect"):
        check_settings({"brokerId": "7"})


async def test_orders_at_the_same_time_wait_for_each_other(node: Node) -> None:
    await asyncio.gather(node.start(), node.start())
    await asyncio.gather(node.stop(), node.start(), node.kill(), node.start())
    assert node.broker is not None
    await asyncio.gather(node.start(), node.stop())
    assert node.broker is None
