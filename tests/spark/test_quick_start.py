"""The first steps with Spark: a topic is a table in any session, and the README's program works."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyromq.testing import Cluster
from tests.spark.conftest import SendMany

README = Path(__file__).resolve().parents[2] / "README.md"
NAMESRV = "127.0.0.1:9876"
MESSAGES = 100


def test_local(spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany) -> None:
    send_many(topic, MESSAGES)
    frame = spark.read.format("rocketmq").option("nameserver", cluster.namesrv)
    bodies = [bytes(row.body) for row in frame.option("subscribe", topic).load().collect()]
    assert sorted(map(int, bodies)) == list(range(MESSAGES))


def test_the_readme_s_quick_start(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = README.read_text().split("```python\n")[1:]
    (program,) = [code for block in blocks if "build_session" in (code := block.split("```")[0])]
    assert NAMESRV in program
    exec(compile(program.replace(NAMESRV, cluster.namesrv), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "|paid|  250|" in printed
    assert "| new|  750|" in printed
    assert printed.endswith("1000 messages\n")
