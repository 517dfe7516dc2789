"""`pyromq spark compact`: an archive's small files become fewer, larger ones.

The command; what it does is in `compactor`. Runs in the driver, on the main thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click
from rich.table import Table

from pyromq.spark.archive.compactor import (
    Compacted,
    CompactOptions,
    FileGroup,
    plan_groups,
    run_compact,
)
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError
from pyromq.spark.archive.files import COMPRESSIONS
from pyromq.spark.jobs.options import (
    SparkSettings,
    clear_errors,
    open_session,
    output_console,
    progress_bars,
    spark_options,
)
from pyromq.spark.runtime.fan_out import TaskFailedError

_MIB: Final = 1024 * 1024


@click.command("compact")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--target-size",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="MIB",
    help="How large files become; those of half of it and more stay as they are.",
)
@click.option(
    "--older-than",
    type=click.IntRange(0),
    metavar="HOURS",
    help="Only hours that ended so many hours ago, to which hardly anything is added.",
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="auto",
    show_default=True,
    help="Of the joined files.",
)
@click.option(
    "--allow-gaps",
    is_flag=True,
    help="Where the filesystem cannot swap directories: replace file by file. Readers may miss "
    "messages for a moment.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be joined; change nothing.")
@spark_options
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
    """Join small files of the archive in DIRECTORY, of each topic and hour.

    An archive may be running there. Readers of the directory see the old files or the new ones.

    \b
    Examples
        pyromq spark compact /data/archive
        pyromq spark compact /data/archive --older-than 1 --target-size 512
    """
    options = CompactOptions(
        target_size * _MIB,
        frozenset(topics) or None,
        None if older_than is None else _hour(older_than),
        compression,
        allow_gaps,
    )
    with _clear_errors():
        archive = ArchiveDirectory(directory)
        groups = plan_groups(archive.files(), options)
        if dry_run:
            _show(groups, directory)
            return
    if not groups:
        click.echo("nothing to join: there are no small files beside each other")
        return
    with open_session(spark) as session, _clear_errors(), progress_bars() as bars:
        bar = bars.add_task("files", total=sum(len(group.files) for group in groups))

        def show(so_far: Compacted) -> None:
            bars.update(bar, completed=so_far.files_before)

        done = run_compact(session, directory, options, on_progress=show)
    click.echo(
        f"{done.files_before} files ({done.bytes_before} bytes) became {done.files_after} "
        f"({done.bytes_after} bytes)"
    )


def _hour(hours_ago: int) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours_ago)).strftime("%Y-%m-%d-%H")


def _show(groups: list[FileGroup], directory: Path) -> None:
    table = Table("topic", "hour", "files", "bytes", title=f"would be joined in {directory}")
    for group in groups:
        table.add_row(group.topic, group.hour, str(len(group.files)), str(group.bytes))
    output_console().print(table)
    click.echo(f"{sum(len(group.files) for group in groups)} files would become {len(groups)}")


def _clear_errors() -> AbstractContextManager[None]:
    return clear_errors(ArchiveError, TaskFailedError)
