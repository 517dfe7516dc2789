"""Print the results of jobs: tables on the terminal, and files checked before a long job.

rich is imported on the first call: loading it would slow down `--help`. Called on the main thread.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any table.
_UNLIMITED_WIDTH: Final = 10_000


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table."""
    from rich.table import Table

    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    output_console().print(table)


def output_console() -> Console:
    """Return a console for stdout that truncates lines only on a terminal.

    It prints text literally: message keys may look like rich's markup.
    """
    from rich.console import Console

    width = None if Console().is_terminal else _UNLIMITED_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


def check_writable(output: Path) -> None:
    """Raise ClickException before a job starts if its result cannot be written."""
    try:
        if output.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if output.exists():
            with output.open("ab"):
                pass
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}") from error
