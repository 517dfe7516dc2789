"""Runs `pyromq admin` in the test's process."""

from __future__ import annotations

import json
import shlex
from typing import Any

from click.testing import CliRunner, Result

from pyromq.cli.main import main
from tests.support.patience import DEADLINE


def invoke(namesrv: str, line: str, **environment: str) -> Result:
    """Run a command line against the cluster of a NameServer."""
    words = ["admin", *shlex.split(line), "-n", namesrv, "--timeout", str(DEADLINE)]
    return CliRunner(env=environment).invoke(main, words)


def output(namesrv: str, line: str) -> str:
    """Run a command that must succeed; return what it printed."""
    result = invoke(namesrv, line)
    assert result.exit_code == 0, result.output
    return result.output


def as_json(namesrv: str, line: str) -> Any:
    """Run a command that must succeed with `--json`; return the value, printed on one line."""
    (text,) = output(namesrv, f"{line} --json").splitlines()
    return json.loads(text)
