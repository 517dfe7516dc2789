"""Groups of commands that are a table: names and help lines are known without any import.

A command's module is loaded when the command is asked for, so that help and every start are
quick. Used by `main` and by groups with many commands below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

#: name -> module and attribute of the command ("package.module:attribute"), its line of help
Commands = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def __init__(self, *arguments: Any, table: Commands, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        del ctx
        if cmd_name not in self.table:
            return None
        module_name, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module_name), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
