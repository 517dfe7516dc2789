"""One side of the comparison, in a process of its own: a session, a warm-up, the cases in turn.

    python -m bench.spark.program ORDER        # JSON; prints {case: figures} as its last line

Both sides have the same session: two settings apart, Kafka's jars and nothing else. Every case
runs once with fewer messages before, so that the JVM has compiled what it needs and Python's
workers live. The clock runs around the whole statement of a user: `load`, planning, tasks,
commit. What was read and written is counted afterwards, outside of the clock.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.process import cpu_seconds
from bench.spark.cases import (
    ARCHIVE,
    BODY_SIZE,
    KAFKA,
    KAFKAS_COLUMNS,
    NOOP,
    NOOP_AS_KAFKA,
    PARQUET,
    PARQUET_AS_KAFKA,
    SINK,
    STORE,
    STORE_AS_KAFKA,
)
from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.options import Topics
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.session import build_session


@dataclass(frozen=True)
class Order:
    """What to measure, where."""

    side: str
    master: str
    #: Of Kafka's broker, or of the NameServer.
    address: str
    topic: str
    warm_up_topic: str
    messages: int
    warm_up: int
    #: For what is written.
    directory: str
    #: Of our broker.
    store: str
    cases: list[str]
    jars: list[str]
    #: Of the broker, whose processor time counts as well.
    broker_pid: int


def main() -> None:
    """Measure, print."""
    order = Order(**orjson.loads(sys.argv[1]))
    conf = {"spark.driver.memory": "3g"}
    if order.jars:
        conf["spark.jars"] = ",".join(order.jars)
    spark = build_session(order.master, app_name="bench", conf=conf)
    side = Kafka(spark, order) if order.side == KAFKA else Pyromq(spark, order)
    for case in order.cases:
        side.run(case, order.warm_up_topic, order.warm_up)
    figures = {case: side.run(case, order.topic, order.messages) for case in order.cases}
    spark.stop()
    sys.stdout.write(orjson.dumps(figures).decode() + "\n")


class Side:
    """What both have in common."""

    def __init__(self, spark: SparkSession, order: Order) -> None:
        self.spark = spark
        self.order = order
        self.directory = Path(order.directory)

    def run(self, case: str, topic: str, messages: int) -> dict[str, float]:
        """Seconds of one case, and of processor time: of the session and of the broker."""
        target = self.directory / f"{case}-{topic}"
        shutil.rmtree(target, ignore_errors=True)
        action = self.action(case, topic, messages, target)
        used, began = self._cpu_seconds(), time.perf_counter()
        action()
        seconds, used = time.perf_counter() - began, self._cpu_seconds() - used
        if target.exists():
            found = pyarrow.dataset.dataset(target, format="parquet").count_rows()
            shutil.rmtree(target)
        else:
            found = self.count(topic)
        if found != messages:
            raise RuntimeError(f"{case}: {found:,} messages instead of {messages:,}")
        return {"seconds": seconds, "cpu_seconds": used}

    def _cpu_seconds(self) -> float:
        # The JVM and Python's workers are below this process.
        session = cpu_seconds(os.getpid(), with_ended=True)
        return session + cpu_seconds(self.order.broker_pid, with_ended=True)

    def action(self, case: str, topic: str, messages: int, target: Path) -> Callable[[], object]:
        """What a case does between two looks at the clock."""
        if case == SINK:
            return lambda: self.write(self.rows(messages), topic)
        if case == NOOP:
            return lambda: self.frame(topic).write.format("noop").mode("overwrite").save()
        assert case == PARQUET, f"{self.order.side} has no case {case}"
        return lambda: self.frame(topic).write.parquet(str(target))

    def rows(self, messages: int) -> DataFrame:
        """What is sent: a body, a key that is never repeated, one of 16 tags."""
        return self.spark.range(messages).select(
            f.rpad(f.col("id").cast("string"), BODY_SIZE, "x").cast("binary").alias("body"),
            f.concat(f.lit("key-"), f.col("id").cast("string")).alias("keys"),
            f.concat(f.lit("tag-"), (f.col("id") % 16).cast("string")).alias("tags"),
        )

    def count(self, topic: str) -> int:
        """How many messages there are."""
        return self.frame(topic).count()

    def write(self, rows: DataFrame, topic: str) -> None:
        """Send."""
        raise NotImplementedError

    def frame(self, topic: str) -> DataFrame:
        """Everything of a topic."""
        raise NotImplementedError


class Kafka(Side):
    """Spark's own connector."""

    def write(self, rows: DataFrame, topic: str) -> None:
        """The tag goes into a header, as it is a property with us."""
        header = f.struct(f.lit("TAGS").alias("key"), f.col("tags").cast("binary").alias("value"))
        rows.select(
            f.col("body").alias("value"),
            f.col("keys").cast("binary").alias("key"),
            f.array(header).alias("headers"),
        ).write.format("kafka").options(**self._options()).option("topic", topic).save()

    def frame(self, topic: str) -> DataFrame:
        """All columns, headers among them."""
        reader = self.spark.read.format("kafka").options(**self._options())
        return reader.option("includeHeaders", "true").option("subscribe", topic).load()

    def _options(self) -> dict[str, Any]:
        return {
            "kafka.bootstrap.servers": self.order.address,
            # Of what waits to be sent; two minutes are not enough on a crowded machine.
            "kafka.delivery.timeout.ms": "900000",
        }


class Pyromq(Side):
    """The format "rocketmq", and the archive job."""

    def write(self, rows: DataFrame, topic: str) -> None:
        """Body, keys, tags."""
        writer = rows.write.format("rocketmq").option("nameserver", self.order.address)
        writer.option("topic", topic).mode("append").save()

    def frame(self, topic: str) -> DataFrame:
        """All columns."""
        return self._read(topic)

    def action(self, case: str, topic: str, messages: int, target: Path) -> Callable[[], object]:
        """The archive and the store's files, which Kafka's side has not, and what both have."""
        if case == ARCHIVE:
            source = BrokerSource(ConnectionSettings((self.order.address,)))
            options = ArchiveOptions(Topics((topic,)))
            return lambda: run_archive(self.spark, source, target, options)
        if case in (STORE, STORE_AS_KAFKA, NOOP_AS_KAFKA):
            stored = case != NOOP_AS_KAFKA
            columns = "" if case == STORE else KAFKAS_COLUMNS
            return lambda: (
                self._read(topic, columns, stored=stored)
                .write.format("noop")
                .mode("overwrite")
                .save()
            )
        if case == PARQUET_AS_KAFKA:
            return lambda: self._read(topic, KAFKAS_COLUMNS).write.parquet(str(target))
        return super().action(case, topic, messages, target)

    def _read(self, topic: str, columns: str = "", *, stored: bool = False) -> DataFrame:
        where = ("storePath", self.order.store) if stored else ("nameserver", self.order.address)
        reader = self.spark.read.format("rocketmq").option(*where).option("subscribe", topic)
        return (reader.schema(columns) if columns else reader).load()


if __name__ == "__main__":
    main()
