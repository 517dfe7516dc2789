"""The output of admin commands: tables for people, lines for pipes, JSON for programs.

A command calls `result` with its data and `table`, `line` or `pairs` with the text. With `--json`
only the data is printed, as one line; otherwise only the text. A terminal gets tables in which wide
text is wrapped. A pipe gets mqadmin's lines: the same words in the same columns, never cut.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final

import click
import orjson

#: Blanks between the columns of a pipe.
_GAP: Final = "  "
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Output:
    """Where a command's results go."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        #: Whether a person reads it.
        self.is_terminal = not as_json and sys.stdout.isatty()

    def result(self, value: Any) -> None:
        """Print data with `--json`: a dataclass, or a list or mapping of these."""
        if self.as_json:
            click.echo(orjson.dumps(plain(value)).decode())

    def line(self, text: str = "") -> None:
        """Print a line of text."""
        if not self.as_json:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print a remark for people on stderr, whatever the form of the output."""
        click.echo(text, err=True)

    def pairs(self, values: Mapping[str, object], form: str = "{:<50}=  {}") -> None:
        """Print names and values."""
        if self.is_terminal:
            self.table(("Name", "Value"), values.items())
        else:
            for name, value in values.items():
                self.line(form.format(name, cell(value)))

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        numbers: Iterable[str] = (),
        header: bool = True,
    ) -> None:
        """Print a table; the columns in `numbers` are aligned on the right on a terminal.

        Columns have mqadmin's titles, such as `#Broker Name`.
        """
        if self.as_json:
            return
        cells = [[cell(value) for value in row] for row in rows]
        if self.is_terminal:
            _print_rich(columns, cells, frozenset(numbers))
        else:
            _print_lines(([list(columns)] if header else []) + cells)


def _print_rich(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[str]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    # A terminal is narrow: columns without any content only take room.
    shown = [index for index in range(len(columns)) if not rows or any(row[index] for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index in shown:
        is_number = columns[index] in numbers
        table.add_column(
            columns[index].lstrip("#"),
            justify="right" if is_number else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(row[index]) for index in shown))
    Console(highlight=False).print(table)


def _print_lines(rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo(_GAP.join(padded).rstrip())


def cell(value: object) -> str:
    """Return a value as text: booleans as in Java, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    # Anybody may name a group or a client: escape sequences must not reach the terminal.
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(value))


def time_text(milliseconds: int) -> str:
    """Return a time as mqadmin prints it: 2024-01-31 12:00:00,000, in the local zone."""
    try:
        when = datetime.fromtimestamp(milliseconds // 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)  # from a broker with a strange clock
    return f"{when:%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03}"


def second_text(milliseconds: int) -> str:
    """Return a time without its milliseconds: 2024-01-31 12:00:00, in the local zone."""
    return time_text(milliseconds).partition(",")[0]


def plain(value: Any) -> Any:
    """Return a result as values for JSON, with the field names of its dataclasses.

    Enums become their names, sets sorted lists, bytes text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {cell(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
