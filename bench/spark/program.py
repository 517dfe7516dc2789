"""Runs one side of the comparison in its own process: a session, a warm-up, the cases in turn.

    python -m bench.spark.program ORDER        # JSON; prints {case: figures} as its last line

Both sides use the same session, except for Kafka's jars and two settings. Every case first runs
with fewer messages, so that the JVM compiles its code and Python workers start. The clock covers
the user's whole statement: `load`, planning, tasks, commit. Messages read and written are counted
after the clock stops.
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
    """The order for the process: what to measure, and where."""

    side: str
    master: str
    #: Address of Kafka's broker, or of the NameServer.
    address: str
    topic: str
    warm_up_topic: str
    messages: int
    warm_up: int
    #: Directory for output.
    directory: str
    #: Store directory of our broker.
    store: str
    cases: list[str]
    jars: list[str]
    #: Pid of the broker, whose CPU time counts as well.
    broker_pid: int


def main() -> None:
    """Measure and print."""
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
    """Base of both sides."""

    def __init__(self, spark: SparkSession, order: Order) -> None:
        self.spark = spark
        self.order = order
        self.directory = Path(order.directory)

    def run(self, case: str, topic: str, messages: int) -> dict[str, float]:
        """Return elapsed seconds of a case, and CPU seconds of session and broker."""
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
        # The JVM and the Python workers are descendants of this process.
        session = cpu_seconds(os.getpid(), with_ended=True)
        return session + cpu_seconds(self.order.broker_pid, with_ended=True)

    def action(self, case: str, topic: str, messages: int, target: Path) -> Callable[[], object]:
        """Run the timed part of a case."""
        if case == SINK:
            return lambda: self.write(self.rows(messages), topic)
        if case == NOOP:
            return lambda: self.frame(topic).write.format("noop").mode("overwrite").save()
        assert case == PARQUET, f"{self.order.side} has no case {case}"
        return lambda: self.frame(topic).write.parquet(str(target))

    def rows(self, messages: int) -> DataFrame:
        """Return the rows to send: a body, a unique key, one of 16 tags."""
        return self.spark.range(messages).select(
            f.rpad(f.col("id").cast("string"), BODY_SIZE, "x").cast("binary").alias("body"),
            f.concat(f.lit("key-"), f.col("id").cast("string")).alias("keys"),
            f.concat(f.lit("tag-"), (f.col("id") % 16).cast("string")).alias("tags"),
        )

    def count(self, topic: str) -> int:
        """Return the number of messages."""
        return self.frame(topic).count()

    def write(self, rows: DataFrame, topic: str) -> None:
        """Send."""
        raise NotImplementedError

    def frame(self, topic: str) -> DataFrame:
        """Return all rows of a topic."""
        raise NotImplementedError


class Kafka(Side):
    """Spark's own connector."""

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write rows; the tag is a header, as it is a property in RocketMQ."""
        header = f.struct(f.lit("TAGS").alias("key"), f.col("tags").cast("binary").alias("value"))
        rows.select(
            f.col("body").alias("value"),
            f.col("keys").cast("binary").alias("key"),
            f.array(header).alias("headers"),
        ).write.format("kafka").options(**self._options()).option("topic", topic).save()

    def frame(self, topic: str) -> DataFrame:
        """Read all columns, including headers."""
        reader = self.spark.read.format("kafka").options(**self._options())
        return reader.option("includeHeaders", "true").option("subscribe", topic).load()

    def _options(self) -> dict[str, Any]:
        return {
            "kafka.bootstrap.servers": self.order.address,
            # Delivery timeout: the default of two minutes is too short on a busy machine.
            "kafka.delivery.timeout.ms": "900000",
        }


class Pyromq(Side):
    """The format "rocketmq", and the archive job."""

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write body, keys and tags."""
        writer = rows.write.format("rocketmq").option("nameserver", self.order.address)
        writer.option("topic", topic).mode("append").save()

    def frame(self, topic: str) -> DataFrame:
        """Read all columns."""
        return self._read(topic)

    def action(self, case: str, topic: str, messages: int, target: Path) -> Callable[[], object]:
        """Run the archive and store-file cases, which Kafka does not have, or a common case."""
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
