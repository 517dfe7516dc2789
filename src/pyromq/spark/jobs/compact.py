"""`pyromq spark compact`: the command. `archive.compactor` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyromq.base.sizes import MIB
from pyromq.spark.archive.defaults import AUTO, COMPRESSIONS, TARGET_BYTES
from pyromq.spark.jobs.options import SparkSettings, spark_options
from pyromq.spark.jobs.output import print_table
from pyromq.spark.jobs.running import clear_errors, running_job

if TYPE_CHECKING:
    from pyromq.spark.archive.compactor import FileGroup


@click.command("compact")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Compact only this topic. Repeatable.")
@click.option(
    "--target-size",
    type=click.IntRange(1),
    default=TARGET_BYTES // MIB,
    show_default=True,
    metavar="MIB",
    help="Merge files up to this size. Files of at least half this size stay as they are.",
)
@click.option(
    "--older-than",
    type=click.IntRange(0),
    metavar="HOURS",
    help="Compact only hours that ended at least this long ago.",
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default=AUTO,
    show_default=True,
    help="Compress merged files with this codec.",
)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help="If the filesystem cannot swap directories, replace file by file. Readers may briefly "
    "miss messages.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be merged, and change nothing.")
@spark_options
@clear_errors()
def command(
    spark: SparkSettings,
    directory: Path,
    topics: tuple[str, ...],
    target_size: int,
    older_than: int | None,
    compression: str,
    allow_gaps: bool,
    dry_run: bool,
) -> None:
    """Merge the small files of the archive in DIRECTORY, within each topic and hour.

    An archive job may be running. Readers of the directory see either the old or the new files.

    \b
    Examples
        pyromq spark compact /data/archive
        pyromq spark compact /data/archive --older-than 1 --target-size 512
    """
    from pyromq.spark.archive import compactor

    options = compactor.CompactOptions(
        target_size * MIB,
        frozenset(topics) or None,
        None if older_than is None else _hour(older_than),
        compression,
        allow_gaps,
    )
    groups = compactor.plan_archive_groups(directory, options)
    if dry_run:
        _show_groups(groups, directory)
        return
    if not groups:
        click.echo("nothing to merge: there are no small files next to each other")
        return
    total = sum(len(group.files) for group in groups)
    with running_job(spark) as job:
        done = compactor.run_compact(
            job.session,
            directory,
            options,
            on_progress=lambda progress: job.show("files", progress.files_before, total),
        )
    click.echo(
        f"merged {done.files_before} files ({done.bytes_before} bytes) into {done.files_after} "
        f"({done.bytes_after} bytes)"
    )


def _hour(hours_ago: int) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours_ago)).strftime("%Y-%m-%d-%H")


def _show_groups(groups: Sequence[FileGroup], directory: Path) -> None:
    rows = [(group.topic, group.hour, len(group.files), group.bytes) for group in groups]
    print_table(f"to be merged in {directory}", ("topic", "hour", "files", "bytes"), rows)
    click.echo(f"{sum(len(group.files) for group in groups)} files would become {len(groups)}")
