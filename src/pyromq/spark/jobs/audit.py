"""`pyromq spark audit`: the command. `audit.auditor` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from pyromq.spark.jobs.moved_names import moved_names
from pyromq.spark.jobs.options import SparkSettings, cluster_options, spark_options
from pyromq.spark.jobs.output import check_writable, output_console
from pyromq.spark.jobs.running import clear_errors, running_job
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.settings import ConnectionSettings

__getattr__ = moved_names(__name__, audit="pyromq.spark.audit.auditor")


@click.command("audit")
@click.option(
    "--store",
    "stores",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="Audit this store directory of a broker instead of the cluster. Repeatable.",
)
@click.option("--topic", "topics", multiple=True, help="Audit only this topic. Repeatable.")
@click.option(
    "--consumers",
    is_flag=True,
    help="With --store: ask the cluster for consumer groups instead of reading their offsets "
    "from the store.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write all findings to this file as JSON.",
)
@click.option("--strict", is_flag=True, help="Exit with code 1 if anything is wrong.")
@click.option("--dry-run", is_flag=True, help="Print how much would be read, and read nothing.")
@cluster_options
@spark_options
@clear_errors()
def command(
    cluster: ConnectionSettings,
    spark: SparkSettings,
    stores: tuple[Path, ...],
    topics: tuple[str, ...],
    consumers: bool,
    json_file: Path | None,
    strict: bool,
    dry_run: bool,
) -> None:
    """Find gaps, duplicates and damage in stored messages.

    Reports gaps in queues, duplicate offsets and unique keys, wrong CRCs and other damage,
    unfinished transactions and dead letters, and lists the producers and consumer groups of each
    topic. Reads only; brokers may be running.

    \b
    Examples
        pyromq spark audit --store /data/broker-a/store --store /data/broker-b/store
        pyromq spark audit --nameserver localhost:9876 --topic Orders --json audit.json --strict
    """
    from pyromq.spark.audit import auditor, tables

    sources = auditor.store_sources(stores) or [BrokerSource(cluster)]
    if dry_run:
        tasks = auditor.count_tasks(sources, topics)
        click.echo(f"would read {len(sources)} sources with {tasks} tasks; nothing was read")
        return
    if json_file is not None:
        check_writable(json_file)
    with running_job(spark) as job:
        report = auditor.audit(
            job.session,
            sources,
            topics=topics,
            cluster=cluster if consumers or not stores else None,
            progress=job.show,
        )
    if json_file is not None:
        json_file.write_bytes(report.to_json())
    tables.show(report, output_console())
    if strict and not report.is_clean:
        raise SystemExit(1)
