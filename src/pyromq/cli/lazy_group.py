"""Groups of commands that are a table: names and help lines are known without any import.

A command's module is loaded when the command is asked for, so that help and every start are
quick. Used by `main` and by groups with many commands below it; smaller groups are
`HelpfulGroup`, so that all of them answer a wrong name with the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

#: name -> module and attribute of the command ("package.module:attribute"), its line of help
Commands = Mapping[str, tuple[str, str]]

#: Where a context keeps the words of the command line.
_WORDS = f"{__name__}.words"


class HelpfulGroup(click.Group):
    """A group that answers names that do not exist, its own and those below it, with the nearest.

    click does so for some; here it is the same for commands and options of every kind.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words as they were typed: click tells only the part that it stumbled over."""
        ctx.meta.setdefault(_WORDS, list(args))
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = _hint(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
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


def _as_typed(option: str, words: Sequence[str]) -> str:
    """The whole word: of `-tags`, click says `-t`; of `-help`, that there is no `-e`."""
    if option.startswith("--"):
        return option
    short = (word for word in words if word.startswith("-") and not word.startswith("--"))
    return next((word for word in short if option[1:] in word), option)


def _hint(name: str, names: Sequence[str]) -> str:
    """The nearest of these names, as a question; nothing when none is near."""
    plain = {_plain(known): known for known in names}
    nearest = [repr(plain[near]) for near in get_close_matches(_plain(name), plain)]
    return f" Did you mean {' or '.join(nearest)}?" if nearest else ""


def _plain(name: str) -> str:
    return name.partition("=")[0].strip("-").replace("_", "-").lower()
