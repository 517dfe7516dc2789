"""The sink on the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyromq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    TransactionProducer,
    TransactionState,
)
from pyromq.spark.sink.row_encoder import RESERVED_PROPERTIES
from pyromq.testing import Cluster
from tests.spark.conftest import SendMany
from tests.support.patience import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> list[Row]:
    reader = spark.read.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=topic, **options
    )
    return reader.load().collect()


def write(frame: DataFrame, cluster: Cluster, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("rocketmq").mode(mode)
    writer.options(nameserver=cluster.namesrv, sendTimeout="60s", **options).save()


def test_rows_become_messages(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    frame = spark.range(0, 3000, 1, 3).selectExpr(
        "cast(id as string) as body",
        "concat('key-', id) as keys",
        "if(id % 2 = 0, 'even', null) as tags",
        "map('third', cast(id % 3 as string)) as properties",
        "concat('order-', id % 50) as orderingKey",
    )
    write(frame, cluster, topic=topic)
    rows = read(spark, cluster, topic, includeProperties="map")
    assert sorted(int(row.body) for row in rows) == list(range(3000))
    assert len({row.uniqueKey for row in rows}) == 3000
    queues: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        number = int(row.body)
        assert row["keys"] == f"key-{number}"
        assert row.tags == ("even" if number % 2 == 0 else None)
        assert row.properties["third"] == str(number % 3)
        queues.setdefault(row.properties["__SHARDINGKEY"], set()).add((row.brokerName, row.queueId))
    assert all(len(found) == 1 for found in queues.values()), "a key has one queue, in all tasks"
    assert len(set.union(*queues.values())) > 1


def test_a_stream_that_repeats_a_batch_repeats_its_keys(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    send_many(topic, 500)
    copy = f"{topic}-copy"
    cluster.create_topic(copy)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        messages = spark.readStream.format("rocketmq").options(
            nameserver=cluster.namesrv, subscribe=topic, startingOffsets="earliest"
        )
        query = (
            messages.load()
            .select("body", "properties")
            .writeStream.format("rocketmq")
            .options(
                nameserver=cluster.namesrv,
                topic=copy,
                dedup="true",
                sendTimeout="60s",
                checkpointLocation=str(checkpoint),
            )
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    first = read(spark, cluster, copy)
    assert sorted(int(row.body) for row in first) == list(range(500))
    assert len({row.uniqueKey for row in first}) == 500
    # As after a kill between the last task's end and the commit.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    run()
    rows = read(spark, cluster, copy)
    assert len(rows) == 1000
    assert {row.uniqueKey: row.body for row in rows} == {row.uniqueKey: row.body for row in first}


@pytest.mark.parametrize("form", ["raw", "map"])
def test_a_copy_of_a_topic_delivers_every_message(
    spark: SparkSession, cluster: Cluster, topic: str, form: str
) -> None:
    """Whatever their way was: a transaction, a delay, a retry, a request."""
    copy = f"{topic}-copy"
    cluster.create_topic(copy)
    group = f"group-of-{topic}"

    def commit(_: object) -> TransactionState:
        return TransactionState.COMMIT

    def refuse_once(message: ReceivedMessage) -> Retry | None:
        is_first = message.body == b"refused" and not message.reconsume_times
        return Retry(delay_level=1) if is_first else None

    with Producer.sync(cluster.namesrv, send_timeout=60.0) as producer:
        producer.send(Message(topic, b"plain", tags="t", keys=["k"], properties={"own": "1"}))
        producer.send(Message(topic, b"late", delay_level=1, properties={"own": "2"}))
        producer.send(Message(topic, b"in order", ordering_key="o"))
    with TransactionProducer.sync(cluster.namesrv, group=topic, check=commit) as producer:
        producer.send_in_transaction(Message(topic, b"committed"), commit)
    with Producer.sync(cluster.namesrv, send_timeout=60.0) as producer:
        producer.send(Message(topic, b"refused"))
    wait_until(lambda: len(read(spark, cluster, topic)) == 5)
    with PushConsumer.sync(
        cluster.namesrv, group=group, subscriptions={topic: "*"}, handler=refuse_once
    ):
        retries = f"%RETRY%{group}"
        wait_until(lambda: has_messages(spark, cluster, retries))
    rows = spark.read.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=f"{topic},{retries}", includeProperties=form
    )
    write(rows.load().select("body", "properties", "flag"), cluster, topic=copy)

    received: dict[bytes, ReceivedMessage] = {}

    def take(message: ReceivedMessage) -> None:
        received[message.body] = message

    with PushConsumer.sync(
        cluster.namesrv, group=f"{group}-copy", subscriptions={copy: "*"}, handler=take
    ):
        wait_until(lambda: len(received) == 5)
    assert {body for body, message in received.items() if message.properties.get("own")} == {
        b"plain",
        b"late",
    }
    plain = received[b"plain"]
    assert (plain.tags, plain.keys, plain.properties["own"]) == ("t", "k", "1")
    assert received[b"in order"].ordering_key == "o"


def test_no_system_property_is_copied(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    content = {"own": "1", "KEYS": "k", "TAGS": "t", "__SHARDINGKEY": "o"}
    properties = content | dict.fromkeys(RESERVED_PROPERTIES, "7")
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    write(
        spark.createDataFrame([("raw", raw)], "body string, properties string"),
        cluster,
        topic=topic,
    )
    frame = spark.createDataFrame(
        [("map", properties)], "body string, properties map<string,string>"
    )
    write(frame, cluster, topic=topic)
    rows = read(spark, cluster, topic, includeProperties="map")
    assert len(rows) == 2
    for row in rows:
        mine = {name: row.properties[name] for name in content}
        assert mine == content
        assert {name for name in row.properties if row.properties[name] == "7"} == set()


def has_messages(spark: SparkSession, cluster: Cluster, topic: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return len(read(spark, cluster, topic)) > 0
    except PySparkException:
        return False


@pytest.mark.parametrize(
    ("columns", "mode", "problem"),
    [
        (["'x' as body", "1 as number"], "append", "unknown column 'number'"),
        (["'x' as body"], "overwrite", "cannot be overwritten"),
    ],
)
def test_what_cannot_be_written_is_refused(
    spark: SparkSession, cluster: Cluster, columns: list[str], mode: str, problem: str
) -> None:
    from pyspark.errors import PySparkException

    frame: Any = spark.range(10).selectExpr(*columns)
    with pytest.raises(PySparkException, match=problem):
        write(frame, cluster, mode, topic="refused")
