"""`pyromq spark`: the jobs of `pyromq.spark.jobs`, each loaded only when it is asked for.

A start costs nothing of Spark; where its packages are not installed, every job says so.
"""

from __future__ import annotations

import click

from pyromq.cli.lazy_group import LazyGroup

#: name -> module and attribute of the command, its line in `pyromq spark --help`
JOBS: dict[str, tuple[str, str]] = {
    "archive": ("pyromq.spark.jobs.archive:command", "Write topics to Parquet, each message once."),
    "compact": ("pyromq.spark.jobs.compact:command", "Join the small files of an archive."),
    "replay": (
        "pyromq.spark.jobs.replay:command",
        "Send messages of an archive or of a cluster again.",
    ),
    "sql": ("pyromq.spark.jobs.sql:command", "A shell, or statements, over topics as tables."),
    "rebuild": (
        "pyromq.spark.jobs.rebuild:command",
        "Make consume queues and key indexes of stores again.",
    ),
    "verify": (
        "pyromq.spark.jobs.verify:command",
        "Compare consume queues and key indexes with their logs.",
    ),
    "audit": ("pyromq.spark.jobs.audit:command", "Find gaps, duplicates, damage, dead letters."),
    "report": ("pyromq.spark.jobs.report:command", "Write a page about topics, with charts."),
}


class JobGroup(LazyGroup):
    """The jobs; one that cannot be loaded says which packages it wants."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one job's command."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("pyromq"):
                raise
            raise click.ClickException(
                f"pyromq spark {cmd_name} needs the package {error.name}, which is not "
                "installed: pip install 'pyromq[spark]'"
            ) from error


@click.group(cls=JobGroup, table=JOBS)
def spark() -> None:
    """Bulk work on messages, with Spark.

    Jobs run on this machine, with all of its cores, or with --master on a cluster. Java 17 or
    newer is taken where it is found; where there is none, pip install 'pyromq[java]' brings it.
    """
