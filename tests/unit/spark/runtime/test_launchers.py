"""The scripts that start Python for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyromq.spark.runtime.launchers import cache_directory, worker_python, write_script

ASK = "import sys, os; print(sys.executable); print(os.environ['PYTHONPATH'], sys.argv[1:])"


def said_by(program: str, *arguments: str, path: str) -> list[str]:
    done = subprocess.run(
        [program, "-c", ASK, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.stdout.splitlines()


def test_archives_are_removed_from_the_path(tmp_path: Path) -> None:
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert program == worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    home = "/opt/a spark/python/lib"
    path = f"{home}/pyspark.zip:{home}/py4j-0.10.9.9-src.zip:/opt/own modules:/x.zip"
    executable, rest = said_by(program, "a b", "*", path=path)
    assert os.path.realpath(executable) == os.path.realpath(sys.executable)
    assert rest == "/opt/own modules:/x.zip ['a b', '*']"


def test_a_cache_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert said_by(program, path="/only")[1] == "/only []"


def test_the_daemon_is_ours(tmp_path: Path) -> None:
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    runtime = tmp_path / "pyromq" / "spark" / "runtime"
    runtime.mkdir(parents=True)
    for package in (runtime, runtime.parent, runtime.parent.parent):
        (package / "__init__.py").touch()
    stub = runtime / "worker_daemon.py"
    stub.write_text("import sys; print('ours', sys.argv[1:])")
    done = subprocess.run(
        [program, "-m", "pyspark.daemon", "pyspark.worker", "a b"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "ours ['pyspark.worker', 'a b']\n"


def test_a_script_is_written_once(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "program"
    write_script(program, "#!/bin/sh\n")
    assert os.access(program, os.X_OK)
    written = program.stat().st_ino
    write_script(program, "#!/bin/sh\n")
    assert program.stat().st_ino == written
    write_script(program, "#!/bin/sh\nexit\n")
    assert program.read_text() == "#!/bin/sh\nexit\n"
    assert [path.name for path in program.parent.iterdir()] == ["program"]


def test_the_cache_directory() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/pyromq")
    assert cache_directory({}) == Path.home() / ".cache" / "pyromq"
