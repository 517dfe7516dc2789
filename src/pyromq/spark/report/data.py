"""Compute the figures of a report with Spark: rates, sizes, delays, keys, queues.

The messages are read once. Spark caches the few values needed of each (`slim`), and all figures
come from that cache. Only figures reach the driver, no more than fit on a page. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as fn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The columns that a report needs.
COLUMNS: Final = (
    "topic",
    "brokerName",
    "queueId",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
)
#: A line over time has about this many points.
_POINTS: Final = 120
#: Possible distances of two points, in seconds.
_STEPS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
MAX_HOT_KEYS: Final = 20


class TopicFigures(NamedTuple):
    """A row of the first table: one topic."""

    topic: str
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    #: In milliseconds, from the sender's clock to the broker's.
    delay_p50: float
    delay_p99: float
    delay_max: float


class GroupLag(NamedTuple):
    """The lag of a consumer group in a topic."""

    group: str
    topic: str
    lag: int
    #: Store time of the last consumed message; 0 if there is none.
    last_ms: int


@dataclass(slots=True)
class ReportData:
    """All figures of a report."""

    topics: list[TopicFigures] = field(default_factory=list)
    #: The seconds that each point of `rates` covers.
    step: int = 1
    #: By topic: seconds since the epoch, messages and bytes within `step` seconds.
    rates: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    #: By topic: n, and the number of bodies of 2**(n-1) up to 2**n bytes, exclusively.
    sizes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: By topic: n, and the number of delays likewise in milliseconds; 0 is less than one.
    delays: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    keys: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    #: By topic: broker, queue, messages, bytes.
    queues: dict[str, list[tuple[str, int, int, int]]] = field(default_factory=dict)
    lags: list[GroupLag] = field(default_factory=list)


#: The stages of `gather`, in order, for progress bars.
STAGES: Final = ("messages", "rates", "sizes", "delays", "keys", "queues")


def gather(messages: DataFrame, on_stage: Callable[[str], None] = lambda _: None) -> ReportData:
    """Compute all figures of messages with `COLUMNS`; call `on_stage` as each stage starts."""
    size = fn.octet_length("body")
    delay = fn.unix_millis("storeTimestamp") - fn.unix_millis("bornTimestamp")
    slim = messages.select(
        "topic",
        "brokerName",
        "queueId",
        "keys",
        fn.unix_millis("storeTimestamp").alias("stored"),
        # The clocks of two machines differ: a message cannot be stored before it is sent.
        fn.greatest(delay, fn.lit(0)).alias("delay"),
        size.cast("long").alias("size"),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    data = ReportData()
    try:
        on_stage("messages")
        data.topics = _topics(slim)
        on_stage("rates")
        data.step = _step(data.topics)
        data.rates = _rates(slim, data.step)
        on_stage("sizes")
        data.sizes = _histogram(slim, fn.col("size"))
        on_stage("delays")
        data.delays = _histogram(slim, fn.col("delay"))
        on_stage("keys")
        data.keys = _hot_keys(slim)
        on_stage("queues")
        data.queues = _queues(slim)
    finally:
        slim.unpersist()
    return data


def _topics(slim: DataFrame) -> list[TopicFigures]:
    rows = (
        slim.groupBy("topic")
        .agg(
            fn.count("*"),
            fn.sum("size"),
            fn.min("stored"),
            fn.max("stored"),
            fn.percentile_approx("delay", [0.5, 0.99], 10_000),
            fn.max("delay"),
        )
        .orderBy("topic")
        .collect()
    )
    return [
        TopicFigures(topic, count, size, first, last, float(part[0]), float(part[1]), float(most))
        for topic, count, size, first, last, part, most in rows
    ]


def _step(topics: list[TopicFigures]) -> int:
    if not topics:
        return 1
    span = max(each.last_ms for each in topics) - min(each.first_ms for each in topics)
    wanted = span / 1000 / _POINTS
    return next((step for step in _STEPS if step >= wanted), max(int(wanted), _STEPS[-1]))


def _rates(slim: DataFrame, step: int) -> dict[str, list[tuple[int, int, int]]]:
    at = (fn.floor(fn.col("stored") / (step * 1000)) * step).cast("long").alias("at")
    found: dict[str, list[tuple[int, int, int]]] = {}
    rows = slim.groupBy("topic", at).agg(fn.count("*"), fn.sum("size")).orderBy("topic", "at")
    for topic, moment, count, size in rows.collect():
        points = found.setdefault(topic, [])
        if points and moment - points[-1][0] > step:
            # Nothing was stored in between: the line drops to zero and stays there.
            points.append((points[-1][0] + step, 0, 0))
            if moment - points[-1][0] > step:
                points.append((moment - step, 0, 0))
        points.append((moment, count, size))
    return found


def _histogram(slim: DataFrame, value: Column) -> dict[str, list[tuple[int, int]]]:
    power = (
        fn.when(value < 1, fn.lit(0)).otherwise(fn.floor(fn.log2(value)) + 1).cast("int")
    ).alias("power")
    found: dict[str, dict[int, int]] = {}
    for topic, bucket, count in slim.groupBy("topic", power).count().collect():
        found.setdefault(topic, {})[bucket] = count
    return {
        topic: [(n, buckets.get(n, 0)) for n in range(min(buckets), max(buckets) + 1)]
        for topic, buckets in sorted(found.items())
    }


def _hot_keys(slim: DataFrame) -> dict[str, list[tuple[str, int]]]:
    counted = (
        slim.where(fn.col("keys").isNotNull())
        .select("topic", fn.explode(fn.split("keys", " ")).alias("key"))
        .where("key <> ''")
        .groupBy("topic", "key")
        .count()
    )
    place = fn.row_number().over(Window.partitionBy("topic").orderBy(fn.desc("count"), "key"))
    rows = counted.withColumn("place", place).where(f"place <= {MAX_HOT_KEYS}")
    found: dict[str, list[tuple[str, int]]] = {}
    for topic, key, count, _ in rows.orderBy("topic", "place").collect():
        found.setdefault(topic, []).append((key, count))
    return found


def _queues(slim: DataFrame) -> dict[str, list[tuple[str, int, int, int]]]:
    found: dict[str, list[tuple[str, int, int, int]]] = {}
    rows = (
        slim.groupBy("topic", "brokerName", "queueId")
        .agg(fn.count("*"), fn.sum("size"))
        .orderBy("topic", "brokerName", "queueId")
    )
    for topic, broker, queue, count, size in rows.collect():
        found.setdefault(topic, []).append((broker, queue, count, size))
    return found
