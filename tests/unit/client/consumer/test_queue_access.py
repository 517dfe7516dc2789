from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyromq.client.consumer.queue_access import PullStatus, QueueAccess, name_of
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import AnswerError, BrokerError, ClientStateError, TopicNotFoundError
from pyromq.client.message import Message
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.producer.producer import Producer
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import (
    BrokerData,
    HeartbeatData,
    MessageQueue,
    QueueData,
    TopicRouteData,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageResponseHeader
from pyromq.remoting.client import RemotingError
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeCluster, running_cluster

QUEUE = MessageQueue("t", "b0", 0)
PULL = RequestCode.PULL_MESSAGE
EVERYTHING = Subscription()


@asynccontextmanager
async def accessing(
    cluster: FakeCluster, group: str | None = "g", options: ClientOptions | None = None
) -> AsyncIterator[QueueAccess]:
    session = Session(Settings.of(cluster.namesrv, options or {}), HeartbeatData)
    session.start()
    try:
        yield QueueAccess(session, group)
    finally:
        await session.close()


async def fill(cluster: FakeCluster, count: int = 3, topic: str = "t") -> None:
    async with Producer(cluster.namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number))


async def test_command_and_template_send_the_same() -> None:
    """The first pull connects and sends a command, the second one uses the template."""
    subscription = Subscription.tags('a || 100%d"')
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        access._offset_tables.add((cluster.brokers[0].address, "g", "t"))
        for _ in range(2):
            await access.pull(
                QUEUE, 5, subscription, version=7, max_messages=9, wait=0.01, commit_offset=5
            )
        careful, quick = cluster.brokers[0].seen(PULL)
        careful.opaque = quick.opaque
        assert quick == careful
        assert quick.ext_fields["sysFlag"] == "7"
        assert quick.ext_fields["subscription"] == subscription.expression


async def test_messages_are_pulled() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        await fill(cluster)
        for _ in range(2):
            result = await access.pull(QUEUE, 1, EVERYTHING)
            assert result.status is PullStatus.FOUND
            assert [message.body for message in result.messages] == [b"1", b"2"]
            assert (result.next_offset, result.min_offset, result.max_offset) == (3, 0, 3)
            assert result.messages[0].queue is QUEUE


async def test_the_namespace_appears_on_the_wire_only() -> None:
    async with (
        running_cluster({"ns%t": {"b0": 1}}) as cluster,
        accessing(cluster, options={"namespace": "ns"}) as access,
    ):
        await fill(cluster, topic="ns%t")
        for _ in range(2):
            result = await access.pull(QUEUE, 0, EVERYTHING)
            assert {message.topic for message in result.messages} == {"t"}
        fields = cluster.brokers[0].seen(PULL)[-1].ext_fields
        assert (fields["topic"], fields["consumerGroup"]) == ("ns%t", "ns%g")
        await access.commit(QUEUE, 2)
        assert await access.committed(QUEUE) == 2
        assert await access.max_offset(QUEUE) == 3


async def test_a_group_that_never_consumed_has_no_offset() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        assert await access.committed(QUEUE) is None
        assert await access.min_offset(QUEUE) == 0


async def test_refusals_and_unreadable_answers_are_typed() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        for code, expected in (
            (ResponseCode.SUBSCRIPTION_NOT_LATEST, BrokerError),
            (ResponseCode.SUCCESS, AnswerError),
        ):
            cluster.brokers[0].refusals[PULL] = [(code, "so"), (code, "so")]
            for _ in range(2):
                with pytest.raises(expected):
                    await access.pull(QUEUE, 0, EVERYTHING)


@pytest.mark.parametrize("offset", ["-1", "9" * 20, "1.5", ""])
async def test_an_impossible_next_offset_is_refused(offset: str) -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        broker = cluster.brokers[0]
        fields = {**PullMessageResponseHeader(0, 0, 0, 0).encode(), "nextBeginOffset": offset}

        async def answer(command: RemotingCommand, _writer: object) -> RemotingCommand:
            return command.answer(ResponseCode.PULL_NOT_FOUND, ext_fields=fields)

        broker._pull_message = answer  # type: ignore[assignment, method-assign]
        with pytest.raises(AnswerError):
            await access.pull(QUEUE, 0, EVERYTHING)


async def test_an_unreachable_replica_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster({"t": {"b0": 1}}, brokers=2) as cluster:
        master, replica = cluster.brokers

        def route(command: RemotingCommand, _writer: object) -> RemotingCommand:
            addresses = {0: master.address, 1: replica.address}
            body = TopicRouteData(
                [QueueData("b0", 1, 1, perm=6)], [BrokerData("cluster", "b0", addresses)]
            )
            return command.answer(body=body.encode(standard_json=True))

        def suggest_replica(command: RemotingCommand, *_: object) -> RemotingCommand:
            header = PullMessageResponseHeader(1, 0, 0, 0)
            return command.answer(ResponseCode.PULL_NOT_FOUND, ext_fields=header.encode())

        monkeypatch.setattr(master, "_get_routeinfo_by_topic", route)
        monkeypatch.setattr(master, "_pulled", suggest_replica)
        monkeypatch.setattr(replica, "_pulled", suggest_replica)
        async with accessing(cluster) as access:
            await access.pull(QUEUE, 0, EVERYTHING)
            await access.pull(QUEUE, 0, EVERYTHING)
            assert len(replica.seen(PULL)) == 1
            await replica.stop()
            with pytest.raises(RemotingError):
                await access.pull(QUEUE, 0, EVERYTHING)
            await access.pull(QUEUE, 0, EVERYTHING)
            assert len(master.seen(PULL)) == 2


