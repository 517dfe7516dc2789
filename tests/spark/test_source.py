"""The data source on the real engine: tables, streams, and everything that may go wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyromq.client import (
    HalfMessage,
    Message,
    Producer,
    TransactionProducer,
    TransactionState,
)
from pyromq.protocol.message.record import encode_inner_message
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import (
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeaderV2,
)
from pyromq.remoting.blocking import BlockingConnection
from pyromq.spark.columns import COLUMN_NAMES
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.reading.push_down import CONF as PUSH_DOWN
from pyromq.testing import Cluster
from tests.spark.conftest import SendMany
from tests.support.apache_rocketmq import QUICK_JVM_OPTIONS, ApacheRocketMQ, java_or_skip
from tests.support.patience import PATIENT_PROPERTIES
from tests.unit.cli.processes import running

NARROW = "queueId int, queueOffset long, body binary"
PATIENT_OPTIONS = {"requestTimeout": "60s"}
#: A micro-batch takes seconds on a busy machine.
DEADLINE = 400.0


def read(spark: SparkSession, namesrv: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").options(
        nameserver=namesrv, subscribe=topic, **PATIENT_OPTIONS
    )
    return reader.options(**options).schema(NARROW).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.body) for row in frame.select("body").collect())


def texts(numbers: range) -> list[bytes]:
    return sorted(b"%d" % number for number in numbers)


#: What Spark says after ten seconds, which cannot be set.
_TOO_SLOW = "Python worker failed to connect back"
_STARTS = 20


class Stream:
    """A streaming query and its rows. A batch that is run again replaces itself."""

    def __init__(self, spark: SparkSession, namesrv: str, topic: str, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = {
            "nameserver": namesrv,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **PATIENT_OPTIONS,
        }
        self._batches: dict[int, list[Row]] = {}

    def start(self, *, now: bool = False, **options: str) -> StreamingQuery:
        """Start a query; again, where its Python process comes up later than Spark waits."""
        for _ in range(_STARTS):
            query = self._start(now=now, **options)
            while query.isActive and query.lastProgress is None:
                time.sleep(0.02)
            if _TOO_SLOW not in str(query.exception()):
                break
        return query

    def _start(self, *, now: bool, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("rocketmq").options(**{**self._options, **options})
        writer = reader.schema(NARROW).load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, **options: str) -> StreamingQuery:
        """Read what is there, to the end."""
        query = self.start(now=True, **options)
        query.awaitTermination()
        return query

    @property
    def bodies(self) -> list[bytes]:
        return sorted(bytes(row.body) for rows in list(self._batches.values()) for row in rows)

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = frame.collect()


def wait_for(condition: Callable[[], object], query: StreamingQuery | None = None) -> None:
    """Wait, as long as the query runs well."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        failure = None if query is None else query.exception()
        if failure is not None:
            raise failure
        assert time.monotonic() < deadline, "what should have come did not"
        time.sleep(0.02)


@pytest.fixture
def origin(cluster: Cluster) -> Iterator[BrokerOrigin]:
    origin = BrokerOrigin(ConnectionSettings((cluster.namesrv,), request_timeout=60.0))
    yield origin
    origin.close()


def stored(origin: BrokerOrigin, topic: str) -> int:
    """How many messages a consumer of the topic could see."""
    bounds = origin.bounds(origin.queues(topic)).values()
    return sum(end - first for first, end in bounds)


