from __future__ import annotations

import click
import pytest
from pyspark.errors import PySparkException

from pyromq.spark.archive.directory import ArchiveError
from pyromq.spark.jobs.options import SparkSettings
from pyromq.spark.jobs.running import clear_errors, running_job
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.reading.positions import DataLossError
from pyromq.spark.replay.state import ReplayError
from pyromq.spark.runtime.fan_out import TaskFailedError
from pyromq.spark.runtime.java import JavaNotFoundError
from pyromq.store.results import StoreError


@pytest.mark.parametrize(
    "error",
    [
        ArchiveError("no archive"),
        DataLossError("no messages"),
        JavaNotFoundError("no Java"),
        OriginError("no broker"),
        OSError("no file"),
        PySparkException("no table"),
        ReplayError("no replay"),
        StoreError("no store"),
        TaskFailedError("no task"),
        ValueError("no number"),
    ],
)
def test_errors_that_users_can_fix_are_one_line(error: Exception) -> None:
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise error
    assert caught.value.message == str(error)


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), clear_errors():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), click.UsageError("wrong"), click.Abort()]
)
def test_errors_of_click_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, clear_errors():
        raise error
    assert caught.value is error


def test_a_missing_package_is_named() -> None:
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert "needs the package pyarrow" in caught.value.message
    assert "pip install 'pyromq[spark]'" in caught.value.message
    with pytest.raises(ModuleNotFoundError), clear_errors():
        raise ModuleNotFoundError("No module named 'pyromq.x'", name="pyromq.x")


def test_a_worker_traceback_shows_its_end() -> None:
    stack = [f"  line {number}" for number in range(50)]
    text = "\n".join(
        ["[PYTHON] failed:", "Traceback (most recent call last):", *stack, "ValueError: x"]
    )
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise ValueError(text)
    assert caught.value.message.endswith("ValueError: x")
    assert "line 10" not in caught.value.message


def test_a_jvm_stack_shows_its_beginning() -> None:
    stack = [f"  at a.b.C{number}" for number in range(50)]
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise ValueError("\n".join(["[TABLE_NOT_FOUND] no such table", "", *stack]))
    assert caught.value.message.startswith("[TABLE_NOT_FOUND] no such table\n  at a.b.C0")
    assert "C30" not in caught.value.message


def test_an_error_without_text_shows_its_name() -> None:
    with pytest.raises(click.ClickException, match="ValueError"), clear_errors():
        raise ValueError


@pytest.mark.usefixtures("no_session")
def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with running_job(SparkSettings()) as job:
        job.show("reading", 1, 10)
        job.show("reading", 2, 10, text="still reading")
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("no_session")
def test_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    with running_job(SparkSettings(), interrupted="interrupted; run it again"):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == "interrupted; run it again\n"
    with pytest.raises(KeyboardInterrupt), running_job(SparkSettings()):
        raise KeyboardInterrupt
