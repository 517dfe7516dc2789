"""The report job: read messages, compute figures, write a page.

    data = report(spark.read.format("rocketmq").options(...).load())
    write_page(data, Path("report.html"))

Messages come from brokers, an archive or the files of a store. Called in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from pyromq.base.atomic_file import write_file
from pyromq.spark.columns import schema
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.reading.conditions import options_for, stored_condition
from pyromq.spark.report.data import COLUMNS, ReportData, gather
from pyromq.spark.report.groups import group_lags
from pyromq.spark.report.page import page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def report(
    messages: DataFrame,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> ReportData:
    """Return the figures of a table of messages, from the format "rocketmq" or an archive."""
    stored = fn.col("storeTimestamp")
    if since_ms is not None:
        messages = messages.where(stored >= fn.timestamp_millis(fn.lit(since_ms)))
    if until_ms is not None:
        messages = messages.where(stored < fn.timestamp_millis(fn.lit(until_ms)))
    return gather(messages.select(*COLUMNS), on_stage)


def write_page(data: ReportData, output: Path, title: str = "RocketMQ report") -> None:
    """Write the page atomically."""
    write_file(output, page(data, title=title, made_at=datetime.now(UTC)).encode())


def choose_topics(source: Source, topics: Sequence[str], pattern: str | None) -> list[str]:
    """Return the topics to report on: those named, those that match, or all.

    Raises ValueError for an unknown topic and an invalid pattern.
    """
    with closing(source.open()) as origin:
        if topics:
            missing = [topic for topic in topics if not origin.queues(topic)]
            if missing:
                raise ValueError(f"there is no topic {', '.join(missing)}")
            return sorted(set(topics))
        try:
            matches = re.compile(pattern or "[^%].*").fullmatch
        except re.error as error:
            raise ValueError(f"--pattern {pattern!r}: {error}") from None
        return [topic for topic in origin.topics() if matches(topic)]


def read_topics(
    session: SparkSession,
    source: Source,
    topics: Sequence[str],
    *,
    since_ms: int | None,
    until_ms: int | None,
) -> DataFrame:
    """Return the messages of topics that were stored in this time, with the report's columns."""
    if isinstance(source, StoreSource):
        origin = {"storePath": source.store_path}
    else:
        origin = source.settings.format_options()
    condition = stored_condition(since_ms, until_ms)
    wanted = [field for field in schema().fields if field.name in COLUMNS]
    return (
        session.read.format("rocketmq")
        .options(subscribe=",".join(topics), **origin, **options_for(condition).options)
        .schema(StructType(wanted))
        .load()
    )


def read_archive(
    session: SparkSession, archive: Path, topics: Sequence[str], pattern: str | None
) -> DataFrame:
    """Return the messages of an archive, or of some of its topics."""
    frame = session.read.parquet(str(archive))
    if topics:
        frame = frame.where(fn.col("topic").isin(*topics))
    if pattern:
        frame = frame.where(fn.col("topic").rlike(f"^(?:{pattern})$"))
    return frame


def add_lags(data: ReportData, source: BrokerSource) -> None:
    """Add the lags of the consumer groups of the report's topics."""
    with closing(source.open()) as origin:
        data.lags = group_lags(origin, {each.topic for each in data.topics})
