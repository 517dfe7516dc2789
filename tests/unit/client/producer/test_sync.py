"""Synchronous producers."""

from __future__ import annotations

from pyromq.client import (
    Batching,
    HalfMessage,
    IllegalMessageError,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    StartFrom,
    TransactionProducer,
    TransactionState,
    reply_to,
)
from pyromq.client.producer.sync import SyncProducer, SyncTransactionProducer
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE
from tests.unit.client.delegation import check_delegation
from tests.unit.client.message_counts import total


def test_a_producer_sends(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv, group="shop") as producer:
        result = producer.send(Message(topic, b"one"))
        assert result.status is SendStatus.SEND_OK
        queue = producer.queues(topic)[2]
        assert producer.send(Message(topic, b"two"), queue).queue == queue
        chosen = producer.send(Message(topic, b"three"), select=lambda queues, _: queues[-1])
        assert chosen.queue.queue_id == 3
        assert len(producer.send_batch([Message(topic, b"4"), Message(topic, b"5")])) == 2
        producer.send_oneway(Message(topic, b"6"))
        assert producer.client_id
    assert total(cluster, topic) == 6


def test_submitted_sends_share_requests_and_close_waits_for_them(
    cluster: Cluster, topic: str
) -> None:
    producer = Producer.sync(cluster.namesrv, batching=Batching())
    futures = [producer.submit(Message(topic, b"%d" % number)) for number in range(200)]
    producer.close()
    assert all(future.done() for future in futures)
    assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
    assert total(cluster, topic) == 200


def test_submit_reports_bad_messages_in_the_future(cluster: Cluster) -> None:
    with Producer.sync(cluster.namesrv) as producer:
        future = producer.submit(Message("not a topic", b"x"))
        assert isinstance(future.exception(DEADLINE), IllegalMessageError)


def test_requests_are_replied_to(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv) as replier, Producer.sync(cluster.namesrv) as asker:

        def handle(message: ReceivedMessage) -> None:
            replier.send(reply_to(message, message.body.upper()))

        with PushConsumer.sync(
            cluster.namesrv,
            group="repliers",
            handler=handle,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
        ):
            assert asker.request(Message(topic, b"hello"), timeout=DEADLINE).body == b"HELLO"


def test_transactions(cluster: Cluster, topic: str) -> None:
    def execute(half: HalfMessage) -> TransactionState:
        # A plain function is not on the loop.
        assert plain.send(Message(f"{topic}-plain", half.body)).status is SendStatus.SEND_OK
        return TransactionState(half.argument)

    with (
        Producer.sync(cluster.namesrv) as plain,
        TransactionProducer.sync(
            cluster.namesrv, group="payments", check=lambda _: TransactionState.ROLLBACK
        ) as producer,
    ):
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            done = producer.send_in_transaction(Message(topic, b"x"), execute, state.value)
            assert done.state is state
        producer.send(Message(topic, b"y"))
        with LitePullConsumer.sync(cluster.namesrv, start_from=StartFrom.FIRST) as consumer:
            consumer.subscribe(topic)
            assert {next(consumer).body, next(consumer).body} == {b"x", b"y"}
            assert consumer.poll(0.1) == []


def test_every_call_reaches_the_asynchronous_producer() -> None:
    check_delegation(SyncProducer, Producer, own=["submit"])
    check_delegation(SyncTransactionProducer, TransactionProducer, own=["submit"])
