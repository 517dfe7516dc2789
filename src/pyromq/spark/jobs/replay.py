"""`pyromq spark replay`: messages of an archive or of another cluster, sent again.

The command; what it does is in `replayer`. Runs in the driver, on the main thread.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pyromq.client.errors import IllegalMessageError
from pyromq.client.message import check_topic
from pyromq.spark.archive.directory import ArchiveError
from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    clear_errors,
    cluster_options,
    milliseconds_of,
    open_session,
    progress_bars,
    spark_options,
)
from pyromq.spark.options import TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.replay.replayer import (
    DEFAULT_PART_MESSAGES,
    ArchivedTopics,
    ClusterTopics,
    Replayed,
    ReplayOptions,
    ReplaySource,
    run_replay,
)
from pyromq.spark.replay.rows import Filters, Order
from pyromq.spark.replay.state import ReplayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.command("replay")
@click.option(
    "--archive",
    type=click.Path(path_type=Path, file_okay=False),
    help="Replay this archive, as `pyromq spark archive` writes them.",
)
@click.option(
    "--source-nameserver", metavar="ADDRESSES", help="Replay topics of the cluster of these."
)
@click.option("--source-access-key", default="", help="Who signs the requests to the source.")
@click.option(
    "--source-secret-key",
    envvar="ROCKETMQ_SOURCE_SECRET_KEY",
    show_envvar=True,
    default="",
    help="The key that signs them.",
)
@click.option("--source-tls", is_flag=True, help="Encrypt the way from the source.")
@click.option("--topic", "topics", multiple=True, help="A topic to replay; repeatable.")
@click.option("--pattern", help="Replay all topics whose whole name this expression matches.")
@click.option("--to-topic", help="Send everything to this topic.  [default: the same names]")
@click.option("--where", metavar="SQL", help="Only messages for which this is true.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@click.option("--since", metavar="TIME", help="Only messages stored at or after this time.")
@click.option("--until", metavar="TIME", help="Only messages stored before this time.")
@click.option(
    "--rate", type=click.IntRange(1), metavar="MESSAGES", help="So many in a second at most."
)
@click.option(
    "--pace",
    type=click.FloatRange(0, min_open=True),
    metavar="FACTOR",
    help="Keep the distances in time that messages had: 1 as they were, 2 twice as fast.",
)
@click.option(
    "--shift",
    metavar="DURATION|now",
    default="0s",
    show_default=True,
    help="Move the times that messages tell (ORIGIN_..._TIME): -7d, 90m, or such that the "
    "first one is now.",
)
@click.option(
    "--order",
    type=click.Choice([order.value for order in Order]),
    default=Order.NONE.value,
    show_default=True,
    help="What stays in order: the messages of each queue, or of each ordering key.",
)
@click.option(
    "--keep-unique-keys", is_flag=True, help="Send messages with the unique keys that they had."
)
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Go on without messages of the source that have expired or are damaged.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep progress in this directory: started again, the replay goes on.",
)
@click.option(
    "--part-messages",
    type=click.IntRange(1),
    default=DEFAULT_PART_MESSAGES,
    show_default=True,
    help="Messages between two notes of progress: at most these are sent twice.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be replayed; send nothing.")
@cluster_options
@spark_options
def command(
    cluster: ClusterSettings,
    spark: SparkSettings,
    archive: Path | None,
    source_nameserver: str | None,
    source_access_key: str,
    source_secret_key: str,
    source_tls: bool,
    topics: tuple[str, ...],
    pattern: str | None,
    to_topic: str | None,
    where: str | None,
    tags: tuple[str, ...],
    since: str | None,
    until: str | None,
    rate: int | None,
    pace: float | None,
    shift: str,
    order: str,
    keep_unique_keys: bool,
    ignore_data_loss: bool,
    state: Path | None,
    part_messages: int,
    dry_run: bool,
) -> None:
    """Send messages of an archive, or of another cluster, to the cluster of --nameserver.

    What there is when it begins is replayed, no more. With --state a replay that was
    interrupted goes on; what it sends twice then has the same unique keys.

    \b
    Examples
        pyromq spark replay --archive /data/archive --topic Orders --to-topic Orders-again
        pyromq spark replay --source-nameserver prod:9876 --topic Orders --state /data/replay \\
            --where "keys like 'EUR%'" --rate 5000
        pyromq spark replay --archive /data/archive --pace 1 --shift now --since 2026-11-16T05:00Z
    """
    if (archive is None) == (source_nameserver is None):
        raise click.UsageError("say what to replay: --archive or --source-nameserver, one of them")
    if topics and pattern is not None:
        raise click.UsageError("--topic and --pattern exclude each other")
    wanted = _wanted(topics, pattern)
    if to_topic is not None:
        try:
            check_topic(to_topic)
        except IllegalMessageError as error:
            raise click.UsageError(f"--to-topic: {error}") from error
    options = ReplayOptions(
        Filters(where, tags, milliseconds_of("--since", since), milliseconds_of("--until", until)),
        to_topic,
        rate,
        pace,
        _shift(shift),
        Order(order),
        keep_unique_keys,
        part_messages,
    )
    source: ReplaySource
    if archive is not None:
        source = ArchivedTopics(archive, wanted)
    else:
        assert source_nameserver is not None
        if wanted is None:
            raise click.UsageError("name topics with --topic, or all of a kind with --pattern")
        _check_circle(source_nameserver, cluster, topics, to_topic)
        settings = ClusterSettings(
            source_nameserver, source_access_key, source_secret_key, source_tls
        )
        read_options = settings.source_options()
        if ignore_data_loss:
            read_options["failOnDataLoss"] = "false"
        source = ClusterTopics(BrokerSource(settings.connection()), read_options, wanted)
    if dry_run:
        with _clear_errors():
            _show_plan(source, options, cluster)
        return
    with open_session(spark) as session, _clear_errors():
        _run(session, source, cluster, options, state)


def _run(
    session: SparkSession,
    source: ReplaySource,
    cluster: ClusterSettings,
    options: ReplayOptions,
    state: Path | None,
) -> None:
    replayed = Replayed()
    try:
        with progress_bars() as bars:
            bar = bars.add_task("messages", total=None)

            def show(so_far: Replayed) -> None:
                nonlocal replayed
                replayed = so_far
                bars.update(
                    bar,
                    description=so_far.unit,
                    completed=so_far.unit_done,
                    total=so_far.unit_total,
                )

            replayed = run_replay(
                session,
                source,
                cluster.source_options(),
                options,
                state=state,
                on_progress=show,
            )
    except KeyboardInterrupt:
        again = "; started again with the same --state it goes on" if state is not None else ""
        click.echo(f"interrupted{again}")
    click.echo(
        f"{replayed.messages} messages in {replayed.parts} parts"
        + (f", {replayed.all_messages} with earlier runs" if replayed.resumed else "")
    )


def _show_plan(source: ReplaySource, options: ReplayOptions, cluster: ClusterSettings) -> None:
    units, ends = source.units(options.filters)
    for unit in units:
        click.echo(f"would be replayed: {unit}")
    for queue, end in sorted(ends.items()):
        click.echo(f"  {queue}: up to offset {end}")
    target = options.to_topic or "topics of the same names"
    click.echo(f"to {target} of {cluster.nameserver}")


def _wanted(topics: tuple[str, ...], pattern: str | None) -> Topics | TopicPattern | None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.UsageError(f"--pattern {pattern!r}: {error}") from error
        return TopicPattern(pattern)
    return Topics(topics) if topics else None


def _check_circle(
    source_nameserver: str, cluster: ClusterSettings, topics: tuple[str, ...], to_topic: str | None
) -> None:
    """Refuse to send the messages of a topic to that very topic."""
    if source_nameserver == cluster.nameserver and (to_topic is None or to_topic in topics):
        raise click.UsageError(
            "source and target are the same topics of the same cluster: give another --to-topic"
        )


def _shift(text: str) -> int | None:
    """Milliseconds; None: such that the first message is now."""
    if text == "now":
        return None
    found = re.fullmatch(r"([+-]?\d{1,12})(ms|s|m|h|d)", text)
    if found is None:
        raise click.UsageError(f"--shift {text!r}: expected now, or a duration as -7d, 90m, 500ms")
    return int(found[1]) * _UNITS[found[2]]


def _clear_errors() -> AbstractContextManager[None]:
    return clear_errors(ArchiveError, ReplayError)
