"""The report on Spark: its figures match the messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from pyromq.client import Message
from pyromq.spark.jobs.report import command
from pyromq.spark.report.data import STAGES
from pyromq.spark.report.reporter import report, write_page
from pyromq.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SendMany = Callable[..., None]


def test_report(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany, tmp_path: Path
) -> None:
    send_many(
        topic,
        (Message(topic, b"x" * (10 + n % 2 * 1000), keys=f"k{n % 3} all") for n in range(300)),
    )
    frame = (
        spark.read.format("rocketmq").options(nameserver=cluster.namesrv, subscribe=topic).load()
    )
    stages: list[str] = []
    data = report(frame, since_ms=0, on_stage=stages.append)
    assert tuple(stages) == STAGES
    (figures,) = data.topics
    assert (figures.topic, figures.messages, figures.bytes) == (topic, 300, 150 * (10 + 1010))
    assert 0 <= figures.delay_p50 <= figures.delay_p99 <= figures.delay_max
    assert sum(count for _, count, _ in data.rates[topic]) == 300
    assert data.sizes[topic][0] == (4, 150)
    assert data.sizes[topic][-1] == (10, 150)
    assert sum(count for _, count in data.delays[topic]) == 300
    assert data.keys[topic] == [("all", 300), ("k0", 100), ("k1", 100), ("k2", 100)]
    assert sum(count for _, _, count, _ in data.queues[topic]) == 300

    page = tmp_path / "report.html"
    arguments = [str(page), "--topic", topic, "--nameserver", cluster.namesrv, "--title", "Mine"]
    result = CliRunner().invoke(command, [*arguments, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert topic in result.output
    assert not page.exists()
    write_page(data, page, "Mine")
    assert "<h1>Mine</h1>" in page.read_text()
