"""`pyromq spark report`: the command. `report.reporter` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from pyromq.spark.jobs.moved_names import moved_names
from pyromq.spark.jobs.options import (
    SparkSettings,
    cluster_options,
    parse_optional_time,
    spark_options,
)
from pyromq.spark.jobs.output import check_writable
from pyromq.spark.jobs.running import clear_errors, running_job
from pyromq.spark.origins.opening import BrokerSource, Source, StoreSource
from pyromq.spark.origins.settings import ConnectionSettings

__getattr__ = moved_names(
    __name__,
    report="pyromq.spark.report.reporter",
    write_page="pyromq.spark.report.reporter",
)


@click.command("report")
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--topic", "topics", multiple=True, help="Report on this topic. Repeatable.")
@click.option("--pattern", help="Report on all topics whose whole name matches this regex.")
@click.option(
    "--archive",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read this archive instead of the cluster.",
)
@click.option(
    "--store-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the files of this broker's store instead of the cluster.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Count only messages stored at or after this time (2026-11-16T05:00:00Z).",
)
@click.option("--until", metavar="TIME", help="Count only messages stored before this time.")
@click.option(
    "--title", default="RocketMQ report", show_default=True, help="Give the page this title."
)
@click.option("--dry-run", is_flag=True, help="Print what would be read, and read nothing.")
@cluster_options
@spark_options
@clear_errors()
def command(
    cluster: ConnectionSettings,
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
    """Write an HTML page about topics to OUTPUT: rates, sizes, delays, hot keys, queues, lag.

    Without --topic and --pattern it covers all topics except system, retry and dead-letter topics.

    \b
    Examples
        pyromq spark report report.html --topic Orders
        pyromq spark report report.html --archive /data/archive --since 2026-11-16T00:00:00Z
    """
    if archive is not None and store_path is not None:
        raise click.UsageError("--archive and --store-path are mutually exclusive")
    if topics and pattern:
        raise click.UsageError("--topic and --pattern are mutually exclusive")
    since_ms = parse_optional_time("--since", since)
    until_ms = parse_optional_time("--until", until)
    source: Source = BrokerSource(cluster) if store_path is None else StoreSource(str(store_path))
    place = archive or store_path or ";".join(cluster.name_servers)

    from pyromq.spark.report import data, reporter

    chosen: list[str] = []
    if archive is None:
        chosen = reporter.choose_topics(source, topics, pattern)
        if not chosen and not dry_run:
            raise click.ClickException(f"{place} has no topic to report on")
    if dry_run:
        named = chosen if archive is None else topics or [pattern or "all topics"]
        click.echo(f"would read from {place}: {', '.join(named)}; would write {output}")
        return
    check_writable(output)
    with running_job(spark) as job:
        if archive is not None:
            messages = reporter.read_archive(job.session, archive, topics, pattern)
        else:
            messages = reporter.read_topics(
                job.session, source, chosen, since_ms=since_ms, until_ms=until_ms
            )
        stages = list(data.STAGES)
        figures = reporter.report(
            messages,
            since_ms=since_ms,
            until_ms=until_ms,
            on_stage=lambda stage: job.show(
                "stages", stages.index(stage) + 1, len(stages), text=stage
            ),
        )
    if archive is None and isinstance(source, BrokerSource):
        reporter.add_lags(figures, source)
    reporter.write_page(figures, output, title)
    messages_read = sum(each.messages for each in figures.topics)
    click.echo(f"{output}: {messages_read:,} messages of {len(figures.topics)} topics")
