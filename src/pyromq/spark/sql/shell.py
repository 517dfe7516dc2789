"""The SQL shell: run statements, print their rows, keep a history.

`Shell.run_all` is for scripts and stops at the first error; `Shell.converse` is for a terminal and
continues. Runs in the driver, on the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from pyspark.errors import PySparkException

from pyromq.protocol.errors import RocketMQError
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.sql.output import Format, render
from pyromq.spark.sql.statements import is_blank, split_statements
from pyromq.spark.sql.tables import TopicTables, short_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROMPT: Final = "sql> "
CONTINUATION_PROMPT: Final = "...> "
_MAX_HISTORY_LINES: Final = 10_000
_HELP: Final = """\
SHOW TOPICS;                   list topics; or SHOW TOPICS LIKE 'Ord%';
DESCRIBE Orders;               list the columns of a topic; body_text is the body as text
SELECT ... FROM Orders ...;    any Spark SQL; put names like `%DLQ%group` in backticks
help   exit   Ctrl-C discards the input or cancels a running statement   Ctrl-D exits"""

#: Prints a prompt and returns a line, like `input`.
Read = Callable[[str], str]


@contextmanager
def open_shell(
    session: SparkSession,
    source: BrokerSource,
    read_options: Mapping[str, str],
    form: Format,
    limit: int,
) -> Iterator[Shell]:
    """Open a shell on the topics of a cluster; `read_options` apply to every topic."""
    options = source.settings.format_options() | dict(read_options)
    with (
        closing(source.open()) as origin,
        closing(TopicTables(session, options, origin.topics)) as tables,
    ):
        interrupt = getattr(session, "interruptAll", lambda: None)
        yield Shell(tables, form, limit, interrupt=interrupt)


class Shell:
    """Runs statements and prints their rows."""

    def __init__(
        self,
        tables: TopicTables,
        form: Format = Format.TABLE,
        limit: int = 1000,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`interrupt` cancels the session's running jobs."""
        self._tables = tables
        self._form = form
        self._limit = limit
        self._interrupt = interrupt

    def run_all(self, text: str) -> None:
        """Run statements one after the other. Raises ClickException for the first that fails."""
        statements, rest = split_statements(text)
        if not is_blank(rest):
            raise click.ClickException(f"unterminated quote or comment: {rest.strip():.80}")
        for statement in statements:
            self._run(statement)

    def converse(self, read: Read) -> None:
        """Read lines and run statements until the input ends; print errors and continue."""
        typed = ""
        while True:
            try:
                line = read(CONTINUATION_PROMPT if typed.strip() else PROMPT)
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
                    click.echo("cancelled", err=True)
                    break

    def _run(self, statement: str) -> None:
        try:
            self._show(self._tables.run(statement))
        except PySparkException as error:
            raise click.ClickException(short_error(error)) from error
        except (OriginError, RocketMQError) as error:
            raise click.ClickException(str(error)) from error

    def _show(self, frame: DataFrame) -> None:
        columns = frame.columns
        if not columns:
            return  # a statement without a result, such as SET or CREATE VIEW
        if self._form is Format.TABLE and self._limit:
            rows = frame.limit(self._limit + 1).collect()
            for line in render(columns, rows[: self._limit], self._form):
                click.echo(line)
            if len(rows) > self._limit:
                click.echo(
                    f"only the first {self._limit} rows are shown: use --limit 0 for all", err=True
                )
            return
        for line in render(columns, frame.toLocalIterator(prefetchPartitions=True), self._form):
            click.echo(line)


@contextmanager
def history() -> Iterator[None]:
    """Load the lines of earlier shells and save those of this one, if Python has readline."""
    try:
        import readline  # optional in Python builds
    except ImportError:
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "pyromq" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(_MAX_HISTORY_LINES)
    except OSError:
        yield  # continue without a history
        return
    try:
        yield
    finally:
        try:
            readline.write_history_file(path)
        except OSError as error:
            click.echo(f"history not saved: {error}", err=True)