def test_a_topic_as_a_table(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    def message(number: int) -> Message:
        return Message(
            topic,
            b"%d" % number,
            tags="odd" if number % 2 else "even",
            keys=[f"key-{number}"],
            properties={"price": str(number)},
        )

    send_many(topic, 2000, message)
    source = spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic)
    frame = source.option("includeProperties", "map").load()
    assert frame.columns == list(COLUMN_NAMES)
    rows = frame.where("queueOffset < 250 or queueOffset >= 490").collect()
    assert len(rows) == 4 * 260
    for row in rows:
        number = int(bytes(row.body))
        assert (row.topic, row.brokerName) == (topic, "broker-0")
        assert row.tags == ("odd" if number % 2 else "even")
        assert row["keys"] == f"key-{number}"
        assert row.properties["price"] == str(number)
        assert row.bornTimestamp <= row.storeTimestamp
        assert row.properties["UNIQ_KEY"] == row.uniqueKey
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(rows)

    # With and without push-down, the same rows: nothing is pushed to the source.
    condition = (
        "tags = 'odd' and queueId in (1, 3) and queueOffset >= 100 "
        "and storeTimestamp > timestamp'2020-01-01 00:00:00'"
    )
    narrow = source.schema(
        "queueId int not null, queueOffset long, tags string, storeTimestamp timestamp"
    )
    found = []
    for pushed in ("true", "false"):
        spark.conf.set(PUSH_DOWN, pushed)
        found.append(
            sorted(narrow.load().where(condition).select("queueId", "queueOffset").collect())
        )
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 200
    assert read(spark, cluster.namesrv, topic, minPartitions="6").rdd.getNumPartitions() == 6


def test_a_topic_in_sql(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    send_many(topic, 100)
    spark.sql(
        f"CREATE TEMPORARY VIEW messages USING rocketmq OPTIONS "
        f"(nameserver '{cluster.namesrv}', subscribe '{topic}')"
    )
    (row,) = spark.sql("SELECT count(*) AS messages FROM messages").collect()
    spark.sql("DROP VIEW messages")
    assert row.messages == 100


def test_mistakes_are_reported(spark: SparkSession, cluster: Cluster) -> None:
    source = spark.read.format("rocketmq").option("nameserver", cluster.namesrv)
    with pytest.raises(PySparkException, match="'subscribbe': did you mean subscribe"):
        source.option("subscribbe", "T").load()
    with pytest.raises(PySparkException, match="there is no topic 'Nowhere'"):
        read(spark, cluster.namesrv, "Nowhere").count()
    stream = spark.readStream.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe="T", endingOffsets="latest"
    )
    with pytest.raises(PySparkException, match="endingOffsets is for batch reads"):
        stream.load().writeStream.format("noop").start().awaitTermination()


