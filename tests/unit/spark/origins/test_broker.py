"""Brokers as an origin: every message once and in order, and every loss reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pyromq.client import Message, Producer
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.bulk import read_columns
from pyromq.protocol.message.record import decode_record
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import QueryConsumerOffsetRequestHeader
from pyromq.remoting.blocking import BlockingConnection
from pyromq.spark.origins import window
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
    UnreachableError,
)
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES

PATIENT = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        yield cluster


@pytest.fixture
def origin(cluster: Cluster) -> Iterator[BrokerOrigin]:
    origin = origin_of(cluster)
    yield origin
    origin.close()


def origin_of(cluster: Cluster, subscription: Subscription | None = None) -> BrokerOrigin:
    settings = ConnectionSettings((cluster.namesrv,), request_timeout=PATIENT)
    return BrokerOrigin(settings, subscription=subscription)


def filled(
    cluster: Cluster, name: str, count: int, make: Callable[[int], Message], batch: int = 500
) -> Queue:
    """Create a topic with one queue that holds `count` messages."""
    cluster.create_topic(name, queues=1)
    with Producer.sync(cluster.namesrv, group="filler") as producer:
        for start in range(0, count, batch):
            producer.send_batch(
                [make(number) for number in range(start, min(start + batch, count))]
            )
    return Queue(name, cluster.brokers[0].name, 0)


def read(origin: BrokerOrigin, wanted: QueueRange) -> tuple[list[int], list[LostRecords]]:
    """Return the offsets read, and the losses."""
    offsets: list[int] = []
    lost: list[LostRecords] = []
    for block in origin.blocks(wanted):
        if isinstance(block, RecordBlock):
            columns = read_columns(block.buffer, block.starts)
            assert columns.valid.all()
            offsets += columns.column("queue_offset").tolist()
        else:
            lost.append(block)
    return offsets, lost


def remove_first_segment(cluster: Cluster) -> None:
    """Delete the first segment, as retention does."""

    async def remove() -> None:
        broker = cluster.brokers[0]._node.broker
        assert broker is not None
        store = broker.store
        assert store is not None
        log = store._log
        log.segments.files.pop(0).delete()
        await store.retention._trim(log.min_offset)

    cluster._loop.run(remove())


def test_system_topics_are_not_listed(cluster: Cluster, origin: BrokerOrigin) -> None:
    cluster.create_topic("Listed", queues=3)
    topics = origin.topics()
    assert "Listed" in topics
    assert not {"TBW102", cluster.brokers[0].name, "DefaultCluster"} & set(topics)
    broker = cluster.brokers[0].name
    assert origin.queues("Listed") == [Queue("Listed", broker, number) for number in range(3)]
    assert origin.queues("NotThere") == []


@pytest.mark.parametrize("carried", [7, 100, 16_384])
def test_everything_once_and_in_order(
    cluster: Cluster, origin: BrokerOrigin, monkeypatch: pytest.MonkeyPatch, carried: int
) -> None:
    monkeypatch.setattr(window, "_PULL_MESSAGES", carried)
    queue = filled(
        cluster, f"Order{carried}", 2500, lambda n: Message(f"Order{carried}", b"x" * (n + 1))
    )
    assert origin.bounds([queue]) == {queue: Bounds(0, 2500)}
    assert read(origin, QueueRange(queue, 0, 2500)) == (list(range(2500)), [])
    assert read(origin, QueueRange(queue, 1234, 1240)) == (list(range(1234, 1240)), [])
    assert read(origin, QueueRange(queue, 5, 5)) == ([], [])


def test_a_broker_with_the_usual_limits(
    cluster: Cluster, origin: BrokerOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's broker ignores `maxMsgBytes` and returns 32 messages per pull."""
    asked: list[int] = []
    plain_send = BlockingConnection.send

    def send(connection: BlockingConnection, command: RemotingCommand) -> int:
        if command.code == RequestCode.PULL_MESSAGE:
            del command.ext_fields["maxMsgBytes"]
            asked.append(int(command.ext_fields["maxMsgNums"]))
        return plain_send(connection, command)

    monkeypatch.setattr(BlockingConnection, "send", send)
    queue = filled(cluster, "Usual", 3000, lambda n: Message("Usual", b"%d" % n))
    assert read(origin, QueueRange(queue, 0, 3000)) == (list(range(3000)), [])
    assert asked[0] == 3000
    # The window adapts after a few responses: hardly any pull asks for more than it gets.
    assert len([count for count in asked if count > 32]) < 80
    assert len(asked) < 3000 / 32 + 80


