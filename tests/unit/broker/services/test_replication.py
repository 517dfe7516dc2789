"""Replication as the broker runs it; its effects are in tests/integration/test_replication.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.services import replication as module
from pyromq.broker.services.registration import Registration
from pyromq.broker.services.replication import BrokerReplication, remoting_master
from pyromq.protocol.wire.bodies import TopicConfig
from pyromq.replication import master as master_module
from pyromq.replication import replica as replica_module
from pyromq.replication.feeder import Feeder
from pyromq.store.config import BrokerRole
from tests.support.brokers import local_broker, small_store
from tests.support.patience import DEADLINE, until
from tests.support.stores import put


def registration(master: str | None = None) -> Registration:
    return cast(Registration, SimpleNamespace(master_address=master))


def test_the_master_s_remoting_address(tmp_path: Path) -> None:
    for configured, registered, expected in (
        (None, None, None),
        (None, "10.0.0.1:10911", "10.0.0.1:10911"),
        ("10.0.0.2:10912", None, "10.0.0.2:10911"),
        ("10.0.0.2:10912", "10.0.0.1:10911", "10.0.0.1:10911"),
        ("x", None, None),
    ):
        config = small_store(tmp_path, ha_master_address=configured)
        assert remoting_master(config, registration(registered)) == expected


async def running(root: Path, role: BrokerRole, **changes: Any) -> Broker:
    broker_id = 1 if role is BrokerRole.SLAVE else 0
    broker = Broker(
        local_broker(broker_name="b", broker_id=broker_id),
        small_store(root, broker_role=role, **changes),
    )
    await broker.start()
    return broker


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    master = await running(tmp_path / "a", BrokerRole.ASYNC_MASTER)
    replica = await running(
        tmp_path / "b", BrokerRole.SLAVE, ha_master_address=f"127.0.0.1:{master.port + 1}"
    )
    await until(lambda: bool(of(master).status()))
    yield master, replica
    await replica.stop()
    await master.stop()


def of(broker: Broker) -> BrokerReplication:
    assert broker.replication is not None
    return broker.replication


async def test_both_sides_tell_about_each_other(pair: tuple[Broker, Broker]) -> None:
    master, replica = pair
    await until(of(replica).is_following)
    assert not of(master).is_following()
    assert of(master).follower() is None
    follower = of(replica).follower()
    assert follower is not None
    assert (follower.master, follower.is_connected) == (f"127.0.0.1:{master.port + 1}", True)
    assert of(master).figures()["following"] is None
    assert of(replica).figures()["replicas"] == []


async def test_a_line_about_each_replica(
    pair: tuple[Broker, Broker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, module.__name__)
    master, replica = pair
    of(master)._log_lag()
    of(replica)._log_lag()
    assert "(pyromq): 0 bytes, 0 ms behind, at 0" in caplog.messages[0]
    assert caplog.messages[1] == f"replica 1 follows 127.0.0.1:{master.port + 1}, at 0"


async def test_a_promoted_replica_serves_replicas(pair: tuple[Broker, Broker]) -> None:
    master, replica = pair
    await master.stop()
    await replica.become_master()
    assert not of(replica).is_following()
    assert replica.store is not None
    assert replica.store._refusal() is None
    await replica.become_replica(1)
    assert replica.store._refusal() is not None


async def test_a_broker_that_is_cut_off_breaks_its_connections_without_a_drain(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, replica = pair
    await until(of(replica).is_following)
    # A clean stop would wait for this replica, which never reports anything.
    monkeypatch.setattr(master_module, "_DRAIN_SECONDS", 3600.0)
    monkeypatch.setattr(Feeder, "data_received", lambda *_: None)
    assert master.store is not None
    put(master.store, b"one")
    async with asyncio.timeout(DEADLINE):
        await master.cut_off()
    await until(lambda: not of(replica).is_following())
    assert of(master).status() == []


async def test_a_replica_that_is_cut_off_does_not_connect_again(
    pair: tuple[Broker, Broker],
) -> None:
    master, replica = pair
    await until(of(replica).is_following)
    of(replica).cut_off()
    assert not of(replica).is_following()
    await until(lambda: not of(master).status())
    # Connecting again is what makes it follow, not a retry.
    await of(replica).connect_now()
    await until(of(replica).is_following)


async def test_a_replica_connects_at_once_instead_of_at_its_next_retry(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, replica = pair
    monkeypatch.setattr(replica_module, "_FIRST_BACKOFF", 3600.0)
    await of(replica).connect_now()
    await until(of(replica).is_following)
    of(master)._master.withdraw()
    await until(lambda: not of(replica).is_following())
    of(master)._master.serve(BrokerRole.ASYNC_MASTER)
    await of(replica).connect_now()
    await until(of(replica).is_following)
    # A master has nobody to connect to.
    await of(master).connect_now()
    assert not of(master).is_following()


async def test_tables_are_copied_on_request(pair: tuple[Broker, Broker]) -> None:
    master, replica = pair
    await until(of(replica).is_following)
    master.topics.update(TopicConfig("orders"))
    assert await of(replica).copy_tables() == []
    assert replica.topics.get("orders") is not None
