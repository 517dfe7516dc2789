"""The program that runs Spark's workers: this interpreter, without archives before its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyromq.spark.runtime.worker_python import worker_python

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


def test_archives_are_taken_out_of_the_way(tmp_path: Path) -> None:
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert program == worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    home = "/opt/a spark/python/lib"
    path = f"{home}/pyspark.zip:{home}/py4j-0.10.9.9-src.zip:/opt/own modules:/x.zip"
    executable, rest = said_by(program, "a b", "*", path=path)
    assert os.path.realpath(executable) == os.path.realpath(sys.executable)
    assert rest == "/opt/own modules:/x.zip ['a b', '*']"


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
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
