"""`pyromq spark report`: one HTML page about topics, with charts.

Throughput over time, sizes, delays from sending to storing, hot keys, how evenly queues are
filled, and how far consumer groups are behind. From brokers, from an archive or from the
files of a store. Runs in the driver, on the main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    check_writable,
    clear_errors,
    cluster_options,
    milliseconds_of,
    open_session,
    progress_bars,
    spark_options,
)
from pyromq.spark.report.data import COLUMNS, STAGES, ReportData, gather

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@click.command("report")
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--topic", "topics", multiple=True, help="A topic to report on; repeatable.")
@click.option("--pattern", help="All topics whose whole name this expression matches.")
@click.option(
    "--archive",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read this archive instead of asking brokers.",
)
@click.option(
    "--store-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the files of this broker's store instead of asking brokers.",
)
@click.option(
    "--since", metavar="TIME", help="Only what was stored from then on, as 2026-11-16T05:00:00Z."
)
@click.option("--until", metavar="TIME", help="Only what was stored before.")
@click.option("--title", default="RocketMQ report", show_default=True, help="The page's title.")
@click.option("--dry-run", is_flag=True, help="Say what would be read; read and write nothing.")
@cluster_options
@spark_options
def command(
    cluster: ClusterSettings,
    spark: SparkSettings,
    output: Path,
    topics: tuple[str, ...],
    pattern: str | None,
    archive: Path | None,
    store_path: Path | None,
    since: str | None,
    until: str | None,
    title: str,
    dry_run: bool,
) -> None:
    """Write a page about topics to OUTPUT: rates, sizes, delays, hot keys, queues, lag.

    Without --topic and --pattern, about all topics that are not the system's.

    \b
    Examples
        pyromq spark report report.html --topic Orders
        pyromq spark report report.html --archive /data/archive --since 2026-11-16T00:00:00Z
    """
    if archive is not None and store_path is not None:
        raise click.UsageError("--archive and --store-path: messages come from one of them")
    if topics and pattern:
        raise click.UsageError("--topic and --pattern: give one of them")
    since_ms, until_ms = milliseconds_of("--since", since), milliseconds_of("--until", until)
    place = str(archive or store_path or cluster.nameserver)
    with clear_errors():
        chosen = None if archive is not None else _choose(cluster, store_path, topics, pattern)
    if dry_run:
        what = ", ".join(chosen) if chosen is not None else ", ".join(topics) or pattern or "all"
        click.echo(f"would read from {place}: {what}; would write {output}")
        return
    check_writable(output)
    if chosen == []:
        raise click.ClickException(f"{place} has no topic to report on")
    with open_session(spark) as session, progress_bars() as bars:
        if archive is not None:
            frame = _archived(session, archive, topics, pattern)
        else:
            from pyromq.spark.reading.conditions import stored_condition

            stored = stored_condition(since_ms, until_ms)
            frame = _stored(session, cluster, store_path, chosen or [], stored)
        bar = bars.add_task("reading", total=len(STAGES))
        data = report(
            frame,
            since_ms=since_ms,
            until_ms=until_ms,
            on_stage=lambda stage: bars.update(bar, description=stage, advance=1),
        )
    if archive is None and store_path is None:
        with clear_errors():
            _add_lags(data, cluster)
    write_page(data, output, title)
    messages = sum(each.messages for each in data.topics)
    click.echo(f"{output}: {messages:,} messages of {len(data.topics)} topics")


def report(
    messages: DataFrame,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> ReportData:
    """The figures of a table of messages: of the format "rocketmq", or of an archive."""
    from pyspark.sql import functions as fn

    stored = fn.col("storeTimestamp")
    if since_ms is not None:
        messages = messages.where(stored >= fn.timestamp_millis(fn.lit(since_ms)))
    if until_ms is not None:
        messages = messages.where(stored < fn.timestamp_millis(fn.lit(until_ms)))
    return gather(messages.select(*COLUMNS), on_stage)


def write_page(data: ReportData, output: Path, title: str = "RocketMQ report") -> None:
    """Write the page; whoever looks at it meanwhile sees the old one."""
    from pyromq.spark.archive.durable_files import write_whole
    from pyromq.spark.report.page import page

    write_whole(output, page(data, title=title, made_at=datetime.now(UTC)).encode())


def _choose(
    cluster: ClusterSettings, store_path: Path | None, topics: tuple[str, ...], pattern: str | None
) -> list[str]:
    """The topics that the report is about."""
    from pyromq.spark.origins.opening import BrokerSource, StoreSource

    source = StoreSource(str(store_path)) if store_path else BrokerSource(cluster.connection())
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


def _stored(
    session: SparkSession,
    cluster: ClusterSettings,
    store_path: Path | None,
    topics: list[str],
    condition: str,
) -> DataFrame:
    from pyspark.sql.types import StructType

    from pyromq.spark.columns import schema
    from pyromq.spark.reading.conditions import options_for

    where = {"storePath": str(store_path)} if store_path else cluster.source_options()
    wanted = [field for field in schema().fields if field.name in COLUMNS]
    return (
        session.read.format("rocketmq")
        .options(subscribe=",".join(topics), **where, **options_for(condition).options)
        .schema(StructType(wanted))
        .load()
    )


def _archived(
    session: SparkSession, archive: Path, topics: tuple[str, ...], pattern: str | None
) -> DataFrame:
    from pyspark.sql import functions as fn

    frame = session.read.parquet(str(archive))
    if topics:
        frame = frame.where(fn.col("topic").isin(*topics))
    if pattern:
        frame = frame.where(fn.col("topic").rlike(f"^(?:{pattern})$"))
    return frame


def _add_lags(data: ReportData, cluster: ClusterSettings) -> None:
    from pyromq.spark.origins.broker import BrokerOrigin
    from pyromq.spark.report.groups import group_lags

    with closing(BrokerOrigin(cluster.connection())) as origin:
        data.lags = group_lags(origin, {each.topic for each in data.topics})
