"""`pyromq spark`: the jobs of `pyromq.spark.jobs`, each imported only when it runs.

Listing the jobs does not import Spark. If its packages are missing, a job says how to install
them.
"""

from __future__ import annotations

import click

from pyromq.base.command_options import missing_package
from pyromq.cli.lazy_group import LazyGroup

#: Name to the command's module and attribute, and its line in `pyromq spark --help`.
JOBS: dict[str, tuple[str, str]] = {
    "archive": (
        "pyromq.spark.jobs.archive:command",
        "Write topics to Parquet, each message exactly once.",
    ),
    "compact": ("pyromq.spark.jobs.compact:command", "Merge the small files of an archive."),
    "replay": (
        "pyromq.spark.jobs.replay:command",
        "Resend messages from an archive or a cluster.",
    ),
    "sql": ("pyromq.spark.jobs.sql:command", "Run SQL over topics, in a shell or from statements."),
    "rebuild": (
        "pyromq.spark.jobs.rebuild:command",
        "Rebuild the consume queues and key indexes of stores.",
    ),
    "verify": (
        "pyromq.spark.jobs.verify:command",
        "Compare consume queues and key indexes with their logs.",
    ),
    "audit": ("pyromq.spark.jobs.audit:command", "Find gaps, duplicates, damage and dead letters."),
    "report": (
        "pyromq.spark.jobs.report:command",
        "Write an HTML report about topics, with charts.",
    ),
}


class JobGroup(LazyGroup):
    """The group of jobs; names the missing package if a job cannot be imported."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a job's command."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            raise missing_package(f"pyromq spark {cmd_name}", error) from error


@click.group(cls=JobGroup, table=JOBS)
def spark() -> None:
    """Process messages in bulk with Spark.

    Jobs run on all cores of this machine or, with --master, on a cluster. They need Java 17 or
    newer; if none is installed, pip install 'pyromq[java]' provides it.
    """
