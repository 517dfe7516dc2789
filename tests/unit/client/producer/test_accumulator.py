from __future__ import annotations

import asyncio

import pytest

from pyromq.client.errors import BrokerError, IllegalMessageError, OptionError
from pyromq.client.message import MAX_BODY, Message
from pyromq.client.producer.accumulator import Batching
from pyromq.client.producer.producer import Producer
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.remoting.client import RemotingTimeoutError
from tests.unit.client.fake_cluster import running_cluster

BATCH = RequestCode.SEND_BATCH_MESSAGE
ALONE = RequestCode.SEND_MESSAGE_V2
LONG = 60.0


async def test_concurrent_sends_share_a_request_and_get_their_own_results() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(linger=0.01)) as producer,
    ):
        messages = [Message("t", b"%d" % number, tags="x") for number in range(20)]
        results = await asyncio.gather(*map(producer.send, messages))
        stored = cluster.brokers[0].queues["t", 0]
        assert len(cluster.brokers[0].seen(BATCH)) == 1
        assert [record.body for record in stored] == [message.body for message in messages]
        for number, (record, result) in enumerate(zip(stored, results, strict=True)):
            assert record.properties["UNIQ_KEY"] == result.msg_id
            assert result.queue_offset == number


@pytest.mark.parametrize("full", [Batching(LONG, max_messages=5), Batching(LONG, max_bytes=600)])
async def test_a_full_batch_does_not_wait(full: Batching) -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=full) as producer,
    ):
        await asyncio.gather(*(producer.send(Message("t", b"x" * 50)) for _ in range(5)))
        assert len(cluster.brokers[0].seen(BATCH)) == 1


async def test_close_sends_the_waiting_batch() -> None:
    async with running_cluster({"t": {"b0": 1}, "u": {"b0": 1}}) as cluster:
        async with Producer(cluster.namesrv, batching=Batching(linger=LONG)) as producer:
            sends = [asyncio.create_task(producer.send(Message(t, b"x"))) for t in ("t", "u")]
            await asyncio.sleep(0)
        assert [(await send).queue.topic for send in sends] == ["t", "u"]


async def test_messages_that_cannot_be_batched_go_alone() -> None:
    async with (
        running_cluster({"t": {"b0": 1}, "%RETRY%g": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(LONG, max_bytes=100)) as producer,
    ):
        queue = (await producer.queues("t"))[0]
        await producer.send(Message("t", b"x", delay_level=3))
        await producer.send(Message("t", b"x" * 200))
        await producer.send(Message("%RETRY%g", b"x"))
        await producer.send(Message("t", b"x"), queue)
        await producer.send(Message("t", b"x"), select=lambda queues, _: queues[0])
        assert len(cluster.brokers[0].seen(ALONE)) == 5
        assert cluster.brokers[0].seen(BATCH) == []


async def test_messages_of_one_ordering_key_stay_in_order_on_one_queue() -> None:
    async with (
        running_cluster({"t": {"b0": 4}}) as cluster,
        Producer(
            cluster.namesrv, batching=Batching(linger=0.0, max_messages=3), retries=5
        ) as producer,
    ):
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.SYSTEM_BUSY, "busy")] * 4
        sends = [
            producer.send(Message("t", b"%d" % number, ordering_key="k")) for number in range(30)
        ]
        results = await asyncio.gather(*sends)
        (queue,) = {result.queue for result in results}
        stored = cluster.brokers[0].queues["t", queue.queue_id]
        assert [int(record.body) for record in stored] == list(range(30))


async def test_the_timeout_applies_to_the_batch() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(
            cluster.namesrv, batching=Batching(linger=0.01), retries=0, send_timeout=LONG
        ) as producer,
    ):
        await producer.send(Message("t", b"the route is known"))
        cluster.brokers[0].silent.add(BATCH)
        with pytest.raises(RemotingTimeoutError, match=r"within 0\.02 s"):
            await producer.send(Message("t", b"x"), timeout=0.02)


async def test_only_sends_with_the_same_timeout_share_a_batch_and_order_is_kept() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(linger=0.01)) as producer,
    ):
        sends = [
            producer.send(Message("t", b"%d" % n, ordering_key="k"), timeout=timeout)
            for n, timeout in enumerate([None, None, LONG, LONG, LONG, None])
        ]
        await asyncio.gather(*sends)
        assert [int(record.body) for record in cluster.brokers[0].queues["t", 0]] == [*range(6)]
        assert len(cluster.brokers[0].seen(BATCH)) == 3


async def test_a_refused_batch_fails_every_send_and_a_cancelled_send_fails_no_other() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(linger=0.02), retries=0) as producer,
    ):
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.MESSAGE_ILLEGAL, "bad")]
        sends = [asyncio.create_task(producer.send(Message("t", b"x"))) for _ in range(3)]
        await asyncio.sleep(0)
        sends[1].cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            BrokerError,
            asyncio.CancelledError,
            BrokerError,
        ]
        assert (await producer.send(Message("t", b"x"))).queue_offset == 0


async def test_an_illegal_message_is_refused_alone() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(linger=0.01)) as producer,
    ):
        good = asyncio.create_task(producer.send(Message("t", b"x")))
        with pytest.raises(IllegalMessageError):
            await producer.send(Message("t", b""))
        await good


@pytest.mark.parametrize("wrong", [{"linger": -1}, {"max_messages": 0}, {"max_bytes": 0}])
def test_limits_must_make_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        Batching(**wrong)


async def test_no_batch_exceeds_the_brokers_limit() -> None:
    async with (
        running_cluster({"t": {"b0": 1}}) as cluster,
        Producer(cluster.namesrv, batching=Batching(0.05, max_bytes=MAX_BODY)) as producer,
    ):
        large = [Message("t", bytes([number]) * 2_500_000) for number in range(1, 4)]
        await asyncio.gather(*map(producer.send, large))
        requests = cluster.brokers[0].seen(BATCH)
        assert len(requests) == 3
        assert max(len(request.body) for request in requests) <= MAX_BODY
        # Larger than a batch may be, with its head.
        await producer.send(Message("t", b"x" * MAX_BODY))
        assert len(cluster.brokers[0].seen(ALONE)) == 1