async def test_an_unknown_broker_is_named() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        with pytest.raises(TopicNotFoundError, match="'gone'"):
            await access.pull(MessageQueue("t", "gone", 0), 0, EVERYTHING)


async def test_no_request_is_sent_after_close() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster:
        async with accessing(cluster) as access:
            access.forget(QUEUE)
        with pytest.raises(ClientStateError):
            await access.commit(QUEUE, 1)


async def test_the_first_commit_at_a_broker_travels_alone() -> None:
    """Java's broker creates a table for each of several first commits that arrive together."""
    queues = [MessageQueue("t", "b0", number) for number in range(4)]
    async with running_cluster({"t": {"b0": 4}}) as cluster, accessing(cluster) as access:
        broker = cluster.brokers[0]
        under_way: list[int] = []
        held = asyncio.Event()
        answer = broker._update_consumer_offset

        async def answer_later(command: RemotingCommand, writer: object) -> RemotingCommand:
            under_way.append(int(command.ext_fields["queueId"]))
            await held.wait()
            return answer(command, writer)

        broker._update_consumer_offset = answer_later  # type: ignore[assignment, method-assign]
        commits = asyncio.gather(*(access.commit(queue, 7) for queue in queues))
        await until(lambda: bool(under_way))
        # On a pull, the commit would arrive together with the other one.
        pull = asyncio.create_task(access.pull(queues[1], 8, EVERYTHING, commit_offset=8))
        await access.max_offset(queues[1])  # earlier requests have arrived now
        assert (under_way, broker.seen(PULL)) == ([0], [])
        held.set()
        await commits
        await pull
        assert [await access.committed(queue) for queue in queues] == [7, 8, 7, 7]
        assert broker.seen(PULL)[0].ext_fields["sysFlag"] == "5"


async def test_a_failed_first_commit_does_not_block_the_others() -> None:
    queues = [MessageQueue("t", "b0", number) for number in range(3)]
    async with running_cluster({"t": {"b0": 3}}) as cluster, accessing(cluster) as access:
        refusals = cluster.brokers[0].refusals
        refusals[RequestCode.UPDATE_CONSUMER_OFFSET] = [(ResponseCode.SYSTEM_BUSY, "later")]
        results = await asyncio.gather(
            *(access.commit(queue, 7) for queue in queues), return_exceptions=True
        )
        assert [type(result) for result in results] == [BrokerError, type(None), type(None)]


async def test_a_refused_first_commit_does_not_stop_the_pull() -> None:
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        await fill(cluster)
        broker = cluster.brokers[0]
        refusal = (ResponseCode.NO_PERMISSION, "no")
        broker.refusals[RequestCode.UPDATE_CONSUMER_OFFSET] = [refusal]
        for _ in range(2):
            result = await access.pull(QUEUE, 0, EVERYTHING, commit_offset=0)
            assert len(result.messages) == 3
        assert [pull.ext_fields["sysFlag"] for pull in broker.seen(PULL)] == ["4", "5"]


async def test_a_pull_to_a_java_broker_commits_only_its_own_offset() -> None:
    """Java's broker may apply it late and undo a newer commit."""
    async with running_cluster({"t": {"b0": 1}}) as cluster, accessing(cluster) as access:
        await fill(cluster)
        cluster.brokers[0].language = LanguageCode.JAVA
        for commit_offset in (0, 1, 2, None):
            await access.pull(QUEUE, 2, EVERYTHING, commit_offset=commit_offset)
        flags = [pull.ext_fields["sysFlag"] for pull in cluster.brokers[0].seen(PULL)]
        assert flags == ["4", "4", "5", "4"]


@pytest.mark.parametrize("options", [{}, {"access_key": "who", "secret_key": "what"}])
async def test_every_pull_to_a_pyromq_broker_commits(options: ClientOptions) -> None:
    """They handle the requests of a connection in order, so a pull cannot undo a later commit."""
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        accessing(cluster, options=options) as access,
    ):
        await fill(cluster)
        broker = cluster.brokers[0]
        for commit_offset in (None, 0, 1, None):
            await access.pull(QUEUE, 2, EVERYTHING, commit_offset=commit_offset)
        # The first response reveals another kind of broker at the same address.
        broker.language = LanguageCode.JAVA
        for _ in range(2):
            await access.pull(QUEUE, 2, EVERYTHING, commit_offset=1)
        assert [pull.ext_fields["sysFlag"] for pull in broker.seen(PULL)] == list("455454")


def test_name_of_a_queue() -> None:
    assert name_of(QUEUE) == "queue 0 of t at b0"
