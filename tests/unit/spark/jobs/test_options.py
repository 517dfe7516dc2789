from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyromq.spark.jobs.options import (
    SparkSettings,
    cluster_options,
    parse_optional_time,
    parse_time,
    spark_options,
)
from pyromq.spark.origins.settings import ConnectionSettings


def settings_of(*arguments: str, **environment: str) -> Any:
    seen: dict[str, object] = {}

    @click.command()
    @cluster_options
    @spark_options
    @click.option("--other", default=1)
    def command(cluster: ConnectionSettings, spark: SparkSettings, other: int) -> None:
        seen.update(cluster=cluster, spark=spark, other=other)

    result = CliRunner().invoke(command, arguments, env={"NAMESRV_ADDR": None, **environment})
    return seen if result.exit_code == 0 else result.output


def test_the_defaults_are_this_machine() -> None:
    assert settings_of() == {
        "cluster": ConnectionSettings(("127.0.0.1:9876",)),
        "spark": SparkSettings(),
        "other": 1,
    }


def test_every_option() -> None:
    seen = settings_of(
        *("--nameserver", "a:1;b:2", "--access-key", "me", "--secret-key", "pass", "--tls"),
        *("--master", "yarn", "--app-name", "mine", "--other", "2"),
        *("--conf", "spark.a=1", "--conf", "spark.b=x=y"),
    )
    assert seen == {
        "cluster": ConnectionSettings(("a:1", "b:2"), "me", "pass", True),
        "spark": SparkSettings("yarn", "mine", {"spark.a": "1", "spark.b": "x=y"}),
        "other": 2,
    }


def test_the_environment() -> None:
    seen = settings_of(NAMESRV_ADDR="c:3", ROCKETMQ_ACCESS_KEY="k", ROCKETMQ_SECRET_KEY="s")
    assert seen["cluster"] == ConnectionSettings(("c:3",), "k", "s")
    assert settings_of("--namesrv", "d:4", NAMESRV_ADDR="c:3")["cluster"].name_servers == ("d:4",)


@pytest.mark.parametrize("text", ["spark.a", "a=1", "="])
def test_a_malformed_spark_property_is_rejected(text: str) -> None:
    assert f"--conf '{text}': expected spark.KEY=VALUE" in settings_of("--conf", text)


def test_times() -> None:
    assert parse_optional_time("--since", None) is None
    assert parse_optional_time("--since", "1970-01-01T00:00:01") == 1000
    assert parse_time("--since", "1970-01-01T01:00:01+01:00") == 1000
    with pytest.raises(click.UsageError, match="--since 'noon': expected a time such as"):
        parse_optional_time("--since", "noon")
    with pytest.raises(click.UsageError, match="--from 'x': expected latest or a time such as"):
        parse_time("--from", "x", "latest or ")
