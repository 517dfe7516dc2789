from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.spark.sink import sender
from pyromq.spark.sink.options import WriteOptions
from pyromq.spark.sink.row_encoder import Request
from pyromq.spark.sink.sender import Sender, SendError, Sent
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread

BATCH = RequestCode.SEND_BATCH_MESSAGE
QUEUE = MessageQueue("t", "b0", 0)


def options_for(cluster: FakeCluster, **given: str) -> WriteOptions:
    return WriteOptions.parse(
        {"nameserver": cluster.namesrv, "topic": "t", "sendTimeout": "45s", **given}
    )


def batch(*bodies: bytes, queue: MessageQueue | None = None, topic: str = "t") -> Request:
    inner = b"".join(encode_inner_message(body, b"") for body in bodies)
    return Request(topic, queue, inner, None, 0, len(bodies), 10, 9 + len(bodies))


def bodies(cluster: FakeCluster) -> list[bytes]:
    return [
        message.body
        for broker in cluster.brokers
        for stored in broker.queues.values()
        for message in stored
    ]


def send_all(it: Sender, *requests: Request) -> None:
    for request in requests:
        it.send(request)
    it.flush()


@contextlib.contextmanager
def sender_to(cluster: FakeCluster, **given: str) -> Iterator[Sender]:
    with Sender(options_for(cluster, **given), " of partition 3") as it:
        yield it


def test_everything_is_stored_after_a_flush() -> None:
    with (
        cluster_in_a_thread({"t": {"b0": 4}}) as cluster,
        sender_to(cluster, maxInFlight="3") as it,
    ):
        for number in range(40):
            it.send(batch(b"%d" % number, b"x"))
        it.flush()
        stored = bodies(cluster)
        assert sorted(body for body in stored if body != b"x") == sorted(
            b"%d" % number for number in range(40)
        )
        assert it.sent.rows == 80 == len(stored)
        assert it.sent.bytes > 0
        used = {queue for queue, messages in cluster.brokers[0].queues.items() if messages}
        assert len(used) == 4, "queues take turns"


def test_a_single_row() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster, sender_to(cluster) as it:
        it.send(Request("t", None, b"later", "DELAY\x013\x02TAGS\x01ä", 5, 1, 0, 0))
        it.flush()
        (stored,) = cluster.brokers[0].queues["t", 0]
        assert stored.body == b"later"
        assert stored.properties == {"DELAY": "3", "TAGS": "ä"}
        (request,) = cluster.brokers[0].seen(RequestCode.SEND_MESSAGE_V2)
        assert request.ext_fields["h"] == "5"


def test_requests_of_a_queue_stay_in_order_when_one_is_refused_at_first() -> None:
    with cluster_in_a_thread({"t": {"b0": 2}}) as cluster, sender_to(cluster) as it:
        assert it.queues_of("t") == [QUEUE, MessageQueue("t", "b0", 1)]
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.SYSTEM_BUSY, "later")] * 5
        for number in range(20):
            it.send(batch(b"%d" % number, queue=QUEUE))
        it.flush()
        stored = [message.body for message in cluster.brokers[0].queues["t", 0]]
        assert stored == [b"%d" % number for number in range(20)]


def test_a_busy_broker_is_waited_for() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster, sender_to(cluster) as it:
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")] * 7
        it.send(batch(b"x"))
        it.flush()
        assert bodies(cluster) == [b"x"]


def test_a_broker_that_stays_busy_fails_the_task() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")] * 10_000
        with (
            sender_to(cluster, deliveryTimeout="200ms") as it,
            pytest.raises(SendError, match=r"row 10 of partition 3 .* topic 't': .*OVERLOAD"),
        ):
            send_all(it, batch(b"x"))


def test_a_rejected_request_is_an_error_with_rows_and_topic() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.MESSAGE_ILLEGAL, "too large")]
        with (
            sender_to(cluster) as it,
            pytest.raises(SendError, match=r"rows 10 to 11 of partition 3 .* 't': .*too large"),
        ):
            send_all(it, batch(b"x", b"y"))


def test_after_a_failure_nothing_more_is_sent_to_a_queue() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.MESSAGE_ILLEGAL, "no")]
        with sender_to(cluster, maxInFlight="8") as it, pytest.raises(SendError):
            send_all(it, *(batch(b"%d" % number, queue=QUEUE) for number in range(50)))
        assert bodies(cluster) == []


def test_a_rejected_request_is_retried_at_another_broker() -> None:
    topics = {"t": {"b0": 1, "b1": 1}}
    with cluster_in_a_thread(topics, brokers=2) as cluster, sender_to(cluster) as it:
        cluster.brokers[0].refusals[BATCH] = [(ResponseCode.SYSTEM_ERROR, "broken")] * 1000
        for number in range(6):
            it.send(batch(b"%d" % number))
        it.flush()
        assert len(cluster.brokers[1].queues["t", 0]) == 6


def test_a_topic_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "NO_ROUTE_SECONDS", 0.2)
    with (
        cluster_in_a_thread({"t": {"b0": 1}}) as cluster,
        sender_to(cluster) as it,
        pytest.raises(SendError, match="'gone' has no route"),
    ):
        send_all(it, batch(b"x", topic="gone"))


def test_a_master_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than for a topic that nobody knows: its replica shows that it exists."""
    monkeypatch.setattr(sender, "NO_ROUTE_SECONDS", 0.0)
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster, sender_to(cluster) as it:
        master = cluster.brokers[0]
        master.broker_id = 1
        threading.Timer(0.5, lambda: setattr(master, "broker_id", 0)).start()
        send_all(it, batch(b"x"))
        assert bodies(cluster) == [b"x"]


def test_restarting_servers_are_waited_for() -> None:
    """A NameServer that knows no topic yet, and a broker that is away."""
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic("t", queues=1)
        options = {"nameserver": cluster.namesrv, "topic": "t", "sendTimeout": "45s"}
        cluster.brokers[0].stop()
        threading.Timer(1.0, cluster.brokers[0].start).start()
        with Sender(WriteOptions.parse(options)) as it:
            assert len(it.queues_of("t")) == 1
            send_all(it, batch(b"x"))
            cluster.brokers[0].stop()
            threading.Timer(1.0, cluster.brokers[0].start).start()
            send_all(it, batch(b"y"))
            assert it.sent.rows == 2


def test_rows_that_are_not_safe_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    fields = {"msgId": "A", "queueId": "0", "queueOffset": "0"}
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster, sender_to(cluster) as it:
        broker = cluster.brokers[0]
        monkeypatch.setattr(
            broker,
            "_send_batch_message",
            lambda command, _: command.answer(ResponseCode.FLUSH_SLAVE_TIMEOUT, ext_fields=fields),
        )
        it.send(batch(b"x", b"y"))
        it.send(batch(b"z"))
        it.flush()
        assert (it.sent.rows, it.sent.unsafe_rows) == (3, 3)
    assert caplog.text.count("FLUSH_SLAVE_TIMEOUT") == 1


def test_a_task_that_ends_early_does_not_wait() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster:
        cluster.brokers[0].silent.add(BATCH)
        with sender_to(cluster) as it:
            it.send(batch(b"x"))
        assert it.sent == Sent()


def test_nothing_sent() -> None:
    with cluster_in_a_thread({"t": {"b0": 1}}) as cluster, sender_to(cluster) as it:
        it.flush()
        assert it.sent == Sent()
