from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pyromq import __version__
from pyromq.cli.lazy_group import LazyGroup
from pyromq.cli.main import COMMANDS, main
from pyromq.protocol import kernel


def commands_below(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands_below(command, (*path, name))
    return found


def test_every_command_is_listed() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert name in result.output
        assert line in result.output


@pytest.mark.parametrize("path", commands_below(main), ids=" ".join)
def test_every_command_has_help_with_an_example_and_describes_its_options(
    path: tuple[str, ...],
) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    command: click.Command | None = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"
    if not isinstance(command, click.Group):
        assert f"pyromq {' '.join(path)}" in result.output


def test_the_version_tells_which_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output == f"pyromq, version {__version__}, {kernel.describe()}\n"
    monkeypatch.setenv("PYROMQ_PURE", "1")
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output.endswith(", pure Python (PYROMQ_PURE is set)\n")


def test_unknown_commands_are_refused() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


@pytest.mark.parametrize("path", commands_below(main), ids=" ".join)
def test_the_nearest_name_is_suggested(path: tuple[str, ...]) -> None:
    *before, name = path
    said = CliRunner().invoke(main, [*before, misspelt(name)])
    assert said.exit_code == 2
    assert repr(name) in said.output.partition("Did you mean")[2]
    command: click.Command | None = main
    for part in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), part)
    assert command is not None
    options = [
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    ]
    for option in [*options, "--help"]:
        for wrong in {misspelt(option), option.replace("-", "_").replace("__", "--")} - {option}:
            said = CliRunner().invoke(main, [*path, wrong])
            assert said.exit_code == 2, (wrong, said.output)
            last = said.output.splitlines()[-1]
            assert repr(option) in last.partition("Did you mean")[2], (wrong, last)


@pytest.mark.parametrize(("typed", "meant"), [("-tags", "--tags"), ("-help", "--help")])
def test_a_missing_second_dash_is_explained(typed: str, meant: str) -> None:
    said = CliRunner().invoke(main, ["send", "t", "x", typed])
    assert f"No such option '{typed}'. Did you mean '{meant}'?" in said.output


def misspelt(name: str) -> str:
    """A word with two letters exchanged."""
    middle = (len(name) + name.count("-")) // 2
    return name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]


def test_the_command_is_a_lazy_group() -> None:
    assert isinstance(main, LazyGroup)


def test_help_loads_neither_servers_nor_clients() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from pyromq.cli.main import main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " ('numpy', 'orjson', 'uvloop', 'asyncio', 'rich')"
        " or name.startswith(('pyromq.broker', 'pyromq.client', 'pyromq.store'))])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"
