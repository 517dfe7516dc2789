"""`pyromq spark replay`: the command. `replay.replayer` does the work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pyromq.spark.jobs.options import (
    SparkSettings,
    cluster_options,
    connection_settings,
    parse_optional_time,
    spark_options,
)
from pyromq.spark.jobs.running import clear_errors, running_job
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.replay.options import DEFAULT_PART_MESSAGES, Filters, Order, ReplayOptions

if TYPE_CHECKING:
    from pyromq.spark.replay.replayer import Replayed, ReplaySource

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@click.command("replay")
@click.option(
    "--archive",
    type=click.Path(path_type=Path, file_okay=False),
    help="Replay this archive, written by `pyromq spark archive`.",
)
@click.option(
    "--source-nameserver",
    metavar="ADDRESSES",
    help="Replay topics of the cluster with these NameServers.",
)
@click.option("--source-access-key", default="", help="Sign requests to the source as this user.")
@click.option(
    "--source-secret-key",
    envvar="ROCKETMQ_SOURCE_SECRET_KEY",
    show_envvar=True,
    default="",
    help="Sign requests to the source with this key.",
)
@click.option(
    "--source-tls",
    is_flag=True,
    help="Encrypt connections to the source, with the files of --tls-ca and its relatives.",
)
@click.option("--topic", "topics", multiple=True, help="Replay this topic. Repeatable.")
@click.option("--pattern", help="Replay all topics whose whole name matches this regex.")
@click.option(
    "--to-topic", help="Send all messages to this topic.  [default: topics of the same names]"
)
@click.option("--where", metavar="SQL", help="Replay only messages that meet this condition.")
@click.option(
    "--tag", "tags", multiple=True, help="Replay only messages with this tag. Repeatable."
)
@click.option("--since", metavar="TIME", help="Replay only messages stored at or after this time.")
@click.option("--until", metavar="TIME", help="Replay only messages stored before this time.")
@click.option(
    "--rate",
    type=click.IntRange(1),
    metavar="MESSAGES",
    help="Send at most this many messages per second.",
)
@click.option(
    "--pace",
    type=click.FloatRange(0, min_open=True),
    metavar="FACTOR",
    help="Keep the original intervals between messages: 1 at the same speed, 2 twice as fast.",
)
@click.option(
    "--shift",
    metavar="DURATION|now",
    default="0s",
    show_default=True,
    help="Shift the times in messages (ORIGIN_..._TIME) by a duration such as -7d or 90m; now "
    "makes the first message's time the current one.",
)
@click.option(
    "--order",
    type=click.Choice([order.value for order in Order]),
    default=Order.NONE.value,
    show_default=True,
    help="Keep the order within each queue, or within each ordering key.",
)
@click.option(
    "--keep-unique-keys", is_flag=True, help="Send messages with their original unique keys."
)
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Continue without messages of the source that have expired or are damaged.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Save progress in this directory, so that an interrupted replay can resume.",
)
@click.option(
    "--part-messages",
    type=click.IntRange(1),
    default=DEFAULT_PART_MESSAGES,
    show_default=True,
    help="Save progress after this many messages. A resumed replay repeats at most as many.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be replayed, and send nothing.")
@cluster_options
@spark_options
@clear_errors()
def command(
    cluster: ConnectionSettings,
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

    Replays the messages that exist when it starts, and no later ones. With --state, an interrupted
    replay can resume; messages that it sends twice have the same unique keys.

    \b
    Examples
        pyromq spark replay --archive /data/archive --topic Orders --to-topic Orders-again
        pyromq spark replay --source-nameserver prod:9876 --topic Orders --state /data/replay \\
            --where "keys like 'EUR%'" --rate 5000
        pyromq spark replay --archive /data/archive --pace 1 --shift now --since 2026-11-16T05:00Z
    """
    if (archive is None) == (source_nameserver is None):
        raise click.UsageError("give either --archive or --source-nameserver")
    if topics and pattern is not None:
        raise click.UsageError("--topic and --pattern are mutually exclusive")
    if source_nameserver is not None and not topics and pattern is None:
        raise click.UsageError("give either --topic or --pattern")
    _check_pattern(pattern)
    options = ReplayOptions(
        Filters(
            where,
            tags,
            parse_optional_time("--since", since),
            parse_optional_time("--until", until),
        ),
        to_topic,
        rate,
        pace,
        _parse_shift(shift),
        Order(order),
        keep_unique_keys,
        part_messages,
    )

    from pyromq.spark.replay import replayer

    if to_topic is not None:
        try:
            replayer.check_topic(to_topic)
        except ValueError as error:
            raise click.UsageError(f"--to-topic: {error}") from error
    wanted = replayer.TopicPattern(pattern) if pattern is not None else replayer.Topics(topics)
    source: ReplaySource
    if source_nameserver is None:
        assert archive is not None
        source = replayer.ArchivedTopics(archive, wanted if topics or pattern else None)
    else:
        tls = source_tls and (cluster.tls or True)
        settings = connection_settings(source_nameserver, source_access_key, source_secret_key, tls)
        _check_loop(settings, cluster, topics, to_topic)
        read_options = settings.format_options()
        if ignore_data_loss:
            read_options["failOnDataLoss"] = "false"
        source = replayer.ClusterTopics(BrokerSource(settings), read_options, wanted)
    if dry_run:
        _show_plan(source, options, cluster)
        return
    replayed = replayer.Replayed()
    hint = "; run it again with the same --state to resume" if state is not None else ""
    with running_job(spark, interrupted=f"interrupted{hint}") as job:

        def show(progress: Replayed) -> None:
            nonlocal replayed
            replayed = progress
            job.show("messages", progress.unit_done, progress.unit_total, text=progress.unit)

        replayed = replayer.run_replay(
            job.session,
            source,
            cluster.format_options(),
            options,
            state=state,
            on_progress=show,
        )
    click.echo(
        f"replayed {replayed.messages} messages in {replayed.parts} batches"
        + (f", {replayed.all_messages} including earlier runs" if replayed.resumed else "")
    )


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise click.UsageError(f"--pattern {pattern!r}: {error}") from error


def _parse_shift(text: str) -> int | None:
    """Return milliseconds, or None if the first message's time is to become now."""
    if text == "now":
        return None
    found = re.fullmatch(r"([+-]?\d{1,12})(ms|s|m|h|d)", text)
    if found is None:
        raise click.UsageError(
            f"--shift {text!r}: expected now, or a duration such as -7d, 90m, 500ms"
        )
    return int(found[1]) * _MILLISECONDS[found[2]]


def _check_loop(
    source: ConnectionSettings,
    target: ConnectionSettings,
    topics: tuple[str, ...],
    to_topic: str | None,
) -> None:
    """Reject sending the messages of a topic to that same topic."""
    if source.name_servers == target.name_servers and (to_topic is None or to_topic in topics):
        raise click.UsageError(
            "source and target are the same topics of the same cluster: give another --to-topic"
        )


def _show_plan(source: ReplaySource, options: ReplayOptions, cluster: ConnectionSettings) -> None:
    units, ends = source.units(options.filters)
    for unit in units:
        click.echo(f"would replay: {unit}")
    for queue, end in sorted(ends.items()):
        click.echo(f"  {queue}: up to offset {end}")
    target = options.to_topic or "topics of the same names"
    click.echo(f"to {target} of {';'.join(cluster.name_servers)}")
