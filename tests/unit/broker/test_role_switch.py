from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from pyromq.broker.role import RoleError
from pyromq.broker.role_switch import RoleSwitch
from pyromq.broker.services.registration import Registration
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.store.config import BrokerRole
from tests.support.patience import until
from tests.support.requests import send_request
from tests.unit.broker.transactional import COMMIT, Transactional


class FakeReplication:
    """Notes what the broker tells it, and in which state the broker was then."""

    def __init__(self, broker: Transactional) -> None:
        self.broker = broker
        self.told: list[tuple[str, bool]] = []
        self.error: Exception | None = None

    async def become_master(self) -> None:
        self.told.append(("master", self.broker.parts.role.is_replica))
        if self.error is not None:
            raise self.error

    async def become_replica(self) -> None:
        self.told.append(("replica", self.broker.parts.role.is_replica))


class FakeRegistration:
    """Notes the ids with which the broker was registered."""

    def __init__(self, broker: Transactional) -> None:
        self.broker = broker
        self.ids: list[int] = []

    async def register_now(self) -> None:
        self.ids.append(self.broker.parts.role.broker_id)


class Setup:
    def __init__(self, root: Path) -> None:
        self.broker = Transactional(root, message_delay_level="10ms 1h")
        self.role = self.broker.parts.role
        self.replication = FakeReplication(self.broker)
        self.registration = FakeRegistration(self.broker)
        self.switch = RoleSwitch(
            self.broker.assembly, cast(Registration, self.registration), self.replication
        )
        self.file = root / "config" / "broker.properties"

    @property
    def saved(self) -> dict[str, str]:
        return parse_properties(self.file.read_bytes())

    async def start(self) -> None:
        await self.switch.load()
        self.switch.start()

    def delay(self, level: int) -> None:
        answer = self.broker.fast.ask(send_request(queueId="0", properties=f"DELAY\x01{level}"))
        assert answer.code == ResponseCode.SUCCESS

    @property
    def delivered(self) -> int:
        return self.broker.store.max_offset("T", 0)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(tmp_path)
    await setup.start()
    yield setup
    await setup.switch.stop()
    await setup.broker.close()


async def test_a_master_becomes_a_replica_and_a_master_again(setup: Setup) -> None:
    await setup.switch.become_replica(3)

    assert (setup.role.current, setup.role.broker_id) == (BrokerRole.SLAVE, 3)
    assert setup.saved == {"brokerRole": "SLAVE", "brokerId": "3"}
    assert setup.replication.told == [("replica", True)]
    assert setup.registration.ids == [3]

    await setup.switch.become_master(BrokerRole.SYNC_MASTER)

    assert (setup.role.current, setup.role.broker_id) == (BrokerRole.SYNC_MASTER, 0)
    assert setup.saved == {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
    assert setup.replication.told[1:] == [("master", True)]
    assert setup.registration.ids == [3, 0]


async def test_a_replica_without_an_id_gets_one(setup: Setup) -> None:
    await setup.switch.become_replica(0)
    assert setup.role.broker_id == 1


async def test_delayed_messages_wait_for_the_master(setup: Setup) -> None:
    setup.delay(1)
    await until(lambda: setup.delivered == 1)
    await setup.switch.become_replica(1)
    # A copy of the old master's progress, which had not delivered it.
    setup.broker.tables.delay_offsets.move({1: 0}, setup.broker.store.max_physical_offset)
    await asyncio.sleep(0.05)  # silence is the subject
    assert setup.delivered == 1

    await setup.switch.become_master(BrokerRole.ASYNC_MASTER)

    await until(lambda: setup.delivered == 2)
    setup.delay(1)
    await until(lambda: setup.delivered == 3)


async def test_open_transactions_are_read_from_the_log(setup: Setup) -> None:
    broker = setup.broker
    ended, left = broker.prepare(0), broker.prepare(1)
    assert broker.end(ended, COMMIT).code == ResponseCode.SUCCESS
    await setup.switch.become_replica(1)
    assert broker.transactions.half_offset == 0
    broker.check.note_progress()
    broker.check.settle_all(1 << 40)

    await setup.switch.become_master(BrokerRole.ASYNC_MASTER)

    assert broker.transactions.is_ended(0, 0)
    assert broker.transactions.is_open(1)
    assert broker.end(left, COMMIT).code == ResponseCode.SUCCESS
    assert len(broker.delivered) == 2


async def test_topics_that_only_the_log_knows_are_adopted(setup: Setup) -> None:
    setup.broker.put(b"acknowledged", topic="Newest")
    await setup.switch.become_replica(1)
    setup.broker.topics.delete("Newest")  # as if the master's table had never been copied
    version = setup.broker.topics.data_version

    await setup.switch.become_master(BrokerRole.ASYNC_MASTER)

    assert "Newest" in setup.broker.topics
    assert setup.broker.topics.data_version != version


async def test_a_role_that_cannot_be_saved_is_not_taken(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(setup.broker.parts.live_config, "save_role", fail)
    with pytest.raises(OSError, match="disk full"):
        await setup.switch.become_replica(1)
    assert not setup.role.is_replica
    assert setup.replication.told == []
    setup.broker.put(b"still a master")


async def test_a_promotion_that_fails_leaves_a_replica(setup: Setup) -> None:
    await setup.switch.become_replica(2)
    setup.replication.error = OSError(errno.EIO, "broken disk")

    with pytest.raises(OSError, match="broken disk"):
        await setup.switch.become_master(BrokerRole.ASYNC_MASTER)

    assert (setup.role.current, setup.role.broker_id) == (BrokerRole.SLAVE, 2)
    assert setup.saved == {"brokerRole": "SLAVE", "brokerId": "2"}
    assert [told for told, _ in setup.replication.told] == ["replica", "master", "replica"]
    setup.replication.error = None
    await setup.switch.become_master(BrokerRole.ASYNC_MASTER)
    assert not setup.role.is_replica


async def test_changes_that_make_no_sense_are_refused(setup: Setup) -> None:
    with pytest.raises(RoleError, match="already a master, ASYNC_MASTER"):
        await setup.switch.become_master(BrokerRole.SYNC_MASTER)
    with pytest.raises(RoleError, match="ASYNC_MASTER or SYNC_MASTER"):
        await setup.switch.become_master(BrokerRole.SLAVE)
    await setup.switch.become_replica(4)
    with pytest.raises(RoleError, match="already a replica, 4"):
        await setup.switch.become_replica(5)
    await setup.switch.stop()
    with pytest.raises(RoleError, match="stopping"):
        await setup.switch.become_master(BrokerRole.ASYNC_MASTER)


async def test_a_pool_of_buffers_needs_a_restart(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(setup.broker.store), "free_buffers", 3)
    with pytest.raises(RoleError, match="transient store pool"):
        await setup.switch.become_replica(1)
    assert not setup.role.is_replica


async def test_a_replica_starts_none_of_a_masters_work(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.delay(1)
    setup.role.change(BrokerRole.SLAVE, 1)
    await setup.start()
    await asyncio.sleep(0.05)  # silence is the subject
    assert setup.delivered == 0
    setup.broker.check.note_progress()
    await setup.switch.stop()
    await setup.broker.close()
