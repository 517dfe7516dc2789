"""`pyromq spark archive`: the command. `archive.archiver` does the work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyromq.base.sizes import MIB
from pyromq.spark.archive.defaults import (
    AUTO,
    COMPRESSIONS,
    FILE_BYTES,
    MAX_RECORDS,
    PROPERTIES,
)
from pyromq.spark.jobs.options import (
    SparkSettings,
    cluster_options,
    parse_time,
    spark_options,
)
from pyromq.spark.jobs.output import print_table
from pyromq.spark.jobs.running import clear_errors, running_job
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.origins.settings import ConnectionSettings

if TYPE_CHECKING:
    from pyromq.spark.archive.archiver import Archived, CommitPlan


@click.command("archive")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Archive this topic. Repeatable.")
@click.option("--pattern", help="Archive all topics whose whole name matches this regex.")
@click.option(
    "--once",
    is_flag=True,
    help="Archive what is available now, then exit (the default without --interval).",
)
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Keep running, and check for new messages at this interval.",
)
@click.option(
    "--from",
    "starting",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Start here with topics that are not in the archive yet; a time looks like "
    "2026-11-16T05:00:00Z.",
)
@click.option(
    "--store-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the files of this broker's store instead of the cluster.",
)
@click.option(
    "--broker-name", default="", help="Give the name of the broker that owns --store-path."
)
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Continue without messages that have expired or are damaged, and record the losses.",
)
@click.option(
    "--properties",
    type=click.Choice(PROPERTIES),
    help="Store the column properties in this form.  [default: the archive's, or raw]",
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default=AUTO,
    show_default=True,
    help="Compress with this codec. auto is zstd, but snappy for bodies that zstd compresses "
    "hardly better.",
)
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=MAX_RECORDS,
    show_default=True,
    help="Commit after at most this many messages.",
)
@click.option(
    "--file-size",
    type=click.IntRange(1),
    default=FILE_BYTES // MIB,
    show_default=True,
    metavar="MIB",
    help="Start a new file after this much uncompressed data.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    help="Use this many Spark tasks per commit.  [default: 2 per core]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be archived, and change nothing.")
@cluster_options
@spark_options
@clear_errors()
def command(
    cluster: ConnectionSettings,
    spark: SparkSettings,
    directory: Path,
    topics: tuple[str, ...],
    pattern: str | None,
    once: bool,
    interval: float | None,
    starting: str,
    store_path: Path | None,
    broker_name: str,
    ignore_data_loss: bool,
    properties: str | None,
    compression: str,
    max_records: int,
    file_size: int,
    tasks: int | None,
    dry_run: bool,
) -> None:
    """Write topics to Parquet files in DIRECTORY, by topic and hour, each message exactly once.

    DIRECTORY is its own checkpoint: a new run resumes where the last one ended, however it ended.
    Read the files with Spark, pyarrow or DuckDB (topic=*/hour=*/*.parquet).

    \b
    Examples
        pyromq spark archive /data/archive --topic Orders
        pyromq spark archive /data/archive --pattern 'Orders.*' --interval 60
        pyromq spark archive /data/archive --topic Orders --dry-run
    """
    if bool(topics) == (pattern is not None):
        raise click.UsageError("give either --topic or --pattern")
    if once and interval is not None:
        raise click.UsageError("--once and --interval are mutually exclusive")
    if broker_name and store_path is None:
        raise click.UsageError("--broker-name needs --store-path")
    start_ms = None
    if starting not in ("earliest", "latest"):
        start_ms = parse_time("--from", starting, "earliest, latest or ")
    source: Source = BrokerSource(cluster)
    if store_path is not None:
        source = StoreSource(str(store_path.absolute()), broker_name)

    from pyromq.spark.archive import archiver

    options = archiver.ArchiveOptions(
        archiver.Topics(topics) if pattern is None else archiver.TopicPattern(pattern),
        archiver.Edge[starting.upper()] if start_ms is None else archiver.Time(start_ms),
        not ignore_data_loss,
        max_records,
        tasks,
        archiver.FileSettings(
            properties or archiver.ArchiveDirectory(directory).peek().properties,
            compression,
            file_size * MIB,
        ),
    )
    if dry_run:
        _show_plan(archiver.plan_archive(source, directory, options), directory)
        return
    if interval is None:
        archiver.check_topics(source, options)
    archived = archiver.Archived()
    interrupted = "interrupted; committed messages are kept, the next run archives the rest"
    with stop_on_sigterm() as stop, running_job(spark, interrupted=interrupted) as job:

        def show(progress: Archived) -> None:
            nonlocal archived
            archived = progress
            job.show("messages", progress.messages, progress.messages + progress.left)

        archiver.run_archive(
            job.session,
            source,
            directory,
            options,
            interval=interval,
            stop=stop,
            on_progress=show,
        )
    click.echo(
        f"archived {archived.messages} messages in {archived.files} files ({archived.bytes} "
        f"bytes), {archived.commits} commits"
        + (f"; {archived.lost} messages were lost" if archived.lost else "")
    )


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, so that a commit in progress completes."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_plan(plan: CommitPlan, directory: Path) -> None:
    rows = [(queue, start, end, end - start) for queue, start, end in plan.ranges]
    print_table(f"to be archived to {directory}", ("queue", "from", "to", "messages"), rows)
    for lost in plan.lost:
        click.echo(f"data loss: {lost}")
    click.echo(f"{plan.records} messages of {len(plan.ranges)} queues")
