"""Functions that the documentation of 0.1 imported from the commands are still found there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from pyromq.spark.jobs.moved_names import moved_names

MOVED = [
    ("pyromq.spark.jobs.audit", "audit", "pyromq.spark.audit.auditor"),
    ("pyromq.spark.jobs.rebuild", "rebuild_stores", "pyromq.spark.stores.rebuild"),
    ("pyromq.spark.jobs.verify", "verify_stores", "pyromq.spark.stores.verify"),
    ("pyromq.spark.jobs.report", "report", "pyromq.spark.report.reporter"),
    ("pyromq.spark.jobs.report", "write_page", "pyromq.spark.report.reporter"),
]


@pytest.mark.parametrize(("module", "name", "home"), MOVED)
def test_documented_imports_keep_working(module: str, name: str, home: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {module} import {name}", names)
    assert names[name] is getattr(import_module(home), name)


def test_other_names_are_missing() -> None:
    get = moved_names("some.module", floor="math")
    assert get("floor")(1.5) == 1
    with pytest.raises(AttributeError, match=r"module 'some\.module' has no attribute 'ceil'"):
        get("ceil")
    with pytest.raises(ImportError):
        exec("from pyromq.spark.jobs.audit import no_such_name")


def test_commands_load_neither_spark_nor_arrow() -> None:
    script = (
        "import sys; from importlib import import_module; from pyromq.cli.spark import JOBS;"
        "[import_module(place.partition(':')[0]) for place, _ in JOBS.values()];"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
