"""The source and the sink with strict access control and mutual TLS, in tables and streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyromq.client import Message, Producer
from tests.interop.cluster import Cluster
from tests.support.clients import spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with Cluster("pyromq-secure") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def options(secure: Cluster) -> dict[str, str]:
    return {
        "nameserver": secure.namesrv_address,
        "requestTimeout": "60s",
        **spark_options(secure.options),
    }


def bodies(frame: Any) -> set[str]:
    return {bytes(row.body).decode() for row in frame.select("body").collect()}


def test_tables_and_streams_are_written_and_read(
    spark: SparkSession, secure: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    for topic in ("Rows", "Copies"):
        secure.create_topic(topic)
    expected = {str(number) for number in range(ROWS)}
    frame = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS body")
    writer = {name: value for name, value in options.items() if name != "requestTimeout"}
    frame.write.format("rocketmq").options(topic="Rows", **writer).mode("append").save()
    table = spark.read.format("rocketmq").options(subscribe="Rows", **options).load()
    assert bodies(table) == expected
    stream = spark.readStream.format("rocketmq").options(
        subscribe="Rows", startingOffsets="earliest", **options
    )
    query = (
        stream.load()
        .select("body")
        .writeStream.format("rocketmq")
        .options(topic="Copies", checkpointLocation=str(tmp_path / "checkpoint"), **writer)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copies = spark.read.format("rocketmq").options(subscribe="Copies", **options).load()
    assert bodies(copies) == expected


def test_a_wrong_secret_is_refused(
    spark: SparkSession, secure: Cluster, options: dict[str, str]
) -> None:
    topic = secure.create_topic("Closed")
    with Producer.sync(secure.namesrv_address, send_timeout=60.0, **secure.options) as producer:
        producer.send(Message(topic, b"secret"))
    wrong = {**options, "secretKey": "wrong-secret"}
    with pytest.raises(Exception, match="Check signature failed") as refused:
        spark.read.format("rocketmq").options(subscribe=topic, **wrong).load().collect()
    assert "wrong-secret" not in str(refused.value)
