from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Unpack

import pytest

from pyromq.client.consumer import membership as membership_module
from pyromq.client.consumer.membership import Membership
from pyromq.client.consumer.rebalance import AllocateByConfig, Strategy, allocate_averagely
from pyromq.client.errors import BrokerError, TopicNotFoundError
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session import routes
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import ConsumerData, HeartbeatData, MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster, running_pair


class Member:
    def __init__(
        self,
        cluster: FakeCluster,
        topics: tuple[str, ...] = ("t",),
        *,
        strategy: Strategy = allocate_averagely,
        broadcasting: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.queues: list[int] = []
        self.by_topic: dict[str, list[int]] = {}
        self.session = Session(
            Settings.of(cluster.namesrv, options),
            self._describe,
            handlers={
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda *_: (
                    self.membership.members_changed()
                )
            },
        )
        self.session.start()
        self.membership = Membership(
            self.session, "g", topics, self._assign, strategy=strategy, is_broadcasting=broadcasting
        )

    async def leave(self) -> None:
        await self.membership.stop()
        await self.session.close(consumer_group="g")

    async def _assign(self, queues: Collection[MessageQueue]) -> None:
        self.queues = [queue.queue_id for queue in queues]
        self.by_topic = {
            topic: [queue.queue_id for queue in queues if queue.topic == topic]
            for topic in {queue.topic for queue in queues}
        }

    def _describe(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, consumer_data_set=[ConsumerData("g")])


async def test_members_share_the_queues_as_they_join_and_leave() -> None:
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


async def test_shares_change_without_a_notification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.01)
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        cluster.topics["t"]["b0"] = 6
        await member.session.routes.refresh("t")
        await until(lambda: member.queues == [0, 1, 2, 3, 4, 5])
        await member.leave()


async def test_a_failing_broker_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        cluster.brokers[0].refusals[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = [
            (ResponseCode.SYSTEM_ERROR, "ill")
        ] * 2
        member.membership.members_changed()
        await until(lambda: "queues of topic t unchanged" in caplog.text)
        assert member.queues == [0, 1]
        await member.leave()


async def test_join_raises_failures() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        cluster.brokers[0].refusals[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = [
            (ResponseCode.SYSTEM_ERROR, "ill")
        ] * 2
        member = Member(cluster)
        with pytest.raises(BrokerError):
            await member.membership.join()
        del cluster.topics["t"]
        await member.session.close()
        member = Member(cluster)
        with pytest.raises(TopicNotFoundError):
            await member.membership.join()
        await member.session.close()


async def test_one_of_several_topics_appears_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "MISSING_TOPIC_SECONDS", 0.01)
    async with running_cluster({"t": {"b0": 2}, "u": {"b0": 1}}) as cluster:
        member = Member(cluster, ("t", "u", "late"))
        await member.membership.join(optional=["late"])
        assert member.by_topic == {"t": [0, 1], "u": [0]}
        cluster.topics["late"] = {"b0": 3}
        await until(lambda: member.by_topic == {"t": [0, 1], "u": [0], "late": [0, 1, 2]})
        await member.membership.set_topics(["u"])
        assert member.by_topic == {"u": [0]}
        await member.membership.set_topics(["u", "never"])
        assert member.by_topic == {"u": [0]}
        await member.leave()


async def test_a_topic_that_a_name_server_forgot_stays_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "FORGOTTEN_AFTER", 0.0)
    async with running_cluster({"t": {"b0": 2}, "u": {"b0": 1}}) as cluster:
        member = Member(cluster, ("t", "u"))
        await member.membership.join()
        forgotten = cluster.topics.pop("t")
        with pytest.raises(TopicNotFoundError):
            await member.session.routes.refresh("t")
        member.by_topic = {}
        member.membership.members_changed()
        await until(lambda: member.by_topic == {"t": [0, 1], "u": [0]})
        cluster.topics["t"] = forgotten
        await member.leave()


async def test_broadcasting_takes_all_queues_without_a_query() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        first, second = (Member(cluster, broadcasting=True) for _ in range(2))
        for member in (first, second):
            await member.membership.join()
            assert member.queues == [0, 1]
        assert not cluster.brokers[0].seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        for member in (first, second):
            await member.leave()


async def test_a_broker_that_forgot_us_gets_a_heartbeat() -> None:
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        broker = cluster.brokers[0]
        broker.members.clear()
        member.queues = []
        member.membership.members_changed()
        await until(lambda: member.queues == [0, 1])
        assert [*broker.members] == [member.session.client_id]
        await member.leave()


async def test_a_strategy_may_omit_the_namespace() -> None:
    own = [MessageQueue("t", "b0", 1), MessageQueue("t", "b0", 9), MessageQueue("x", "b0", 0)]
    async with running_cluster({"tenant%t": {"b0": 3}}) as cluster:
        member = Member(cluster, strategy=AllocateByConfig(own), namespace="tenant")
        await member.membership.join()
        assert member.by_topic == {"t": [1]}
        await member.leave()


async def test_a_failed_assignment_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.01)
    async with running_cluster({"t": {"b0": 2}}) as cluster:
        member = Member(cluster)
        await member.membership.join()
        take = member.membership._assign

        async def fail(_queues: Collection[MessageQueue]) -> None:
            member.membership._assign = take
            raise RuntimeError("not now")

        member.membership._assign = fail
        await until(lambda: "not now" in caplog.text)
        member.queues = []
        await until(lambda: member.queues == [0, 1])
        await member.leave()


async def test_a_failing_strategy_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def moody(
        queues: Sequence[MessageQueue], members: Sequence[str], member: str
    ) -> Sequence[MessageQueue]:
        calls.append(len(queues))
        if len(calls) == 1:
            return queues
        raise ValueError("not today")

    async with running_cluster({"t": {"b0": 2}}) as cluster:
        member = Member(cluster, strategy=moody)
        await member.membership.join()
        member.membership.members_changed()
        await until(lambda: "not today" in caplog.text)
        assert member.queues == [0, 1]
        await member.leave()


async def test_departed_members_are_remembered_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_cluster({"t": {"b0": 4}}) as cluster:
        one, two = Member(cluster), Member(cluster)
        await one.membership.join()
        assert await one.membership.is_alone("t")
        await two.membership.join()
        assert not await one.membership.is_alone("t")
        await until(lambda: one.queues == [0, 1] or one.queues == [2, 3])
        assert one.membership.departed() == set()
        await two.leave()
        await until(lambda: one.membership.departed() == {two.session.client_id})
        assert await one.membership.is_alone("t")
        monkeypatch.setattr(membership_module, "_DEPARTED_SECONDS", 0.0)
        assert one.membership.departed() == set()
        await one.leave()


@pytest.mark.parametrize("is_listed", [True, False])
async def test_members_share_queues_without_their_master(
    monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    """The replica knows them, too; whether or not the NameServers have noticed."""
    monkeypatch.setattr(membership_module, "REBALANCE_SECONDS", 0.05)
    async with running_pair({"t": {"b1": 4}}) as (cluster, master, _):
        first = Member(cluster, route_interval=0.05)
        await first.membership.join()
        assert first.queues == [0, 1, 2, 3]
        await master.stop()
        master.is_listed = is_listed
        second = Member(cluster)
        await second.membership.join()
        await until(lambda: sorted(first.queues + second.queues) == [0, 1, 2, 3])
        assert second.queues
        await second.leave()
        await until(lambda: first.queues == [0, 1, 2, 3])
        await first.leave()