def test_long_bodies(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    # A record of 4 MiB is the longest that brokers take.
    size = 4 * 1024 * 1024 - 4096
    # Random bytes, which no compression makes shorter.
    sent = [random.Random(number).randbytes(size) for number in range(5)]
    with Producer.sync(cluster.namesrv, send_timeout=60.0) as producer:
        for body in sent:
            producer.send(Message(topic, body))
    rows = read(spark, cluster.namesrv, topic).selectExpr("sha2(body, 256) as hash").collect()
    found = sorted(row["hash"] for row in rows)
    assert found == sorted(hashlib.sha256(body).hexdigest() for body in sent)


#: Properties of messages that no decent client sends, as bytes.
HOSTILE = [
    b"price\x01" + b"9" * 5000,
    b"DELAY\x01" + b"0" * 5000,
    b"KEYS\x01\xff\xfe\x02TAGS\x01\xc3\x28",
    b"\x01\x01\x01\x02\x02\x02no name\x02\x01no value",
    b"UNIQ_KEY\x01" + "\U0001f600".encode() * 2000,
    b"a\x01" + b"x" * 32_000,
    b"same\x011\x02same\x012",
    "TAGS\x01\u0000\x02KEYS\x01\ud800".encode(errors="surrogatepass"),
    b"",
]


@pytest.mark.parametrize("form", ["raw", "map"])
def test_messages_that_nobody_should_send(
    spark: SparkSession, cluster: Cluster, topic: str, form: str
) -> None:
    sent = len(HOSTILE)
    with BlockingConnection(cluster.brokers[0].address, timeout=60.0) as connection:
        for born in (0, 2**63 - 1, -(2**63)):
            header = SendMessageRequestHeaderV2(
                producer_group="hostile",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=0,
                sys_flag=0,
                born_timestamp=born,
                flag=2**31 - 1,
                properties="",
                batch=True,
            )
            inner = b"".join(encode_inner_message(b"\xff\x00", each) for each in HOSTILE)
            answer = connection.request(
                RemotingCommand(
                    RequestCode.SEND_BATCH_MESSAGE, ext_fields=header.encode(), body=inner
                )
            )
            assert answer.code == 0, answer.remark
    source = spark.read.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=topic, includeProperties=form, **PATIENT_OPTIONS
    )
    frame = source.load()
    rows = sorted(frame.collect(), key=lambda row: row.queueOffset)
    assert [row.queueOffset for row in rows] == list(range(3 * sent))
    assert {bytes(row.body) for row in rows} == {b"\xff\x00"}
    if form == "map":
        assert rows[0].properties["price"] == "9" * 5000
        assert rows[3].properties.keys() <= {"CLUSTER", "UNIQ_KEY", "WAIT"}
        assert rows[6].properties["same"] == "2"
    assert rows[2]["keys"] == "\ufffd\ufffd"
    # Numbers that a query makes of them are Spark's, whatever their length.
    texts_of = "properties['price']" if form == "map" else "properties"
    assert frame.selectExpr(f"try_cast({texts_of} as bigint) as number").count() == 3 * sent
    # Copied, they are as good as any others.
    copy = f"{topic}-copy"
    cluster.create_topic(copy)
    writer = frame.select("body", "properties", "keys", "tags", "uniqueKey").write
    writer.format("rocketmq").mode("append").options(
        nameserver=cluster.namesrv, topic=copy, sendTimeout="60s"
    ).save()
    assert read(spark, cluster.namesrv, copy).count() == 3 * sent


def test_what_is_not_due_is_not_seen(
    spark: SparkSession, cluster: Cluster, topic: str, origin: BrokerOrigin
) -> None:
    seen: list[list[bytes]] = []

    def look(half: HalfMessage) -> TransactionState:
        """What can be read while a transaction is open."""
        seen.append(bodies(read(spark, cluster.namesrv, topic)))
        return TransactionState.ROLLBACK if half.body == b"undone" else TransactionState.COMMIT

    def check(message: object) -> TransactionState:
        return TransactionState.UNKNOWN

    with Producer.sync(cluster.namesrv) as producer:
        producer.send(Message(topic, b"plain"))
        producer.send(Message(topic, b"in two hours", delay_level=18))
    with TransactionProducer.sync(cluster.namesrv, group=topic, check=check) as producer:
        producer.send_in_transaction(Message(topic, b"undone"), look)
        producer.send_in_transaction(Message(topic, b"done"), look)
    with Producer.sync(cluster.namesrv) as producer:
        producer.send(Message(topic, b"in a second", delay_level=1))
    wait_for(lambda: stored(origin, topic) == 3)
    assert seen == [[b"plain"], [b"plain"]]
    assert bodies(read(spark, cluster.namesrv, topic)) == [b"done", b"in a second", b"plain"]


