"""A DataFrame that is used more than once: every query gets its own rows, whatever came before.

Spark plans a Python source once for each `load()` and keeps the partitions with the source, so
queries on one DataFrame share them. With push-down, partitions that one query's filters had left
were what the next query read. `test_spark_shares_pruned_partitions_between_scans` shows that on a
toy source; the others hold the format "rocketmq" to the right rows with push-down off and on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
)

from pyromq.client import Message, Producer
from pyromq.spark.reading.conditions import options_for
from pyromq.spark.reading.push_down import CONF, is_safe
from pyromq.testing import Cluster

COUNT = 400
QUEUES = 4


@pytest.fixture(params=["false", "true"], ids=["push-down-off", "push-down-on"])
def push_down(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """A session as Spark makes it, and one whose user has turned push-down on."""
    before = spark.conf.get(CONF)
    spark.conf.set(CONF, request.param)
    yield request.param == "true"
    assert before is not None
    spark.conf.set(CONF, before)


@pytest.fixture
def orders(spark: SparkSession, cluster: Cluster, topic: str, push_down: bool) -> DataFrame:
    """A topic of 400 messages, 100 in each of 4 queues."""
    del push_down
    send_evenly(cluster, topic)
    return load(spark, cluster, topic)


def send_evenly(cluster: Cluster, topic: str) -> None:
    with Producer.sync(cluster.namesrv, send_timeout=60.0) as producer:
        for queue in range(QUEUES):
            producer.send_batch(
                [
                    Message(topic, b"%d" % number, tags="odd" if number % 2 else "even")
                    for number in range(queue * COUNT // QUEUES, (queue + 1) * COUNT // QUEUES)
                ]
            )


def load(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic)
    columns = "queueId int, queueOffset long, tags string, storeTimestamp timestamp, body binary"
    return source.options(requestTimeout="60s", **options).schema(columns).load()


class ToyReader(DataSourceReader):
    """Ten partitions of one row each; a filter on `number` leaves one of them."""

    def __init__(self) -> None:
        self._numbers = list(range(10))

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for condition in filters:
            if isinstance(condition, EqualTo):
                self._numbers = [condition.value]
            yield condition

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in self._numbers]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


class ToySource(DataSource):
    """Ten numbers."""

    @classmethod
    def name(cls) -> str:
        return "toy_numbers"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: object) -> DataSourceReader:
        del schema
        return ToyReader()


def test_spark_shares_pruned_partitions_between_scans(spark: SparkSession) -> None:
    spark.dataSource.register(ToySource)
    before = spark.conf.get(CONF)
    spark.conf.set(CONF, "true")
    try:
        frame = spark.read.format(ToySource.name()).load()
        counts = [frame.count(), frame.filter("number = 3").count(), frame.count()]
    finally:
        assert before is not None
        spark.conf.set(CONF, before)
    assert counts[:2] == [10, 1]
    is_leaking = counts[2] != 10
    assert is_leaking is not is_safe(pyspark.__version__), f"Spark {pyspark.__version__} " + (
        "leaks the partitions of one query's filters into the next: "
        "pyromq.spark.reading.push_down.SAFE_SINCE must be later, or None"
        if is_leaking
        else "keeps the partitions of each scan to itself: set "
        "pyromq.spark.reading.push_down.SAFE_SINCE to this version, which switches push-down on, "
        "and see that the other tests of this file still pass"
    )


def test_counts_after_a_filter(orders: DataFrame) -> None:
    assert orders.count() == COUNT
    assert orders.filter("queueId = 1").count() == COUNT // QUEUES
    assert orders.count() == COUNT
    assert orders.filter("queueId = 2").count() == COUNT // QUEUES
    assert orders.filter("queueId in (0, 3)").count() == COUNT // 2
    assert orders.filter("tags = 'odd'").count() == COUNT // 2
    assert orders.filter("queueOffset >= 90").count() == QUEUES * 10
    assert orders.filter("storeTimestamp < timestamp'2020-01-01'").count() == 0
    assert orders.count() == COUNT
    assert orders.filter("queueId = 1 and queueId = 2").count() == 0


def test_the_first_query_has_a_filter(orders: DataFrame) -> None:
    assert orders.filter("queueId = 1").count() == COUNT // QUEUES
    assert orders.count() == COUNT
    assert {row.queueId for row in orders.select("queueId").distinct().collect()} == {0, 1, 2, 3}


def test_two_filters_in_one_query(orders: DataFrame) -> None:
    united = orders.filter("queueId = 1").union(orders.filter("queueId = 2"))
    assert united.count() == COUNT // 2
    assert {row.queueId for row in united.select("queueId").distinct().collect()} == {1, 2}
    left = orders.filter("queueId = 1").alias("a")
    right = orders.filter("queueOffset < 10").alias("b")
    joined = left.join(right, on="queueOffset")
    assert joined.count() == 10 * QUEUES
    everything = orders.alias("a").join(orders.alias("b"), on=["queueId", "queueOffset"])
    assert everything.count() == COUNT
    assert orders.filter("tags = 'odd'").subtract(orders.filter("queueId = 0")).count() == len(
        [
            row
            for row in orders.select("queueId", "tags").collect()
            if row.tags == "odd" and row.queueId != 0
        ]
    )


def test_a_cached_frame_and_the_frame_it_came_from(orders: DataFrame) -> None:
    one = orders.filter("queueId = 1").cache()
    try:
        assert one.count() == COUNT // QUEUES
        assert orders.count() == COUNT
        assert one.filter("queueOffset < 10").count() == 10
        assert orders.filter("queueOffset < 10").count() == 10 * QUEUES
        assert one.count() == COUNT // QUEUES
    finally:
        one.unpersist()


def test_limits(orders: DataFrame) -> None:
    assert len(orders.filter("queueId = 3").limit(7).collect()) == 7
    assert len(orders.limit(7).collect()) == 7
    assert len(orders.filter("queueId = 2").take(1000)) == COUNT // QUEUES
    assert len(orders.take(1000)) == COUNT
    assert orders.filter("queueId = 2").first().queueId == 2  # type: ignore[union-attr]
    assert orders.tail(1000).__len__() == COUNT


def test_a_view_that_is_queried_twice(spark: SparkSession, orders: DataFrame) -> None:
    orders.createOrReplaceTempView("reused")
    try:
        queries = {
            "select count(*) from reused": COUNT,
            "select count(*) from reused where queueId = 1": COUNT // QUEUES,
            "select count(*) from reused where tags = 'even' and queueOffset < 50": COUNT // 4,
            "select (select count(*) from reused where queueId = 1) "
            "+ (select count(*) from reused)": COUNT // QUEUES + COUNT,
        }
        for _ in range(2):
            assert {query: spark.sql(query).first()[0] for query in queries} == queries  # type: ignore[index]
    finally:
        spark.catalog.dropTempView("reused")


def test_a_frame_is_a_snapshot(
    spark: SparkSession, cluster: Cluster, topic: str, orders: DataFrame
) -> None:
    """Planned by the first action, the same for the next ones; a new load() sees what is new."""
    assert orders.count() == COUNT
    send_evenly(cluster, topic)
    assert orders.count() == COUNT
    assert orders.select("queueId").count() == COUNT
    assert load(spark, cluster, topic).count() == 2 * COUNT
    assert load(spark, cluster, topic).filter("queueId = 1").count() == 2 * COUNT // QUEUES


def test_a_stream_and_a_table_of_one_topic(
    spark: SparkSession, cluster: Cluster, topic: str, orders: DataFrame, tmp_path: Path
) -> None:
    assert orders.filter("queueId = 1").count() == COUNT // QUEUES
    stream = spark.readStream.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=topic, startingOffsets="earliest"
    )
    frame = stream.load().filter("queueId >= 0")
    counts: dict[int, int] = {}

    def take(batch: DataFrame, number: int) -> None:
        # A batch of a stream is reused as well.
        assert batch.filter("queueId = 1").count() <= batch.count()
        counts[number] = batch.count()

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(counts.values()) == COUNT
    assert orders.count() == COUNT


#: Conditions that the source applies in whole, in part, or not at all.
CONDITIONS = [
    "queueId = 1",
    "queueId in (1, 3) and queueOffset >= 90",
    "queueOffset between 10 and 19 and tags = 'odd'",
    "tags in ('odd', 'other')",
    "tags = 'it\\'s' or queueId = 2",
    "(queueId = 1 and (queueOffset < 10 or tags = 'odd'))",
    "not queueId = 1 and queueOffset = 5",
    "5 > queueOffset and cast(body as string) like '%1%'",
    "queueId = 1 and queueId = 2",
    "queueOffset = 3 = true and queueId <=> 0",
    "storeTimestamp >= timestamp'2020-01-01 00:00:00Z' and queueId = 3",
    "storeTimestamp < '2020-01-01 00:00:00Z'",
    "storeTimestamp > '2020-01-01' and storeTimestamp < '2100-01-01 12:00' and queueId = 0",
    "case when queueId = 1 and queueOffset = 7 then true else false end and tags = 'odd'",
    "queueId = 0 and not queueOffset between 5 and 90",
]


@pytest.mark.parametrize("push_down", ["false"], indirect=True)
def test_a_condition_as_options_gives_the_rows_of_the_filter(
    spark: SparkSession, cluster: Cluster, topic: str, orders: DataFrame
) -> None:
    middle = orders.orderBy("storeTimestamp").select("storeTimestamp").collect()[COUNT // 2]
    exact = middle.storeTimestamp.isoformat(" ", "milliseconds")
    conditions = [*CONDITIONS, f"storeTimestamp <= '{exact}Z'", f"storeTimestamp = '{exact}'"]
    for condition in conditions:
        narrowed = options_for(condition, time_zone="UTC")
        frame = load(spark, cluster, topic, **narrowed.options).filter(narrowed.condition)
        expected = orders.filter(condition)
        assert keys(frame) == keys(expected), condition
        assert keys(load(spark, cluster, topic, **narrowed.options).filter(condition)) == keys(
            expected
        )


def keys(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.queueId, row.queueOffset) for row in frame.collect())
