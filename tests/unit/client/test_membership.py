from __future__ import annotations

from collections.abc import Collection

import pytest

from pyromq.client import membership as membership_module
from pyromq.client.errors import BrokerError, TopicNotFoundError
from pyromq.client.membership import Membership
from pyromq.client.options import Settings
from pyromq.client.session import Session
from pyromq.protocol.bodies import ConsumerData, HeartbeatData, MessageQueue
from pyromq.protocol.codes import RequestCode, ResponseCode
from tests.unit.client.fake_cluster import FakeCluster, running_cluster, until


class Member:
    def __init__(self, cluster: FakeCluster) -> None:
        self.queues: list[int] = []
        self.session = Session(
            Settings.of(cluster.namesrv, {}),
            self._describe,
            handlers={
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda *_: (
                    self.membership.members_changed()
                )
            },
        )
        self.session.start()
        self.membership = Membership(self.session, "g", "t", self._assign)

    async def leave(self) -> None:
        await self.membership.stop()
        await self.session.close(consumer_group="g")

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        self.queues = [queue.queue_id for queue in queues]

    def _describe(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, consumer_data_set=[ConsumerData("g")])


async def test_members_share_the_queues_as_they_come_and_go() -> None:
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        first, second = Member(cluster), Member(cluster)
        await first.membership.join()
        assert first.queues == [0, 1, 2, 3]
        await second.membership.join()
        await until(lambda: sorted(first.queues + second.queues) == [0, 1, 2, 3])
        assert len(first.queues) == len(second.queues) == 2
        await first.leave()
        await until(lambda: second.queues == [0, 1, 2, 3])
        await second.leave()


async def test_shares_are_looked_at_again_without_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.01)
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        cluster.topics["t"]["b0"] = 6
        await member.session.routes.refresh("t")
        await until(lambda: member.queues == [0, 1, 2, 3, 4, 5])
        await member.leave()


async def test_a_broker_that_cannot_answer_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        cluster.brokers[0].refusals[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = [
            (ResponseCode.SYSTEM_ERROR, "ill")
        ]
        member.membership.members_changed()
        await until(lambda: "stay as they are" in caplog.text)
        assert member.queues == [0, 1]
        await member.leave()


async def test_joining_fails_loudly() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        cluster.brokers[0].refusals[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = [
            (ResponseCode.SYSTEM_ERROR, "ill")
        ]
        member = Member(cluster)
        with pytest.raises(BrokerError):
            await member.membership.join()
        del cluster.topics["t"]
        await member.session.close()
        member = Member(cluster)
        with pytest.raises(TopicNotFoundError):
            await member.membership.join()
        await member.session.close()
