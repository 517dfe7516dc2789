"""`pyromq spark sql`: the command. `sql.shell` does the work."""

from __future__ import annotations

import sys

import click

from pyromq.spark.jobs.options import SparkSettings, cluster_options, spark_options
from pyromq.spark.jobs.running import clear_errors, open_session
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.sql.output import Format


@click.command("sql")
@click.option(
    "-e",
    "--execute",
    "statements",
    multiple=True,
    metavar="SQL",
    help="Run this statement instead of a shell. Repeatable.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in Format]),
    default=Format.TABLE.value,
    show_default=True,
    help="Print rows in this format; json is one object per line.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Print at most this many rows of a table; 0 prints all. JSON and CSV always have all.",
)
@click.option(
    "--option",
    "read_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the source for every topic, such as startingTimestamp=... Repeatable.",
)
@cluster_options
@spark_options
@clear_errors()
def command(
    cluster: ConnectionSettings,
    spark: SparkSettings,
    statements: tuple[str, ...],
    form: str,
    limit: int,
    read_options: tuple[str, ...],
) -> None:
    """Query messages with SQL: every topic is a table.

    Starts a shell, or runs the statements given with -e or piped in. Statements end with a
    semicolon.

    \b
    Examples
        pyromq spark sql
        pyromq spark sql -e "select tags, count(*) from Orders group by tags"
        pyromq spark sql --format json -e 'select body_text from `%DLQ%billing`' > dead.jsonl
    """
    options = dict(map(_read_option, read_options))

    from pyromq.spark.sql.shell import history, open_shell

    with (
        open_session(spark) as session,
        open_shell(session, BrokerSource(cluster), options, Format(form), limit) as shell,
    ):
        if statements:
            shell.run_all("\n".join(f"{text};" for text in statements))
        elif sys.stdin.isatty():
            click.echo("Every topic is a table. Type help for help.")
            with history():
                shell.converse(input)
        else:
            shell.run_all(f"{sys.stdin.read()}\n;")


def _read_option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--option {text!r}: expected NAME=VALUE")
    return name, value
