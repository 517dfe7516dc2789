from __future__ import annotations

import click
from click.testing import CliRunner

from pyromq.cli.lazy_group import LazyGroup

TABLE = {
    "send": ("pyromq.cli.send:send", "Sends."),
    "gone": ("pyromq.cli.no_such_module:gone", "Is not there."),
}
group = LazyGroup("group", table=TABLE)


def test_help_shows_the_table_and_imports_nothing() -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    assert "send  Sends." in result.output
    assert "gone  Is not there." in result.output


def test_a_command_is_imported_when_it_runs() -> None:
    from pyromq.cli.send import send

    assert group.get_command(click.Context(group), "send") is send
    assert group.list_commands(click.Context(group)) == ["send", "gone"]


def test_a_name_outside_the_table_is_not_a_command() -> None:
    assert group.get_command(click.Context(group), "other") is None
