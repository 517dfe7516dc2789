from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyromq.broker.role import Role, RoleError
from pyromq.broker.services.promotion import PromotedBroker, Promotion, master_role
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.promotion import PromotionReport
from pyromq.remoting.server import RemotingServer
from pyromq.remoting.service import Service
from pyromq.store.config import BrokerRole
from pyromq.tls.client import ClientTls, Tls, client_tls
from tests.support.patience import DEADLINE


class OldMaster:
    """A broker that answers GET_BROKER_CONFIG."""

    def __init__(self) -> None:
        self.signed_by: str | None = None
        self.settings = "brokerName=broker-a\nbrokerRole=ASYNC_MASTER\n"
        self.code = ResponseCode.SUCCESS
        self.silent = False
        self.server = RemotingServer(host="127.0.0.1")

    async def start(self) -> None:
        await self.server.start(Service(handlers={RequestCode.GET_BROKER_CONFIG: self.answer}))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def replication_address(self) -> str:
        return f"127.0.0.1:{self.server.port + 1}"

    def answer(self, _: object, request: RemotingCommand) -> RemotingCommand | None:
        self.signed_by = request.ext_fields.get(acl.ACCESS_KEY)
        if self.silent:
            return None
        return request.answer(self.code, body=self.settings.encode())


class Replica:
    """The broker to promote."""

    def __init__(self) -> None:
        self.role = Role(BrokerRole.SLAVE, 2)
        self.refreshed = 0
        self.following = False
        self.masters: list[str] = []
        self.replication: list[str] = []
        self.fails: Exception | None = None
        self.tls: ClientTls | None = None
        self.promotion = self.build()

    def build(self, **options: Any) -> Promotion:
        return Promotion(
            PromotedBroker(
                name="broker-a",
                address="127.0.0.1:1",
                role=self.role,
                refresh=self.refresh,
                master_addresses=lambda: self.masters,
                replication_addresses=lambda: self.replication,
                is_following=lambda: self.following,
                become_master=self.become_master,
                log_end=lambda: 1234,
                tls=self.tls,
                sign=acl.signer("peers_key", "peers_secret"),
            ),
            **{"master_timeout": DEADLINE, **options},
        )

    async def refresh(self) -> None:
        self.refreshed += 1

    async def become_master(self, role: BrokerRole) -> None:
        if self.fails is not None:
            raise self.fails
        self.role.change(role, 0)


@pytest.fixture
async def master() -> AsyncIterator[OldMaster]:
    old = OldMaster()
    await old.start()
    yield old
    await old.server.stop()


def outcomes(report: PromotionReport) -> list[tuple[str, bool]]:
    return [(check.name, check.passed) for check in report.checks]


async def test_a_replica_without_a_master_is_promoted() -> None:
    replica = Replica()

    report = await replica.promotion.promote(BrokerRole.SYNC_MASTER)

    assert (replica.role.current, replica.refreshed) == (BrokerRole.SYNC_MASTER, 1)
    assert outcomes(report) == [("role", True), ("master", True), ("replication", True)]
    assert (report.promoted, report.role, report.log_end) == (True, "SYNC_MASTER", 1234)
    assert (report.broker_name, report.replica_id) == ("broker-a", 2)


async def test_a_master_that_is_gone_is_no_obstacle(master: OldMaster) -> None:
    replica = Replica()
    replica.masters = [master.address]
    await master.server.stop()

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER)

    assert report.promoted
    assert f"{master.address} does not answer: cannot connect" in report.checks[1].detail


async def test_a_master_that_is_silent_is_no_obstacle(master: OldMaster) -> None:
    master.silent = True
    replica = Replica()
    replica.masters = [master.address]

    report = await replica.build(master_timeout=0.05).promote(BrokerRole.ASYNC_MASTER)

    assert report.promoted


async def test_a_master_that_refuses_tls_is_alive(master: OldMaster) -> None:
    """Its certificate, or ours, is wrong: no reason to take its place."""
    replica = Replica()
    replica.masters = [master.address]
    replica.tls = client_tls(Tls(verify=False))

    report = await replica.build().promote(BrokerRole.ASYNC_MASTER)

    assert not report.promoted
    assert f"{master.address} is alive, but refused: cannot connect" in report.checks[1].detail


