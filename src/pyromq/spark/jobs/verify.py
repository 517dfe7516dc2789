"""`pyromq spark verify`: the command. `stores.verify` does the work."""

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

__getattr__ = moved_names(__name__, verify_stores="pyromq.spark.stores.verify")


@click.command("verify")
@stores_argument
@store_config_option
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write every difference to this file, one JSON object per line.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Build the files for the comparison in this directory, which every task must see; a tenth "
    "of the size of the logs is enough.  [default: each store's directory]",
)
@part_size_option
@click.option("--dry-run", is_flag=True, help="Print what would be compared, and read nothing.")
@spark_options
@clear_errors()
def command(
    stores: tuple[Path, ...],
    config_file: Path | None,
    report: Path | None,
    scratch: Path | None,
    part_size: int,
    dry_run: bool,
    spark: SparkSettings,
) -> None:
    """Compare the consume queues and the key index of each STORE with its commit log.

    Prints the first differences of each store, with file, entry, expected and actual value. Exits
    with code 1 if there are any. Changes nothing; brokers may be running on the stores.

    \b
    Examples
        pyromq spark verify /data/broker-a/store
        pyromq spark verify /data/*/store --report differences.jsonl
    """
    from pyromq.spark.stores import settings, verify

    configs = settings.load_configs(stores, config_file)
    if scratch is not None and not scratch.is_dir():
        raise click.BadParameter(f"{scratch} is not a directory", param_hint="--scratch")
    if dry_run:
        for line in settings.describe(configs, part_size * MIB):
            click.echo(line)
        click.echo("nothing was read; without --dry-run queues and index would be compared")
        return
    with running_job(spark) as job:
        verified = verify.verify_stores(
            job.session,
            configs,
            knows_delays=config_file is not None,
            scratch=scratch,
            report=report,
            part_size=part_size * MIB,
            progress=job.show,
        )
    for result in verified:
        for difference in result.shown:
            click.echo(str(difference))
        if result.differences > len(result.shown):
            rest = result.differences - len(result.shown)
            hint = f"see {report}" if report else "use --report to list them all"
            click.echo(f"... and {rest} more: {hint}")
        click.echo(
            f"{result.root}: compared {result.rebuilt.queues} consume queues with "
            f"{result.rebuilt.entries} entries and {result.rebuilt.keys} keys, "
            f"{result.differences} differences"
        )
    if any(result.differences for result in verified):
        raise SystemExit(1)