def test_only_what_the_subscription_selects(cluster: Cluster) -> None:
    queue = filled(
        cluster,
        "Filtered",
        1000,
        lambda n: Message("Filtered", b"x", tags="even" if n % 2 == 0 else "odd", keys=[str(n)]),
    )
    origin = origin_of(cluster, Subscription.tags("odd"))
    assert read(origin, QueueRange(queue, 0, 1000)) == (list(range(1, 1000, 2)), [])
    origin.close()
    origin = origin_of(cluster, Subscription.sql("TAGS = 'even'"))
    assert read(origin, QueueRange(queue, 100, 900)) == (list(range(100, 900, 2)), [])
    origin.close()


def test_offsets_after_the_end_are_lost(cluster: Cluster, origin: BrokerOrigin) -> None:
    queue = filled(cluster, "Short", 3, lambda n: Message("Short", b"x"))
    offsets, lost = read(origin, QueueRange(queue, 0, 10))
    assert offsets == [0, 1, 2]
    assert [(loss.start, loss.end) for loss in lost] == [(3, 10)]
    assert "ends at 3" in lost[0].reason


def test_expired_messages_are_lost(origin: BrokerOrigin, cluster: Cluster) -> None:
    queue = filled(cluster, "Retained", 40, lambda n: Message("Retained", b"x" * 1_000_000), 3)
    remove_first_segment(cluster)
    first = origin.bounds([queue])[queue].first
    assert first > 0
    offsets, lost = read(origin, QueueRange(queue, 0, 40))
    assert offsets == list(range(first, 40))
    assert [(loss.start, loss.end) for loss in lost] == [(0, first)]


@pytest.mark.parametrize("wanted", [None, "even"])
def test_damaged_records_are_lost_alone(wanted: str | None) -> None:
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        queue = filled(
            cluster,
            "Damaged",
            500,
            lambda n: Message("Damaged", b"x" * 50, tags="even" if n % 2 == 0 else "odd"),
            batch=100,
        )
        # The first, two neighbours, two with wrong sizes, one with a wrong content, the last.
        for offset, position in (
            (0, 4),
            (200, 4),
            (202, 4),
            (300, 2),
            (302, 3),
            (400, 87),
            (498, 0),
        ):
            damage(cluster, queue, offset, position)
        origin = origin_of(cluster, None if wanted is None else Subscription.tags(wanted))
        offsets: list[int] = []
        lost: list[int] = []
        for block in origin.blocks(QueueRange(queue, 0, 499)):
            if isinstance(block, LostRecords):
                lost += range(block.start, block.end)
            else:
                columns = read_columns(block.buffer, block.starts)
                offsets += columns.column("queue_offset")[columns.valid].tolist()
        origin.close()
    damaged = {0, 200, 202, 300, 302, 400, 498}
    every = range(499) if wanted is None else range(0, 499, 2)
    assert offsets == [offset for offset in every if offset not in damaged]
    # Only the decoder detects this one, and reports it.
    assert set(lost) | {400} == damaged
    assert len(lost) == len(set(lost))


def damage(cluster: Cluster, queue: Queue, offset: int, position: int) -> None:
    """Change a byte of a record in the log."""

    async def change() -> None:
        broker = cluster.brokers[0]._node.broker
        assert broker is not None
        assert broker.store is not None
        entry = broker.store.queue(queue.topic, queue.queue_id).entry(offset)
        assert entry is not None
        log = min((cluster.brokers[0].directory / "commitlog").iterdir())
        with log.open("r+b") as file:
            file.seek(entry[0] + position)
            (byte,) = file.read(1)
            file.seek(entry[0] + position)
            file.write(bytes([byte ^ 0x55]))

    cluster._loop.run(change())


def test_offsets_by_time_are_exact(cluster: Cluster, origin: BrokerOrigin) -> None:
    name = "ByTime"
    cluster.create_topic(name, queues=1)
    queue = Queue(name, cluster.brokers[0].name, 0)
    assert origin.offsets_at({queue: 0}) == {queue: 0}
    with Producer.sync(cluster.namesrv, group="filler") as producer:
        for number in range(12):
            before = time.time_ns() // 1_000_000
            producer.send(Message(name, b"%d" % number))
            while number % 3 == 0 and time.time_ns() // 1_000_000 <= before:
                pass
    (block,) = [
        block for block in origin.blocks(QueueRange(queue, 0, 12)) if isinstance(block, RecordBlock)
    ]
    buffer = memoryview(block.buffer)
    times = [decode_record(buffer, start).store_timestamp for start in block.starts.tolist()]
    for wanted in {0, *times, *(moment + 1 for moment in times), times[-1] + 10_000}:
        expected = next((at for at, moment in enumerate(times) if moment >= wanted), 12)
        assert origin.offsets_at({queue: wanted}) == {queue: expected}
    selecting = origin_of(cluster, Subscription.tags("none"))
    assert selecting.offsets_at({queue: times[5]}) == origin.offsets_at({queue: times[5]})
    selecting.close()


