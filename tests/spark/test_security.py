"""The source and the sink with strict access control and mutual TLS, in tables and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from pyromq.cli.main import main
from pyromq.client import Message, Producer, Tls
from tests.interop.cluster import Cluster
from tests.support.clients import spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000


@pytest.fixture(scope="module")
def secure() -> Iterator[Cluster]:
    with Cluster("pyromq-secure") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def options(secure: Cluster) -> dict[str, str]:
    return {
        "nameserver": secure.namesrv_address,
        "requestTimeout": "60s",
        **spark_options(secure.options),
    }


def bodies(frame: Any) -> set[str]:
    return {bytes(row.body).decode() for row in frame.select("body").collect()}


def test_tables_and_streams_are_written_and_read(
    spark: SparkSession, secure: Cluster, options: dict[str, str], tmp_path: Path
) -> None:
    for topic in ("Rows", "Copies"):
        secure.create_topic(topic)
    expected = {str(number) for number in range(ROWS)}
    frame = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS body")
    writer = {name: value for name, value in options.items() if name != "requestTimeout"}
    frame.write.format("rocketmq").options(topic="Rows", **writer).mode("append").save()
    table = spark.read.format("rocketmq").options(subscribe="Rows", **options).load()
    assert bodies(table) == expected
    stream = spark.readStream.format("rocketmq").options(
        subscribe="Rows", startingOffsets="earliest", **options
    )
    query = (
        stream.load()
        .select("body")
        .writeStream.format("rocketmq")
        .options(topic="Copies", checkpointLocation=str(tmp_path / "checkpoint"), **writer)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copies = spark.read.format("rocketmq").options(subscribe="Copies", **options).load()
    assert bodies(copies) == expected


def test_a_wrong_secret_is_refused(
    spark: SparkSession, secure: Cluster, options: dict[str, str]
) -> None:
    topic = secure.create_topic("Closed")
    with Producer.sync(secure.namesrv_address, send_timeout=60.0, **secure.options) as producer:
        producer.send(Message(topic, b"secret"))
    wrong = {**options, "secretKey": "wrong-secret", "fetchOffset.numRetries": "0"}
    with pytest.raises(Exception, match="Check signature failed") as refused:
        spark.read.format("rocketmq").options(subscribe=topic, **wrong).load().collect()
    assert "wrong-secret" not in str(refused.value)


@pytest.fixture
def run(secure: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a job with keys in the environment, which other users cannot read."""
    tls = secure.options["tls"]
    assert isinstance(tls, Tls)
    files = [f"--tls-ca={tls.ca}", f"--tls-cert={tls.cert}", f"--tls-key={tls.key}"]

    def run_job(*words: str, code: int = 0, keys: tuple[str, str] | None = None) -> str:
        access_key, secret_key = keys or (
            secure.options["access_key"],
            secure.options["secret_key"],
        )
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", access_key)
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", secret_key)
        at = ["--namesrv", secure.namesrv_address, *files]
        result = CliRunner().invoke(main, ["spark", *words, *at])
        assert result.exit_code == code, result.output
        assert secret_key not in result.output
        return result.output

    return run_job


@pytest.fixture
def jobs(secure: Cluster) -> str:
    topic = secure.create_topic(f"Jobs-{uuid4().hex[:8]}")
    with Producer.sync(secure.namesrv_address, send_timeout=60.0, **secure.options) as producer:
        for number in range(20):
            producer.send(Message(topic, b"%d" % number))
    return topic


@pytest.mark.usefixtures("spark")
def test_sql(run: Callable[..., str], jobs: str) -> None:
    assert "20" in run("sql", "-e", f"select count(*) n from `{jobs}`")


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_all_jobs(run: Callable[..., str], jobs: str, secure: Cluster, tmp_path: Path) -> None:
    archive, copy = str(tmp_path / "archive"), secure.create_topic("Replayed")
    run("archive", archive, "--topic", jobs)
    run("replay", "--archive", archive, "--to-topic", copy)
    assert "20" in run("sql", "-e", f"select count(*) n from `{copy}`")
    # Groups of others, and how far they are, are a matter of administrators.
    report = str(tmp_path / "report.html")
    for words in (["audit"], ["report", report]):
        assert "AclException" in run(*words, "--topic", jobs, code=1)
        run(*words, "--topic", jobs, keys=secure.operator_keys)
