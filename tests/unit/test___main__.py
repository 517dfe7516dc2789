from __future__ import annotations

import subprocess
import sys

from pyromq import __version__


def test_the_package_runs_as_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pyromq", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith(f"pyromq, version {__version__}, ")
