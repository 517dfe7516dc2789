"""Runs the tools that download: Maven, Go and npm. A network has bad moments, so they get three.

Called by what builds the programs of others for tests and for the benchmark, which holds a lock
meanwhile; every call blocks. A command that failed is not run again by the same process: tests
that need it fail at once instead of trying it one after the other.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: How long to wait before another attempt.
PAUSES = (3.0, 15.0)
#: Longer than a slow line needs, but not for ever.
_LIMIT_SECONDS = 600.0

_failed: dict[tuple[str, ...], DownloadError] = {}


class DownloadError(RuntimeError):
    """What is needed could not be fetched; the text is that of the tool's last attempt."""


def download(
    what: str,
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command that fetches `what`, again if it fails. Raises DownloadError."""
    key = (what, *command)
    if key in _failed:
        raise _failed[key]
    for pause in (*PAUSES, None):
        text = _try(command, directory, environment)
        if text is None:
            return
        if pause is not None:
            time.sleep(pause)
    attempts = len(PAUSES) + 1
    _failed[key] = DownloadError(
        f"could not fetch {what}: {' '.join(command)} failed {attempts} times in {directory}. "
        f"Is the network, or its proxy, there? The last attempt said:\n{text}"
    )
    raise _failed[key]


def _try(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None
) -> str | None:
    """None when it went well, else the end of what it said."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {_LIMIT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    return f"exit code {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
