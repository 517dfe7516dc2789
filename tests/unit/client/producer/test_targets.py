"""Queues and brokers that a producer chooses."""

from __future__ import annotations

import asyncio

import pytest

from pyromq.client.errors import (
    IllegalMessageError,
    NoMasterError,
    TopicNotFoundError,
)
from pyromq.client.message import Message
from pyromq.client.producer.producer import Producer
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.remoting.errors import RemotingError
from tests.support.patience import until
from tests.unit.client.fake_cluster import FakeBroker, running_cluster, running_pair

SEND = RequestCode.SEND_MESSAGE_V2
FIRST = MessageQueue("t", "b0", 0)


async def test_queues_are_used_round_robin() -> None:
    async with (
        running_cluster({"t": {"b0": 3, "b1": 1}}, brokers=2) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        results = [await producer.send(Message("t", b"x")) for _ in range(8)]
        assert len({result.queue for result in results[:4]}) == 4
        assert [r.queue for r in results[:4]] == [r.queue for r in results[4:]]


async def test_a_queue_may_be_chosen() -> None:
    async with (
        running_cluster({"t": {"b0": 8}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        queue = (await producer.queues("t"))[5]
        results = [await producer.send(Message("t", b"x"), queue) for _ in range(3)]
        assert [(r.queue, r.queue_offset) for r in results] == [(queue, n) for n in range(3)]


async def test_a_queue_of_an_unknown_broker_is_an_error() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        with pytest.raises(TopicNotFoundError, match="broker 'gone'"):
            await producer.send(Message("t", b"x"), MessageQueue("t", "gone", 0))


async def test_an_unknown_topic_goes_to_the_brokers_that_create_topics() -> None:
    async with (
        running_cluster({"TBW102": {"b0": 8}}) as cluster,
        Producer(cluster.namesrv, topic_queues=2) as producer,
    ):
        results = [await producer.send(Message("new", b"x")) for _ in range(4)]
        assert {result.queue for result in results} == {
            MessageQueue("new", "b0", 0),
            MessageQueue("new", "b0", 1),
        }


async def test_a_new_topic_spreads_over_all_brokers_that_create_topics() -> None:
    """The first broker that creates it registers it alone; the others are still to follow."""
    async with (
        running_cluster({"TBW102": {"b0": 4, "b1": 4}}, brokers=2) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        first = await producer.send(Message("new", b"x"))
        cluster.topics["new"] = {first.queue.broker_name: 4}
        results = [first, *[await producer.send(Message("new", b"x")) for _ in range(7)]]
        assert {(r.queue.broker_name, r.queue.queue_id) for r in results} == {
            (broker, queue) for broker in ("b0", "b1") for queue in range(4)
        }


async def test_the_real_route_of_a_new_topic_replaces_the_expected_one() -> None:
    async with (
        running_cluster({"TBW102": {"b0": 4, "b1": 4}}, brokers=2) as cluster,
        Producer(cluster.namesrv, route_interval=0.01) as producer,
    ):
        await producer.send(Message("new", b"x"))
        cluster.topics["new"] = {"b1": 1}

        async def is_known() -> bool:
            results = [await producer.send(Message("new", b"x")) for _ in range(8)]
            return {result.queue for result in results} == {MessageQueue("new", "b1", 0)}

        await until(is_known)


async def test_a_failed_send_of_a_new_topic_looks_up_who_creates_it_now() -> None:
    """Its expected route names a former leader, long before routes are due for a refresh."""
    async with (
        running_cluster({"TBW102": {"b1": 4}}, brokers=2) as cluster,
        Producer(cluster.namesrv, retries=0) as producer,
    ):
        assert (await producer.send(Message("new", b"x"))).queue.broker_name == "b1"
        cluster.topics = {"TBW102": {"b0": 4}}  # nobody has registered the new topic yet
        await cluster.brokers[1].stop()
        with pytest.raises(RemotingError):
            await producer.send(Message("new", b"x"))
        assert (await producer.send(Message("new", b"x"))).queue.broker_name == "b0"


async def test_an_unknown_topic_that_nobody_creates_is_an_error() -> None:
    async with running_cluster({}) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(TopicNotFoundError, match="'new'"):
            await producer.send(Message("new", b"x"))


async def test_a_topic_without_writable_queues_is_an_error() -> None:
    async with running_cluster({"t": {"b0": 0}}) as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(TopicNotFoundError, match="writable"):
            await producer.send(Message("t", b"x"))


async def test_a_split_batch_stays_in_its_namespace() -> None:
    async with (
        running_cluster({"shop%t": {"b0": 4}}) as cluster,
        Producer(cluster.namesrv, namespace="shop") as producer,
    ):
        large = [Message("t", bytes([number]) * 1_500_000) for number in range(1, 5)]
        results = await producer.send_batch(large)
        assert len({result.queue for result in results}) == 1
        assert results[0].queue.topic == "t"
        stored = cluster.brokers[0].queues["shop%t", results[0].queue.queue_id]
        assert [record.body[:1] for record in stored] == [b"\1", b"\2", b"\3", b"\4"]


async def test_a_batch_goes_where_its_ordering_key_goes() -> None:
    async with (
        running_cluster({"t": {"b0": 8}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        for key in ("a", "b", "c", "d"):
            alone = await producer.send(Message("t", b"x", ordering_key=key))
            batch = await producer.send_batch([Message("t", b"x", ordering_key=key)] * 3)
            assert {result.queue for result in batch} == {alone.queue}
        with pytest.raises(IllegalMessageError, match="ordering keys of 2 queues"):
            await producer.send_batch([Message("t", b"x", ordering_key=key) for key in "ab"])
        queue = MessageQueue("t", "b0", 0)
        batch = await producer.send_batch(
            [Message("t", b"x", ordering_key=key) for key in "ab"], queue
        )
        assert {result.queue for result in batch} == {queue}


async def test_another_broker_is_tried_even_if_no_name_server_answers() -> None:
    async with (
        running_cluster({"t": {"b1": 1, "b2": 1}}, brokers=3) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        await producer.queues("t")
        name_server, dead, _ = cluster.brokers
        ill: list[tuple[int, str]] = [(ResponseCode.SYSTEM_ERROR, "ill")]
        name_server.refusals[RequestCode.GET_ROUTEINFO_BY_TOPIC] = ill * 100
        await dead.stop()
        results = [await producer.send(Message("t", b"x")) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"b2"}


async def test_a_retry_does_not_wait_for_a_hanging_name_server() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, request_timeout=60.0) as producer,
    ):
        await producer.send(Message("t", b"the route is known"))
        cluster.brokers[0].silent.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        cluster.brokers[0].refusals[SEND] = [(ResponseCode.SYSTEM_BUSY, "busy")]
        await producer.send(Message("t", b"x"))
        assert len(cluster.brokers[0].seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2


async def test_keys_of_an_ordered_topic_keep_their_queue_when_a_broker_is_lost() -> None:
    async with (
        running_cluster({"t": {"b0": 4, "b1": 4}}, brokers=2) as cluster,
        Producer(cluster.namesrv, route_interval=0.01) as producer,
    ):
        cluster.order_configurations["t"] = "b1:2;b0:1"
        queues = [MessageQueue("t", "b1", 0), MessageQueue("t", "b1", 1), FIRST]
        assert await producer.queues("t") == queues
        # As in Java's SelectMessageQueueByHash: the hash of "a" is 97, and 97 % 3 is 1.
        assert (await producer.send(Message("t", b"x", ordering_key="a"))).queue == queues[1]
        assert (await producer.send(Message("t", b"x", ordering_key="b"))).queue == queues[2]
        await cluster.brokers[1].stop()
        del cluster.topics["t"]["b1"]
        await until(lambda: "b1" not in producer._session.routes.known()[0].addresses)
        assert await producer.queues("t") == queues
        assert (await producer.send(Message("t", b"x", ordering_key="b"))).queue == queues[2]
        with pytest.raises(TopicNotFoundError, match="broker 'b1' is unreachable"):
            await producer.send(Message("t", b"x", ordering_key="a"))
        # Messages without a key go to the broker that is left.
        assert {(await producer.send(Message("t", b"x"))).queue for _ in range(3)} == {FIRST}


async def test_queues_returns_a_copy() -> None:
    async with (
        running_cluster({"t": {"b0": 2}}) as cluster,
        Producer(cluster.namesrv) as producer,
    ):
        (await producer.queues("t")).clear()
        assert len(await producer.queues("t")) == 2


async def test_a_reconnected_broker_gets_messages_again() -> None:
    async with (
        running_cluster({"t": {"b1": 1, "b2": 1}}, brokers=3) as cluster,
        Producer(cluster.namesrv, heartbeat_interval=0.05) as producer,
    ):
        _, broker, _ = cluster.brokers
        for _ in range(2):
            await producer.send(Message("t", b"x"))
        await until(lambda: producer._session.is_known_to(broker.address))
        await broker.stop()
        for _ in range(4):
            await producer.send(Message("t", b"x"))
        stored = len(broker.queues["t", 0])
        broker.server = await asyncio.start_server(
            broker._serve, *broker.address.split(":"), reuse_address=True
        )
        await until(lambda: producer._session.is_known_to(broker.address))
        for _ in range(2):
            await producer.send(Message("t", b"x"))
        assert len(broker.queues["t", 0]) == stored + 1


async def test_a_broker_without_a_master_gets_nothing() -> None:
    async with running_pair({"t": {"b0": 1, "b1": 1}}) as (cluster, master, replica):
        master.is_listed = False
        async with Producer(cluster.namesrv) as producer:
            results = [await producer.send(Message("t", b"x")) for _ in range(4)]
            assert {result.queue for result in results} == {FIRST}
            with pytest.raises(NoMasterError, match="b1 has no master: only replica"):
                await producer.send(Message("t", b"x"), MessageQueue("t", "b1", 0))
        assert replica.requests == []


async def test_without_any_master_the_error_names_the_replicas() -> None:
    async with running_pair({"t": {"b1": 1}}) as (cluster, master, replica):
        another = FakeBroker(cluster, "b1", 3)
        await another.start()
        cluster.brokers.append(another)
        master.is_listed = False
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(NoMasterError) as raised:
                await producer.send(Message("t", b"x"))
            assert str(raised.value) == (
                f"topic 't': b1 has no master: only replicas {replica.address} (id 1), "
                f"{another.address} (id 3)"
            )
            assert isinstance(raised.value, TopicNotFoundError)
            # The next send finds it, long before routes are due for a refresh.
            master.is_listed = True
            assert (await producer.send(Message("t", b"x"))).queue.broker_name == "b1"


async def test_a_message_of_an_ordered_topic_waits_for_its_master() -> None:
    async with running_pair({"t": {"b0": 1, "b1": 1}}) as (cluster, master, _):
        cluster.order_configurations["t"] = "b0:1;b1:1"
        master.is_listed = False
        async with Producer(cluster.namesrv) as producer:
            with pytest.raises(NoMasterError, match="b1 has no master"):
                await producer.send(Message("t", b"x"), MessageQueue("t", "b1", 0))
            await producer.send(Message("t", b"x"), FIRST)
