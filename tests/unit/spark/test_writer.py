from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pyromq.spark import writer
from pyromq.spark.options import OptionError
from pyromq.spark.row_encoder import RowError
from pyromq.spark.unique_rows import UniqueRows
from pyromq.spark.write_options import WriteOptions
from pyromq.spark.writer import BatchWriter, RateLimit, StreamWriter, Written, send_rows
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread

SCHEMA = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])


class Context:
    """What a task knows of itself."""

    def __init__(self, partition: int, **properties: str) -> None:
        self._partition = partition
        self._properties = {name.replace("_", "."): text for name, text in properties.items()}

    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's
        return self._properties.get(name)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_in_a_thread({"t": {"b0": 4}}) as cluster:
        yield cluster


def sent_to_a_task(task: BatchWriter) -> BatchWriter:
    travelled: BatchWriter = cloudpickle.loads(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
    return travelled


def options(cluster: FakeCluster, **given: str) -> dict[str, str]:
    return {"nameserver": cluster.namesrv, "topic": "t", "sendTimeout": "45s", **given}


def rows(*bodies: bytes | None) -> pa.RecordBatch:
    tags = [None if body is None else body.decode() for body in bodies]
    return pa.RecordBatch.from_arrays(
        [pa.array(bodies, pa.binary()), pa.array(tags, pa.string())], ["body", "tags"]
    )


def stored(cluster: FakeCluster) -> list[tuple[bytes, str, str]]:
    return sorted(
        (message.body, message.properties["TAGS"], message.properties["UNIQ_KEY"])
        for messages in cluster.brokers[0].queues.values()
        for message in messages
    )


def run_as(monkeypatch: pytest.MonkeyPatch, context: Context | None) -> None:
    monkeypatch.setattr(writer, "TaskContext", type("Task", (), {"get": lambda: context}))


def test_a_frame_is_written(cluster: FakeCluster) -> None:
    task = BatchWriter(options(cluster), SCHEMA, overwrite=False)
    travelled = sent_to_a_task(task)
    written = travelled.write(iter([rows(b"1", b"2"), rows(), rows(b"3")]))
    assert (written.rows, written.bytes > 0) == (3, True)
    assert [(body, tags) for body, tags, _ in stored(cluster)] == [
        (b"1", "1"),
        (b"2", "2"),
        (b"3", "3"),
    ]


def test_a_task_that_is_run_again_gives_the_same_keys(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = BatchWriter(options(cluster, dedup="true"), SCHEMA, overwrite=False)
    travelled = sent_to_a_task(task)
    run_as(monkeypatch, Context(1))
    task.write(iter([rows(b"1", b"2")]))
    travelled.write(iter([rows(b"1"), rows(b"2")]))
    assert len(stored(cluster)) == 4
    assert len(set(stored(cluster))) == 2
    run_as(monkeypatch, Context(2))
    task.write(iter([rows(b"1", b"2")]))
    other_write = BatchWriter(options(cluster, dedup="true"), SCHEMA, overwrite=False)
    other_write.write(iter([rows(b"1", b"2")]))
    assert len(set(stored(cluster))) == 6


def test_a_write_may_have_a_name(cluster: FakeCluster) -> None:
    for _ in range(2):
        named = options(cluster, dedup="true", writeId="nightly-2026-11-16")
        BatchWriter(named, SCHEMA, overwrite=False).write(iter([rows(b"1")]))
    assert len(stored(cluster)) == 2
    assert len(set(stored(cluster))) == 1


def test_without_dedup_each_run_has_other_keys(cluster: FakeCluster) -> None:
    task = BatchWriter(options(cluster), SCHEMA, overwrite=False)
    for _ in range(2):
        task.write(iter([rows(b"1", b"2")]))
    assert len(set(stored(cluster))) == 4


def test_a_stream_s_keys_are_those_of_query_batch_and_partition(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [("q", "7", 0), ("q", "7", 0), ("q", "8", 0), ("q", "7", 1), ("r", "7", 0)]
    for query, batch, partition in contexts:
        properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        run_as(monkeypatch, Context(partition, **properties))
        task = StreamWriter(options(cluster, dedup="true"), SCHEMA, overwrite=False)
        assert task.write(iter([rows(b"1", b"2")])).rows == 2
    assert len(stored(cluster)) == 10
    assert len(set(stored(cluster))) == 8


def test_a_stream_that_spark_says_nothing_of(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, Context(0))
    task = StreamWriter(options(cluster, dedup="true"), SCHEMA, overwrite=True)
    with pytest.raises(OptionError, match="dedup=true is not possible here"):
        task.write(iter([rows(b"1")]))
    plain = StreamWriter(options(cluster), SCHEMA, overwrite=True)
    assert plain.write(iter([rows(b"1")])).rows == 1


def test_a_row_that_cannot_be_sent_fails_the_task(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, Context(4))
    task = BatchWriter(options(cluster), SCHEMA, overwrite=False)
    with pytest.raises(RowError, match="row 2 of partition 4 has no body"):
        task.write(iter([rows(b"1", b"2"), rows(None)]))


def test_mistakes_are_found_at_planning(cluster: FakeCluster) -> None:
    with pytest.raises(OptionError, match=r"only added to: write with mode\('append'\)"):
        BatchWriter(options(cluster), SCHEMA, overwrite=True)
    wrong = StructType([StructField("body", IntegerType())])
    for kind in (BatchWriter, StreamWriter):
        with pytest.raises(OptionError, match="no option 'nonsense'"):
            kind(options(cluster, nonsense="1"), SCHEMA, False)
        with pytest.raises(ValueError, match="column 'body' is of type int"):
            kind(options(cluster), wrong, False)


def test_a_failed_write_says_what_it_left(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    BatchWriter(options(cluster), SCHEMA, overwrite=False).abort([Written(5, 50), None])
    StreamWriter(options(cluster), SCHEMA, overwrite=False).abort([Written(7, 70)], 3)
    assert "5 rows of tasks that ended are stored" in caplog.text
    assert "batch 3 failed: 7 rows" in caplog.text


def test_rows_may_be_let_through_one_by_one(cluster: FakeCluster) -> None:
    seen: list[int] = []

    def one_by_one(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for row in range(batch.num_rows):
            seen.append(row)
            yield batch.slice(row, 1)

    parsed = WriteOptions.parse(options(cluster))
    sent = send_rows(iter([rows(b"1", b"2")]), parsed, UniqueRows.random(), before=one_by_one)
    assert (sent.rows, seen) == (2, [0, 1])


def test_a_rate_is_kept() -> None:
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    limit = RateLimit(50, clock=lambda: now, sleep=sleep)
    batch = rows(*[b"x"] * 23)
    parts = [part.num_rows for part in limit.pass_on(batch)]
    assert (parts, len(slept)) == ([5, 5, 5, 5, 3], 4)
    assert now == pytest.approx(100.4)
    now += 60  # what was not used meanwhile is not caught up with
    list(limit.pass_on(batch))
    assert now == pytest.approx(160.4 + 0.4)


def test_a_slow_rate() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    limit = RateLimit(0.5, clock=lambda: now, sleep=sleep)
    assert [part.num_rows for part in limit.pass_on(rows(b"1", b"2", b"3"))] == [1, 1, 1]
    assert now == pytest.approx(4.0)


def test_the_option_limits_a_task(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    class Limit:
        def __init__(self, rate: float) -> None:
            rates.append(rate)

        def pass_on(self, batch: Any) -> Any:
            return (batch,)

    monkeypatch.setattr(writer, "RateLimit", Limit)
    task = BatchWriter(options(cluster, maxRowsPerSecond="10"), SCHEMA, overwrite=False)
    assert task.write(iter([rows(b"1")])) == Written(1, len(b"1") + 22 + 41 + len("\x02TAGS\x011"))
    assert rates == [10]
