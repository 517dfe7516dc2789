"""`pyromq spark archive`: topics to Parquet, partitioned by topic and hour, exactly once.

The command; what it does is in `archiver`. Runs in the driver, on the main thread.
"""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.table import Table

from pyromq.spark.archive.archiver import (
    DEFAULT_MAX_RECORDS,
    Archived,
    ArchiveOptions,
    check_topics,
    plan_archive,
    run_archive,
)
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError
from pyromq.spark.archive.files import COMPRESSIONS, FileSettings
from pyromq.spark.archive.plan import CommitPlan
from pyromq.spark.columns import MAP, RAW
from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    clear_errors,
    cluster_options,
    open_session,
    output_console,
    progress_bars,
    spark_options,
    time_of,
)
from pyromq.spark.options import Edge, Time, TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.reading.positions import DataLossError
from pyromq.spark.runtime.fan_out import TaskFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 1024 * 1024


@click.command("archive")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="A topic to archive; repeatable.")
@click.option("--pattern", help="Archive all topics whose whole name this expression matches.")
@click.option(
    "--once", is_flag=True, help="Archive what is there now, then end. So it is without --interval."
)
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Go on: look for new messages after so many seconds, each time.",
)
@click.option(
    "--from",
    "starting",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Where topics begin that are not in the archive yet; a time as 2026-11-16T05:00:00Z.",
)
@click.option(
    "--store-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the files of this broker's store instead of asking brokers.",
)
@click.option("--broker-name", default="", help="With --store-path: whose store that is.")
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Go on without messages that have expired or are damaged, and write down which.",
)
@click.option(
    "--properties",
    type=click.Choice([RAW, MAP]),
    help="How the column properties is stored.  [default: as the archive has it; raw]",
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="auto",
    show_default=True,
    help="auto: zstd, but snappy for bodies of which zstd leaves hardly less.",
)
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=DEFAULT_MAX_RECORDS,
    show_default=True,
    help="Messages of one commit.",
)
@click.option(
    "--file-size",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="MIB",
    help="A file is ended when so much of messages, before compression, is in it.",
)
@click.option("--tasks", type=click.IntRange(1), help="Tasks of a commit.  [default: 2 a core]")
@click.option("--dry-run", is_flag=True, help="Say what would be archived; change nothing.")
@cluster_options
@spark_options
def command(
    cluster: ClusterSettings,
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
    """Write topics to Parquet files under DIRECTORY, by topic and hour, each message once.

    DIRECTORY is its own checkpoint: started again, after whatever end, it goes on where it was.
    Read it with Spark, pyarrow or DuckDB (topic=*/hour=*/*.parquet).

    \b
    Examples
        pyromq spark archive /data/archive --topic Orders
        pyromq spark archive /data/archive --pattern 'Orders.*' --interval 60
        pyromq spark archive /data/archive --topic Orders --dry-run
    """
    if bool(topics) == (pattern is not None):
        raise click.UsageError("name topics with --topic, or all of a kind with --pattern")
    if once and interval is not None:
        raise click.UsageError("--once ends at once, --interval never: take one of them")
    if broker_name and store_path is None:
        raise click.UsageError("--broker-name says whose store --store-path is: give that, too")
    with _clear_errors():
        source: Source = BrokerSource(cluster.connection())
        if store_path is not None:
            source = StoreSource(str(store_path.absolute()), broker_name)
        options = ArchiveOptions(
            Topics(topics) if pattern is None else TopicPattern(pattern),
            _starting(starting),
            not ignore_data_loss,
            max_records,
            tasks,
            FileSettings(
                properties or ArchiveDirectory(directory).peek().properties,
                compression,
                file_size * _MIB,
            ),
        )
        if dry_run:
            _show_plan(plan_archive(source, directory, options), directory)
            return
        if interval is None:
            check_topics(source, options)
    with open_session(spark) as session, _clear_errors():
        _run(session, source, directory, options, interval)


def _run(
    session: SparkSession,
    source: Source,
    directory: Path,
    options: ArchiveOptions,
    interval: float | None,
) -> None:
    stop = threading.Event()
    # A commit that is under way is finished.
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    archived = Archived()
    try:
        with progress_bars() as bars:
            bar = bars.add_task("messages", total=None)

            def show(so_far: Archived) -> None:
                nonlocal archived
                archived = so_far
                bars.update(bar, completed=so_far.messages, total=so_far.messages + so_far.left)

            run_archive(
                session,
                source,
                directory,
                options,
                interval=interval,
                stop=stop,
                on_progress=show,
            )
    except KeyboardInterrupt:
        click.echo("interrupted; what is committed stays, the rest comes with the next run")
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo(
        f"{archived.messages} messages in {archived.files} files ({archived.bytes} bytes), "
        f"{archived.commits} commits"
        + (f", {archived.lost} messages were lost before" if archived.lost else "")
    )


def _show_plan(plan: CommitPlan, directory: Path) -> None:
    table = Table("queue", "from", "to", "messages", title=f"would be archived to {directory}")
    for queue, start, end in plan.ranges:
        table.add_row(str(queue), str(start), str(end), str(end - start))
    output_console().print(table)
    for lost in plan.lost:
        click.echo(f"data loss: {lost}")
    click.echo(f"{plan.records} messages of {len(plan.ranges)} queues")


def _starting(text: str) -> Edge | Time:
    if text in ("earliest", "latest"):
        return Edge[text.upper()]
    return Time(time_of("--from", text, "earliest, latest or "))


def _clear_errors() -> AbstractContextManager[None]:
    return clear_errors(ArchiveError, DataLossError, TaskFailedError)
