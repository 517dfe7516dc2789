"""A small disk of its own for a test, so that it can be full.

The disk is a tmpfs, which only the superuser may mount; with CI=true a skip is a failure. Called
by tests, on any thread.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """Mount a disk of `size` bytes at `path`. Skips the test if that is not allowed."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        reason = f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
