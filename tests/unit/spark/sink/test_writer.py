from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pyromq.spark.options import OptionError
from pyromq.spark.sink import writer
from pyromq.spark.sink.row_encoder import RowError
from pyromq.spark.sink.writer import BatchWriter, RateLimit, SendTimes, StreamWriter, Written
from tests.unit.client.fake_cluster import FakeCluster, cluster_in_a_thread

SCHEMA = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])


class Context:
    """A fake task context."""

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


def test_a_retried_task_gives_the_same_keys(
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


def test_keys_of_a_stream_depend_on_query_batch_and_partition(
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


def test_a_stream_without_query_and_batch_id(
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
    with pytest.raises(OptionError, match=r"cannot be overwritten: write with mode\('append'\)"):
        BatchWriter(options(cluster), SCHEMA, overwrite=True)
    wrong = StructType([StructField("body", IntegerType())])
    for kind in (BatchWriter, StreamWriter):
        with pytest.raises(OptionError, match="unknown option 'nonsense'"):
            kind(options(cluster, nonsense="1"), SCHEMA, False)
        with pytest.raises(ValueError, match="column 'body' has type int"):
            kind(options(cluster), wrong, False)


def test_a_failed_write_logs_what_it_left(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    BatchWriter(options(cluster), SCHEMA, overwrite=False).abort([Written(5, 50), None])
    StreamWriter(options(cluster), SCHEMA, overwrite=False).abort([Written(7, 70)], 3)
    assert "5 rows of finished tasks are stored" in caplog.text
    assert "batch 3 failed: 7 rows" in caplog.text


class Clock:
    """A clock that advances with every sleep."""

    def __init__(self, now: float) -> None:
        self.now = now

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_rows_wait_for_their_times() -> None:
    times = [None, 1000.0, 1000.5, 999.0, 1003.0]
    column = pa.array(
        [None if at is None else int(at * 1_000_000) for at in times],
        pa.timestamp("us", tz="UTC"),
    )
    bodies = pa.array([str(row) for row in range(5)])
    batch = pa.RecordBatch.from_arrays([bodies, column], ["body", "sendAt"])
    clock = Clock(998.0)
    parts = []
    for part in SendTimes(clock.read, clock.sleep).pass_on(batch):
        rows_in_it = part.column(0).to_pylist()
        parts.append(rows_in_it)
        latest = max((times[int(row)] or 0) for row in rows_in_it)
        assert latest <= clock.now < latest + 1 or rows_in_it == ["0"]
    assert parts == [["0"], ["1"], ["2", "3"], ["4"]]


def test_rows_without_times_do_not_wait() -> None:
    batch = rows(b"1", b"2")
    assert list(SendTimes(lambda: 0.0).pass_on(batch)) == [batch]


def test_a_rate_is_kept() -> None:
    clock = Clock(100.0)
    limit = RateLimit(50, clock.read, clock.sleep)
    batch = rows(*[b"x"] * 23)
    assert [part.num_rows for part in limit.pass_on(batch)] == [5, 5, 5, 5, 3]
    assert clock.now == pytest.approx(100.4)
    clock.now += 60  # what was not used meanwhile is not caught up with
    list(limit.pass_on(batch))
    assert clock.now == pytest.approx(160.4 + 0.4)


def test_a_slow_rate() -> None:
    clock = Clock(0.0)
    limit = RateLimit(0.5, clock.read, clock.sleep)
    assert [part.num_rows for part in limit.pass_on(rows(b"1", b"2", b"3"))] == [1, 1, 1]
    assert clock.now == pytest.approx(4.0)


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
