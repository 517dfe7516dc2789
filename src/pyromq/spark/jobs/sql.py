"""`pyromq spark sql`: a shell, or statements from the command line, over topics as tables.

Runs in the driver, on the main thread. The shell keeps what was typed in a history file where
the terminal has one (readline).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    cluster_options,
    open_session,
    spark_options,
)
from pyromq.spark.sql.output import Format, render
from pyromq.spark.sql.statements import is_blank, split_statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyromq.spark.sql.tables import TopicTables

PROMPT: Final = "sql> "
MORE_PROMPT: Final = "...> "
_HISTORY_LINES: Final = 10_000
_HELP: Final = """\
SHOW TOPICS;                      what there is; SHOW TOPICS LIKE 'Ord%';
DESCRIBE Orders;                  its columns; body_text is the body as text
SELECT ... FROM Orders ...;       any SQL of Spark; names like `%DLQ%group` in backticks
help   exit   Ctrl-C drops what was typed, or stops a statement   Ctrl-D ends"""

Read = Callable[[str], str]


@click.command("sql")
@click.option(
    "-e", "--execute", "statements", multiple=True, metavar="SQL", help="Run this; repeatable."
)
@click.option(
    "--format",
    "form",
    type=click.Choice([form.value for form in Format]),
    default=Format.TABLE.value,
    show_default=True,
    help="How rows are shown; json is one object in a line.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Rows of a table that are shown; 0: all. JSON and CSV always have all.",
)
@click.option(
    "--option",
    "read_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the source for every topic (startingTimestamp=...); repeatable.",
)
@cluster_options
@spark_options
def command(
    cluster: ClusterSettings,
    spark: SparkSettings,
    statements: tuple[str, ...],
    form: str,
    limit: int,
    read_options: tuple[str, ...],
) -> None:
    """Ask questions about messages in SQL: every topic is a table.

    Without -e it is a shell; what comes by a pipe is run statement by statement. Statements end
    with a semicolon.

    \b
    Examples
        pyromq spark sql
        pyromq spark sql -e "select tags, count(*) from Orders group by tags"
        pyromq spark sql --format json -e 'select body_text from `%DLQ%billing`' > dead.jsonl
    """
    options = dict(map(_setting, read_options))
    with open_session(spark) as session:
        from pyromq.spark.origins.broker import BrokerOrigin
        from pyromq.spark.sql.tables import TopicTables

        with (
            closing(BrokerOrigin(cluster.connection())) as origin,
            closing(
                TopicTables(session, cluster.source_options() | options, origin.topics)
            ) as tables,
        ):
            shell = Shell(tables, Format(form), limit, interrupt=_interrupter(session))
            if statements:
                shell.run_all("\n".join(f"{text};" for text in statements))
            elif sys.stdin.isatty():
                click.echo("Every topic is a table. help says more.")
                with _history():
                    shell.talk(input)
            else:
                shell.run_all(f"{sys.stdin.read()}\n;")


class Shell:
    """Runs statements and shows what they give."""

    def __init__(
        self,
        tables: TopicTables,
        form: Format = Format.TABLE,
        limit: int = 1000,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self._tables = tables
        self._form = form
        self._limit = limit
        self._interrupt = interrupt

    def run_all(self, text: str) -> None:
        """Run statements one after the other; the first that fails ends it (ClickException)."""
        statements, rest = split_statements(text)
        if not is_blank(rest):
            raise click.ClickException(f"a quote or comment has no end: {rest.strip():.80}")
        for statement in statements:
            self._run(statement)

    def talk(self, read: Read) -> None:
        """Read lines and run statements until the end of input; mistakes are told."""
        typed = ""
        while True:
            try:
                line = read(MORE_PROMPT if typed.strip() else PROMPT)
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo()
                typed = ""
                continue
            word = line.strip().rstrip(";").lower()
            if not typed.strip() and word in ("exit", "quit"):
                return
            if not typed.strip() and word == "help":
                click.echo(_HELP)
                continue
            statements, typed = split_statements(f"{typed}{line}\n")
            for statement in statements:
                try:
                    self._run(statement)
                except click.ClickException as error:
                    click.echo(error.message, err=True)
                except KeyboardInterrupt:
                    self._interrupt()
                    click.echo("stopped", err=True)
                    break

    def _run(self, statement: str) -> None:
        from pyspark.errors import PySparkException

        from pyromq.protocol.errors import RocketMQError
        from pyromq.spark.origins.origin import OriginError
        from pyromq.spark.sql.tables import short_error

        try:
            self._show(self._tables.run(statement))
        except PySparkException as error:
            raise click.ClickException(short_error(error)) from error
        except (OriginError, RocketMQError) as error:
            raise click.ClickException(str(error)) from error

    def _show(self, frame: DataFrame) -> None:
        columns = frame.columns
        if not columns:
            return  # a statement that gives nothing, as SET or CREATE VIEW
        if self._form is Format.TABLE and self._limit:
            rows = frame.limit(self._limit + 1).collect()
            for line in render(columns, rows[: self._limit], self._form):
                click.echo(line)
            if len(rows) > self._limit:
                click.echo(f"only {self._limit} rows are shown: --limit 0 shows all", err=True)
            return
        for line in render(columns, frame.toLocalIterator(prefetchPartitions=True), self._form):
            click.echo(line)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--option {text!r}: expected NAME=VALUE")
    return name, value


def _interrupter(session: object) -> Callable[[], None]:
    """What stops the jobs of a session."""
    return getattr(session, "interruptAll", lambda: None)


@contextmanager
def _history() -> Iterator[None]:
    """Lines of earlier shells, and these for later ones, where there is readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "pyromq" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(_HISTORY_LINES)
    except OSError:
        yield  # a shell without a history is still a shell
        return
    try:
        yield
    finally:
        try:
            readline.write_history_file(path)
        except OSError as error:
            click.echo(f"the history was not kept: {error}", err=True)
