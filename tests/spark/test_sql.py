"""SQL over topics, on Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from pyromq.client import Message, Producer
from pyromq.spark.jobs.sql import command
from pyromq.spark.sql.tables import TopicTables
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
    assert '"new"' in ask(count).output, "a statement reads the latest messages"

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


def test_conditions_limit_what_a_statement_reads(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    with Producer.sync(cluster.namesrv, send_timeout=60.0) as producer:
        for first in range(0, 400, 100):
            producer.send_batch(
                [
                    Message(topic, b"%d" % number, tags=f"t{number % 2}")
                    for number in range(first, first + 100)
                ]
            )
    plain = spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic)
    plain.load().createOrReplaceTempView("plain")
    tables = TopicTables(spark, {"nameserver": cluster.namesrv}, lambda: [topic])
    #: Statements, and how many of the four queues they read.
    statements = {
        "select queueId, queueOffset from {t} where queueId = 1": 1,
        "select queueId, queueOffset from {t} x where x.queueId in (1, 2)": 2,
        "select queueId, queueOffset from {t} where queueId = 1 or queueOffset = 7": 4,
        "select tags, count(*) from {t} where queueId = 3 and tags = 't1' group by tags": None,
        "with c as (select * from {t} where queueId = 2) select queueId, queueOffset from c "
        "where queueOffset < 7 and storeTimestamp > '2020-01-01'": 1,
        "select queueOffset as queueId from {t} where queueId = 2 and queueOffset > 90": 1,
        "select queueId from {t} where queueId = 1 and queueOffset > "
        "(select avg(queueOffset) + 48 from {t})": None,
        "select a.queueId from {t} a join {t} b on a.queueOffset = b.queueOffset "
        "where a.queueId = 1 and b.queueId = 2": None,
        "select queueId from {t} where queueId = 1 union all "
        "select queueId from {t} where queueId = 2": None,
        "select queueId from {t} where storeTimestamp > '2100-01-01'": 1,
    }
    try:
        for statement, parts in statements.items():
            frame = tables.run(statement.format(t=f"`{topic}`"))
            expected = spark.sql(statement.format(t="plain"))
            assert sorted(frame.collect()) == sorted(expected.collect()), statement
            if parts is not None:
                assert frame.rdd.getNumPartitions() == parts, statement
        # A command runs when its frame is created: it does not run again.
        assert tables.run(f"create temporary view kept as select * from `{topic}`").count() == 0
        assert spark.sql("show views like 'kept'").count() == 1
    finally:
        tables.close()
        spark.sql("drop view if exists kept")
        spark.catalog.dropTempView("plain")


@pytest.fixture(autouse=True)
def the_session_of_the_tests(spark: SparkSession) -> None:
    """Give the command an active session, which it keeps."""
