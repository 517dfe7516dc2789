"""Installs the RocketMQ clients of PyPI, each in its own virtual environment in .cache.

Both packages install a module `rocketmq` around the C++ client, so they cannot share an
environment. A package that does not install or load is skipped with its reason. Called by
bench/client.py.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

#: The latest versions.
PACKAGES = ("rocketmq==0.4.4", "rocketmq-client-python==2.0.0")

_INSTALL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Installed:
    """A package: the interpreter that has it, or the reason why there is none."""

    python: Path
    problem: str | None = None


def install(directory: Path, console: Console) -> dict[str, Installed]:
    """Install missing packages; return all by name."""
    found = {}
    for package in PACKAGES:
        name = package.partition("==")[0]
        home = directory / package
        python = home / "bin" / "python"
        problem = None
        if not (home / "installed").exists():
            console.print(f"installing {package} from PyPI")
            problem = _make(home, package)
        if problem is None:
            problem = _failure([str(python), "-c", "import rocketmq.client"])
        found[name] = Installed(python, problem)
    return found


def _make(home: Path, package: str) -> str | None:
    problem = _failure([sys.executable, "-m", "venv", str(home)]) or _failure(
        [
            *(str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"),
            *("--disable-pip-version-check", package),
        ]
    )
    if problem is None:
        (home / "installed").touch()
    return problem


def _failure(command: list[str]) -> str | None:
    """Run a command; return its last line of output if it failed."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_INSTALL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