@pytest.mark.parametrize("known_by", ["client address", "replication address"])
async def test_a_master_that_answers_keeps_its_place(master: OldMaster, known_by: str) -> None:
    replica = Replica()
    if known_by == "client address":
        # Twice, and the own address of the broker, which is asked nothing.
        replica.masters = [master.address, master.address, "127.0.0.1:1"]
    else:
        replica.replication = [master.replication_address, "nonsense"]

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER)

    assert not report.promoted
    assert replica.role.is_replica
    assert outcomes(report) == [("role", True), ("master", False), ("replication", True)]
    assert report.checks[1].detail == f"{master.address} answers as ASYNC_MASTER"
    assert report.role == "SLAVE"


@pytest.mark.parametrize(
    ("settings", "code", "passed"),
    [
        ("brokerName=broker-a\nbrokerRole=SLAVE\n", ResponseCode.SUCCESS, True),
        ("brokerName=other\nbrokerRole=ASYNC_MASTER\n", ResponseCode.SUCCESS, True),
        ("brokerName=broker-a\nbrokerRole=SYNC_MASTER\n", ResponseCode.SUCCESS, False),
        ("brokerName=broker-a\n", ResponseCode.SUCCESS, False),
        ("\\u12", ResponseCode.SUCCESS, False),
        ("", ResponseCode.NO_PERMISSION, False),
    ],
)
async def test_the_answer_of_the_master_decides(
    master: OldMaster, settings: str, code: ResponseCode, passed: bool
) -> None:
    master.settings, master.code = settings, code
    replica = Replica()
    replica.masters = [master.address]

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER)

    assert (report.promoted, report.checks[1].passed) == (passed, passed)


async def test_the_master_is_asked_with_a_signature(master: OldMaster) -> None:
    """One with access control would answer nobody else, and seem to be alive as a master."""
    replica = Replica()
    replica.masters = [master.address]
    await replica.promotion.promote(BrokerRole.ASYNC_MASTER)
    assert master.signed_by == "peers_key"


async def test_a_live_connection_refuses_the_promotion() -> None:
    replica = Replica()
    replica.following = True

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER)

    assert outcomes(report) == [("role", True), ("master", True), ("replication", False)]
    assert replica.role.is_replica


async def test_a_forced_promotion_ignores_the_master(master: OldMaster) -> None:
    replica = Replica()
    replica.masters, replica.following = [master.address], True

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER, force=True)

    assert report.promoted
    assert outcomes(report) == [("role", True), ("master", False), ("replication", False)]


@pytest.mark.parametrize("force", [False, True])
async def test_a_master_is_never_promoted(force: bool) -> None:
    replica = Replica()
    replica.role.change(BrokerRole.SYNC_MASTER, 0)

    report = await replica.promotion.promote(BrokerRole.ASYNC_MASTER, force=force)

    assert not report.promoted
    assert outcomes(report) == [("role", False)]
    assert (report.role, report.replica_id) == ("SYNC_MASTER", 0)
    assert replica.refreshed == 0


async def test_two_promotions_do_not_overlap() -> None:
    replica = Replica()
    reports = await asyncio.gather(
        *(replica.promotion.promote(BrokerRole.ASYNC_MASTER) for _ in range(2))
    )
    assert [report.promoted for report in reports] == [True, False]


async def test_a_change_that_fails_is_raised() -> None:
    replica = Replica()
    replica.fails = RoleError("the broker is stopping")
    with pytest.raises(RoleError, match="stopping"):
        await replica.promotion.promote(BrokerRole.ASYNC_MASTER)


def test_only_roles_of_masters_are_known() -> None:
    assert master_role("SYNC_MASTER") is BrokerRole.SYNC_MASTER
    for name in ("SLAVE", "", "master"):
        with pytest.raises(RoleError, match="expected ASYNC_MASTER or SYNC_MASTER"):
            master_role(name)
