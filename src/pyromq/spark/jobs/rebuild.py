"""`pyromq spark rebuild`: the command. `stores.rebuild` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from pyromq.base.command_options import store_config_option
from pyromq.base.sizes import MIB
from pyromq.spark.jobs.moved_names import moved_names
from pyromq.spark.jobs.options import (
    SparkSettings,
    part_size_option,
    spark_options,
    stores_argument,
)
from pyromq.spark.jobs.running import clear_errors, running_job

__getattr__ = moved_names(__name__, rebuild_stores="pyromq.spark.stores.rebuild")


@click.command("rebuild")
@stores_argument
@store_config_option
@click.option("--queues", is_flag=True, help="Rebuild only the consume queues.")
@click.option("--index", is_flag=True, help="Rebuild only the key index.")
@part_size_option
@click.option("--dry-run", is_flag=True, help="Print what would be rebuilt, and change nothing.")
@spark_options
@clear_errors()
def command(
    stores: tuple[Path, ...],
    config_file: Path | None,
    queues: bool,
    index: bool,
    part_size: int,
    dry_run: bool,
    spark: SparkSettings,
) -> None:
    """Rebuild the consume queues and the key index of each STORE from its commit log.

    The brokers must be stopped. The files are the ones that pyromq and Apache RocketMQ write
    themselves. Without --config, their sizes are those of the existing files. Every task must see
    the stores at the same paths. Queues of a deleted topic reappear as long as the log still
    contains its messages.

    \b
    Examples
        pyromq spark rebuild /data/broker-a/store
        pyromq spark rebuild /data/*/store --master spark://host:7077
        pyromq spark rebuild /data/broker-a/store --index --dry-run
    """
    from pyromq.spark.stores import rebuild, settings

    configs = settings.load_configs(stores, config_file)
    both = queues == index
    if dry_run:
        for line in settings.describe(configs, part_size * MIB):
            click.echo(line)
        what = "consume queues and key index" if both else "consume queues" if queues else "index"
        click.echo(f"nothing was changed; without --dry-run the {what} would be rebuilt")
        return
    # Lock before Spark starts: a running broker is the most likely mistake.
    with rebuild.locked_stores(configs), running_job(spark) as job:
        rebuilt = rebuild.rebuild_locked_stores(
            job.session,
            configs,
            queues=both or queues,
            index=both or index,
            part_size=part_size * MIB,
            progress=job.show,
        )
    for config, result in zip(configs, rebuilt, strict=True):
        click.echo(
            f"{config.root}: log from {result.log_begin} to {result.log_end}; {result.queues} "
            f"consume queues with {result.entries} entries, {result.keys} keys in the index"
        )
