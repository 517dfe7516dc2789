"""Command groups that list their commands without importing them.

A command's module is imported when the command runs, which keeps `--help` and every start fast.
`main` and groups with many commands use `LazyGroup`; smaller groups use `HelpfulGroup`. Both
suggest the nearest name for an unknown command or option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

#: Name to the command's location ("package.module:attribute") and its line of help.
Commands = Mapping[str, tuple[str, str]]

#: Key of the command line's words in a context's `meta`.
_WORDS = f"{__name__}.words"


class HelpfulGroup(click.Group):
    """A group that suggests the nearest name for unknown commands and options below it.

    click does this for some of them only.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as typed: click reports only the fragment it failed on."""
        ctx.meta.setdefault(_WORDS, list(args))
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest the nearest name."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = _hint(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; suggest the nearest name for an unknown option."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is None:
                raise
            name = _as_typed(error.option_name, ctx.meta[_WORDS])
            options = [
                option
                for parameter in error.ctx.command.get_params(error.ctx)
                if isinstance(parameter, click.Option)
                for option in (*parameter.opts, *parameter.secondary_opts)
                if option.startswith("--")
            ]
            hint = _hint(name, options)
            raise click.UsageError(f"No such option {name!r}.{hint}", error.ctx) from None


class LazyGroup(HelpfulGroup):
    """A group whose names and help lines come from a table."""

    def __init__(self, *arguments: Any, table: Commands, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
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


def _as_typed(option: str, words: Sequence[str]) -> str:
    """Return the whole word: for `-tags`, click reports `-t`; for `-help`, `-e`."""
    if option.startswith("--"):
        return option
    short = (word for word in words if word.startswith("-") and not word.startswith("--"))
    return next((word for word in short if option[1:] in word), option)


def _hint(name: str, names: Sequence[str]) -> str:
    """Return "Did you mean ...?" with the nearest names, or nothing if none is close."""
    plain = {_plain(known): known for known in names}
    typed = _plain(name)
    # Swapped letters of a short name are not close enough for difflib: --ot for --to.
    swapped = [known for known in plain if sorted(known) == sorted(typed)]
    nearest = [repr(plain[near]) for near in get_close_matches(typed, plain) or swapped]
    return f" Did you mean {' or '.join(nearest)}?" if nearest else ""


def _plain(name: str) -> str:
    return name.partition("=")[0].strip("-").replace("_", "-").lower()
