"""Small programs that are made when they are needed, and kept where the user's caches are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where such programs are kept; it may not be there yet."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pyromq"


def write_script(program: Path, content: str) -> None:
    """Make a program with this content, unless it is there already."""
    if program.is_file() and program.read_text() == content:
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: another process may start it from here meanwhile.
    descriptor, temporary = tempfile.mkstemp(dir=program.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(program)
