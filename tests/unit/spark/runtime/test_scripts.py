"""Programs that are made when they are needed."""

from __future__ import annotations

import os
from pathlib import Path

from pyromq.spark.runtime.scripts import cache_directory, write_script


def test_a_script_is_made_once(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "program"
    write_script(program, "#!/bin/sh\n")
    assert os.access(program, os.X_OK)
    made = program.stat().st_ino
    write_script(program, "#!/bin/sh\n")
    assert program.stat().st_ino == made
    write_script(program, "#!/bin/sh\nexit\n")
    assert program.read_text() == "#!/bin/sh\nexit\n"
    assert [path.name for path in program.parent.iterdir()] == ["program"]


def test_where_they_are_kept() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/pyromq")
    assert cache_directory({}) == Path.home() / ".cache" / "pyromq"
