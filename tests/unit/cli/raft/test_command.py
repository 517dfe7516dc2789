from __future__ import annotations

from click.testing import CliRunner

from pyromq.cli.main import main
from pyromq.cli.raft.command import COMMANDS


def test_help_lists_the_commands() -> None:
    output = CliRunner().invoke(main, ["raft", "--help"]).output
    for name, (_, line) in COMMANDS.items():
        assert name in output
        assert line in output
