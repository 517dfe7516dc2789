from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyromq.spark.jobs.options import (
    ClusterSettings,
    SparkSettings,
    clear_errors,
    cluster_options,
    milliseconds_of,
    missing_package,
    output_console,
    progress_bars,
    spark_options,
)
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.runtime.java import JavaNotFoundError


def settings_of(*arguments: str, **environment: str) -> Any:
    seen: dict[str, object] = {}

    @click.command()
    @cluster_options
    @spark_options
    @click.option("--other", default=1)
    def command(cluster: ClusterSettings, spark: SparkSettings, other: int) -> None:
        seen.update(cluster=cluster, spark=spark, other=other)

    result = CliRunner().invoke(command, arguments, env={"NAMESRV_ADDR": None, **environment})
    return seen if result.exit_code == 0 else result.output


def test_a_pipe_that_nobody_reads_is_left_to_click() -> None:
    with pytest.raises(BrokenPipeError), clear_errors():
        raise BrokenPipeError(32, "Broken pipe")


def test_what_is_no_terminal_gets_lines_of_any_length(capsys: pytest.CaptureFixture[str]) -> None:
    output_console().print("word " * 500)
    assert capsys.readouterr().out.count("\n") == 1


def test_the_defaults_are_this_machine() -> None:
    assert settings_of() == {"cluster": ClusterSettings(), "spark": SparkSettings(), "other": 1}


def test_everything_can_be_said() -> None:
    seen = settings_of(
        *("--nameserver", "a:1;b:2", "--access-key", "me", "--secret-key", "pass", "--tls"),
        *("--master", "yarn", "--app-name", "mine", "--other", "2"),
        *("--conf", "spark.a=1", "--conf", "spark.b=x=y"),
    )
    assert seen == {
        "cluster": ClusterSettings("a:1;b:2", "me", "pass", True),
        "spark": SparkSettings("yarn", "mine", {"spark.a": "1", "spark.b": "x=y"}),
        "other": 2,
    }


def test_the_environment_is_asked_too() -> None:
    seen = settings_of(NAMESRV_ADDR="c:3", ROCKETMQ_ACCESS_KEY="k", ROCKETMQ_SECRET_KEY="s")
    assert seen["cluster"] == ClusterSettings("c:3", "k", "s")
    assert settings_of("--namesrv", "d:4", NAMESRV_ADDR="c:3")["cluster"].nameserver == "d:4"


@pytest.mark.parametrize("text", ["spark.a", "a=1", "="])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    assert f"--conf '{text}': expected spark.KEY=VALUE" in settings_of("--conf", text)


def test_the_source_gets_its_own_names() -> None:
    assert ClusterSettings("a:1").source_options() == {"nameserver": "a:1"}
    assert ClusterSettings("a:1", "k", "s", True).source_options() == {
        "nameserver": "a:1",
        "accessKey": "k",
        "secretKey": "s",
        "tls": "true",
    }


@pytest.mark.parametrize(
    "error", [JavaNotFoundError("no Java"), OriginError("no broker"), ValueError("no number")]
)
def test_errors_that_users_can_mend_are_one_line(error: Exception) -> None:
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise error
    assert caught.value.message == str(error)


def test_others_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), clear_errors(KeyError):
        raise ZeroDivisionError


def test_of_a_worker_s_traceback_the_end_is_shown() -> None:
    stack = [f"  line {number}" for number in range(50)]
    text = "\n".join(
        ["[PYTHON] failed:", "Traceback (most recent call last):", *stack, "ValueError: x"]
    )
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise ValueError(text)
    assert caught.value.message.endswith("ValueError: x")
    assert "line 10" not in caught.value.message


def test_of_a_stack_of_the_jvm_the_beginning_is_shown() -> None:
    stack = [f"  at a.b.C{number}" for number in range(50)]
    with pytest.raises(click.ClickException) as caught, clear_errors():
        raise ValueError("\n".join(["[TABLE_NOT_FOUND] no such table", "", *stack]))
    assert caught.value.message.startswith("[TABLE_NOT_FOUND] no such table\n  at a.b.C0")
    assert "C30" not in caught.value.message


def test_an_error_without_words_has_its_name() -> None:
    with pytest.raises(click.ClickException, match="ValueError"), clear_errors():
        raise ValueError


def test_missing_packages_come_with_what_to_do() -> None:
    text = missing_package(ModuleNotFoundError("No module named 'pyspark'"))
    assert text.startswith("No module named 'pyspark'")
    assert "pip install 'pyromq[spark]'" in text


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as bars:
        bars.advance(bars.add_task("reading", total=10))
    assert capsys.readouterr() == ("", "")


def test_times_that_options_say() -> None:
    assert milliseconds_of("--since", None) is None
    assert milliseconds_of("--since", "1970-01-01T00:00:01") == 1000
    assert milliseconds_of("--since", "1970-01-01T01:00:01+01:00") == 1000
    with pytest.raises(click.UsageError, match="--since 'noon': expected a time as"):
        milliseconds_of("--since", "noon")