def test_a_stream_goes_on_and_its_topic_grows(spark: SparkSession, tmp_path: Path) -> None:
    topic = "Growing"

    with Cluster(settings=PATIENT_PROPERTIES) as cluster:

        def send(numbers: range) -> None:
            with Producer.sync(cluster.namesrv) as producer:
                for first in range(numbers.start, numbers.stop, 10):
                    producer.send_batch(
                        [Message(topic, b"%d" % number) for number in range(first, first + 10)]
                    )

        cluster.create_topic(topic, queues=2)
        send(range(100))
        stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
        query = stream.start(maxOffsetsPerTrigger="60", group="followers")
        try:
            wait_for(lambda: stream.bodies == texts(range(100)), query)
            # More queues, and another broker, while it runs.
            cluster.add_broker()
            cluster.create_topic(topic, queues=4)
            send(range(100, 300))
            wait_for(lambda: len(stream.bodies) >= 300, query)
            wait_for(lambda: group_offset(cluster, "followers", topic) == 300, query)
        finally:
            query.stop()
        assert stream.bodies == texts(range(300))
        # It was away for a while.
        send(range(300, 360))
        query = stream.run()
        assert stream.bodies == texts(range(360))
        progress = query.lastProgress
        assert progress is not None
        (source,) = progress["sources"]
        latest = source["latestOffset"]
        latest = json.loads(latest) if isinstance(latest, str) else latest
        assert latest[topic].keys() == {f"broker-{b}:{q}" for b in range(2) for q in range(4)}
        assert sum(latest[topic].values()) == 360


def group_offset(cluster: Cluster, group: str, topic: str) -> int:
    """How far a consumer group is, over all queues."""
    total = 0
    for broker in cluster.brokers:
        connection = BlockingConnection(broker.address, timeout=60.0)
        for queue_id in range(4):
            header = QueryConsumerOffsetRequestHeader(group, topic, queue_id)
            command = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=header.encode())
            answer = connection.request(command)
            total += int(answer.ext_fields.get("offset", 0)) if answer.code == 0 else 0
        connection.close()
    return total


