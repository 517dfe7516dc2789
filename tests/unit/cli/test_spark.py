from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import pyromq.spark.jobs
from pyromq.cli.spark import JOBS, JobGroup, spark

JOB_FILES = {
    path.stem
    for path in Path(pyromq.spark.jobs.__file__).parent.glob("*.py")
    if "\ncommand" in (text := path.read_text()) or "\ndef command(" in text
}


def test_every_job_is_in_the_table() -> None:
    assert set(JOBS) == JOB_FILES


@pytest.mark.parametrize("name", JOBS)
def test_every_row_names_a_command(name: str) -> None:
    command = spark.get_command(click.Context(spark), name)
    assert command is not None
    assert command.name == name


def test_help_lists_the_jobs_and_loads_no_spark() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from pyromq.cli.main import main;"
        "result = CliRunner().invoke(main, ['spark', '--help']); print(result.output);"
        "assert result.exit_code == 0;"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " ('pyspark', 'pyarrow', 'numpy', 'pandas')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    *listed, loaded = done.stdout.strip().splitlines()
    assert loaded == "[]"
    assert JOBS.keys() <= {word for line in listed for word in line.split()[:1]}


def test_a_missing_package_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job_without_spark.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    group = JobGroup("spark", table={"job": ("job_without_spark:command", "A job.")})
    result = CliRunner().invoke(group, ["job"])
    assert result.exit_code == 1
    assert "pyromq spark job needs the package no_such_package" in result.output
    assert "pip install 'pyromq[spark]'" in result.output


def test_a_bug_of_ours_is_not_hidden() -> None:
    group = JobGroup("spark", table={"job": ("pyromq.spark.jobs.no_such_job:command", "A job.")})
    with pytest.raises(ModuleNotFoundError, match="no_such_job"):
        group.get_command(click.Context(group), "job")