def test_offsets_of_a_group_are_committed(cluster: Cluster, origin: BrokerOrigin) -> None:
    queue = filled(cluster, "Committed", 5, lambda n: Message("Committed", b"x"))
    origin.commit_offsets("spark-group", {queue: 4})
    header = QueryConsumerOffsetRequestHeader("spark-group", "Committed", 0)
    with BlockingConnection(cluster.brokers[0].address, timeout=PATIENT) as connection:
        answer = connection.request(
            RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=header.encode())
        )
    assert answer.ext_fields["offset"] == "4"


def test_a_reader_that_stops_early_does_no_harm(cluster: Cluster, origin: BrokerOrigin) -> None:
    queue = filled(
        cluster, "Early", 1000, lambda n: Message("Early", b"x" * (100_000 if n < 30 else 9)), 30
    )
    blocks = origin.blocks(QueueRange(queue, 0, 1000))
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert read(origin, QueueRange(queue, 0, 1000)) == (list(range(1000)), [])


def test_errors_name_the_missing_server_broker_or_queue(
    cluster: Cluster, origin: BrokerOrigin
) -> None:
    with pytest.raises(OriginError, match=r"no NameServer answers.*127\.0\.0\.1:1"):
        BrokerOrigin(ConnectionSettings(("127.0.0.1:1",))).topics()
    cluster.create_topic("There", queues=1)
    with pytest.raises(OriginError, match="no broker 'other'"):
        origin.bounds([Queue("There", "other", 0)])
    with pytest.raises(OriginError, match="queueId"):
        list(origin.blocks(QueueRange(Queue("There", cluster.brokers[0].name, 7), 0, 1)))


def test_the_next_name_server_is_tried(cluster: Cluster) -> None:
    settings = ConnectionSettings(("127.0.0.1:1", cluster.namesrv), request_timeout=PATIENT)
    origin = BrokerOrigin(settings)
    cluster.create_topic("Second", queues=1)
    assert origin.queues("Second")
    origin.close()


def test_a_read_resumes_after_a_restart(cluster: Cluster) -> None:
    origin = origin_of(cluster)
    count, body = 2000, b"x" * 10_000
    queue = filled(cluster, "Interrupted", count, lambda n: Message("Interrupted", body), 200)
    offsets: list[int] = []
    restarts = 0
    for block in origin.blocks(QueueRange(queue, 0, count)):
        assert isinstance(block, RecordBlock)
        offsets += read_columns(block.buffer, block.starts).column("queue_offset").tolist()
        if restarts < 2:
            restarts += 1
            cluster.brokers[0].stop()
            threading.Timer(0.5, cluster.brokers[0].start).start()
    assert restarts == 2
    assert offsets == list(range(count))
    # The wait is limited.
    hasty = BrokerOrigin(
        ConnectionSettings((cluster.namesrv,), request_timeout=0.1, reconnect_timeout=0.1)
    )
    blocks = hasty.blocks(QueueRange(queue, 0, count))
    next(blocks)
    cluster.brokers[0].stop()
    with pytest.raises(UnreachableError):
        list(blocks)
    hasty.close()
    cluster.brokers[0].start()
    assert not origin.is_away(cluster.brokers[0].name)
    assert origin.is_away("nobody")
    origin.close()


def test_a_restarting_broker_is_waited_for(cluster: Cluster) -> None:
    origin = origin_of(cluster)
    queue = filled(cluster, "Restarted", 3, lambda n: Message("Restarted", b"x"))
    assert read(origin, QueueRange(queue, 0, 3)) == ([0, 1, 2], [])
    cluster.brokers[0].stop()
    with pytest.raises(OriginError):  # the connection of before
        origin.bounds([queue])
    threading.Timer(0.5, cluster.brokers[0].start).start()
    assert origin.bounds([queue]) == {queue: Bounds(0, 3)}
    origin.close()
