"""The command `sql`; tests/unit/spark/sql/test_shell.py covers the shell."""

from __future__ import annotations

from click.testing import CliRunner

from pyromq.spark.jobs.sql import command


def test_an_option_needs_a_value() -> None:
    result = CliRunner().invoke(command, ["--option", "nonsense", "-e", "select 1"])
    assert result.exit_code == 2
    assert "--option 'nonsense': expected NAME=VALUE" in result.output
