"""SQL over topics on the real engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from pyromq.client import Message
from pyromq.spark.jobs.sql import command
from pyromq.testing import Cluster
from tests.spark.conftest import SendMany

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_topics_are_tables(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    def ask(*statements: str, form: str = "json") -> click.testing.Result:
        arguments = [part for text in statements for part in ("-e", text)]
        return CliRunner().invoke(
            command, ["--nameserver", cluster.namesrv, "--format", form, *arguments]
        )

    send_many(topic, 30, lambda number: Message(topic, b"%d" % number, tags=f"t{number % 2}"))
    count = (
        f"select tags, count(*) n, max(int(body_text)) last from `{topic}` group by tags order by 1"
    )
    result = ask(count, f"describe `{topic}`", f"show topics like '{topic}'")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert lines[:2] == [
        {"tags": "t0", "n": 15, "last": 28},
        {"tags": "t1", "n": 15, "last": 29},
    ]
    assert {"col_name": "body_text", "data_type": "string", "comment": None} in lines
    assert lines[-1] == {"topic": topic}

    send_many(topic, 30, lambda number: Message(topic, b"%d" % number, tags="new"))
    assert '"new"' in ask(count).output, "a statement reads the topic as it is then"

    for wrong, problem in (
        (f"select nothing from `{topic}`", "nothing"),
        ("selct 1", "PARSE_SYNTAX_ERROR"),
        ("select 1 from no_such_topic", "TABLE_OR_VIEW_NOT_FOUND"),
    ):
        result = ask(wrong)
        assert result.exit_code == 1
        assert problem in result.output
        assert "org.apache" not in result.output
        assert len(result.output.splitlines()) < 12


@pytest.fixture(autouse=True)
def the_session_of_the_tests(spark: SparkSession) -> None:
    """The command finds a session, and leaves it as it is."""