def test_a_stream_from_the_end(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    send_many(topic, 100)
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    query = stream.start(startingOffsets="latest")
    try:
        # From when it is kept on, nothing is passed over.
        wait_for((tmp_path / "checkpoint" / "offsets" / "0").exists, query)
        send_many(topic, [Message(topic, b"%d" % number) for number in range(100, 150)])
        wait_for(lambda: stream.bodies == texts(range(100, 150)), query)
    finally:
        query.stop()


def test_a_stream_outlives_a_restart_of_all_servers(spark: SparkSession, tmp_path: Path) -> None:
    any_ports = ("--namesrv-port", "0", "--broker-port", "0", "--log-level", "warning")
    topic = "Outlived"

    def send(namesrv: str, numbers: range) -> None:
        with Producer.sync(namesrv, send_timeout=60.0) as producer:
            producer.send_batch([Message(topic, b"%d" % number) for number in numbers])

    with running("standalone", *any_ports, directory=tmp_path) as servers:
        printed = servers.wait_for("Ctrl-C stops.")
        (namesrv,) = re.findall(r"boot success\..* name server is (\S+)", printed)
        send(namesrv, range(100))
        stream = Stream(spark, namesrv, topic, tmp_path / "checkpoint")
        # Four attempts of which each waits a moment were all there was.
        quick: dict[str, Any] = {"fetchOffset.retryInterval": "100ms", "requestTimeout": "1s"}
        query = stream.start(**quick)
        try:
            wait_for(lambda: stream.bodies == texts(range(100)), query)
            assert servers.end(signal.SIGINT) == 0
            host, port = namesrv.split(":")
            # In the place of the NameServer: hears the attempts, and answers none.
            with socket.create_server((host, int(port))) as deaf:
                deaf.setblocking(False)
                attempts: list[object] = []
                wait_for(lambda: len(heard(deaf, attempts)) == 7, query)
            again = ("--namesrv-port", port, *any_ports[2:])
            with running("standalone", *again, directory=tmp_path) as servers:
                servers.wait_for("Ctrl-C stops.")
                send(namesrv, range(100, 200))
                wait_for(lambda: stream.bodies == texts(range(200)), query)
        finally:
            query.stop()


def heard(deaf: socket.socket, attempts: list[object]) -> list[object]:
    """Those who have called so far."""
    with contextlib.suppress(BlockingIOError):
        connection, address = deaf.accept()
        connection.close()
        attempts.append(address)
    return attempts


def test_retention_overtakes_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    topic = "Expiring"
    settings = {**PATIENT_PROPERTIES, "mappedFileSizeCommitLog": str(64 * 1024)}
    with Cluster(settings=settings) as cluster:
        cluster.create_topic(topic, queues=1)

        def send(numbers: range) -> None:
            with Producer.sync(cluster.namesrv) as producer:
                for number in numbers:
                    producer.send(Message(topic, b"%05d" % number + bytes(2000)))

        def numbers(found: list[bytes]) -> list[int]:
            return [int(body[:5]) for body in found]

        send(range(10))
        stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
        stream.run()
        assert numbers(stream.bodies) == list(range(10))
        send(range(10, 60))
        first = remove_first_segment(cluster, topic)
        assert 10 < first < 60
        with pytest.raises(PySparkException, match=f"offsets 10 to {first - 1} have expired"):
            stream.run()
        stream.run(failOnDataLoss="false")
        assert numbers(stream.bodies) == [*range(10), *range(first, 60)]

        early = {"startingOffsets": json.dumps({topic: {"broker-0:0": 3}})}
        with pytest.raises(PySparkException, match=f"offsets 3 to {first - 1} have expired"):
            read(spark, cluster.namesrv, topic, **early).count()
        frame = read(spark, cluster.namesrv, topic, failOnDataLoss="false", **early)
        assert numbers(bodies(frame)) == list(range(first, 60))


def remove_first_segment(cluster: Cluster, topic: str) -> int:
    """As retention does; says which offset is the first one then."""

    async def remove() -> int:
        broker = cluster.brokers[0]._node.broker
        assert broker is not None
        store = broker.store
        assert store is not None
        log = store._log
        log.segments.files.pop(0).delete()
        await store.retention._trim(log.min_offset)
        return int(store.queue(topic, 0).min_offset)

    return cluster._loop.run(remove())


def test_damaged_records(spark: SparkSession) -> None:
    topic = "Damaged"
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic(topic, queues=1)
        with Producer.sync(cluster.namesrv) as producer:
            for first in (0, 50):
                producer.send_batch(
                    [Message(topic, b"%d" % number) for number in range(first, first + 50)]
                )

        async def damage() -> None:
            broker = cluster.brokers[0]._node.broker
            assert broker is not None
            assert broker.store is not None
            entry = broker.store.queue(topic, 0).entry(42)
            assert entry is not None
            log = min((cluster.brokers[0].directory / "commitlog").iterdir())
            with log.open("r+b") as file:
                file.seek(entry[0] + 4)
                file.write(b"\x55")

        cluster._loop.run(damage())
        with pytest.raises(PySparkException, match="Damaged@broker-0:0: offsets 42 to 42 are lost"):
            read(spark, cluster.namesrv, topic).count()
        found = bodies(read(spark, cluster.namesrv, topic, failOnDataLoss="false"))
        assert found == sorted(set(texts(range(100))) - {b"42"})


@pytest.mark.interop
def test_apaches_broker(spark: SparkSession, tmp_path: Path) -> None:
    """It gives 32 messages at a time, and knows nothing of larger pulls."""
    java_or_skip()
    with ApacheRocketMQ(jvm_options=QUICK_JVM_OPTIONS) as java:
        topic = "FromSpark"
        with Producer.sync(java.namesrv_address, send_timeout=60.0) as producer:
            for first in range(0, 3000, 500):
                producer.send_batch(
                    [
                        Message(topic, b"%d" % number, tags="odd" if number % 2 else "even")
                        for number in range(first, first + 500)
                    ]
                )
        frame = read(spark, java.namesrv_address, topic, maxRecordsPerPartition="400")
        assert bodies(frame) == texts(range(3000))
        odd = bodies(read(spark, java.namesrv_address, topic, tags="odd"))
        assert odd == sorted(b"%d" % number for number in range(1, 3000, 2))
        stream = Stream(spark, java.namesrv_address, topic, tmp_path / "checkpoint")
        stream.run(group="followers")
        assert stream.bodies == texts(range(3000))
