"""A stream: offsets of batches, limits, new and missing queues, losses, commits to a group."""

from __future__ import annotations

import json
import logging
import pickle
import time
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyromq.spark.options import Mode, ReadOptions, Topics
from pyromq.spark.origins import retries
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import Bounds, OriginError, Queue, UnreachableError
from pyromq.spark.reading import stream
from pyromq.spark.reading.partitions import RangePartition
from pyromq.spark.reading.positions import DataLossError, PositionError
from pyromq.spark.reading.ranges import ReadPlan
from pyromq.spark.reading.stream import StreamReader
from tests.support.stores import TOPIC, open_store, put
from tests.unit.spark.fake_origin import FakeOrigin

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)
ALL = ReadAllAvailable()


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> FakeOrigin:
    origin = FakeOrigin({A0: (10, 100), A1: (0, 50)})
    monkeypatch.setattr(BrokerSource, "open", lambda source, subscription=None: origin)
    return origin


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    return now


def reader(**options: str) -> StreamReader:
    given = {
        "nameserver": "localhost:9876",
        "subscribe": "T",
        "startingOffsets": "earliest",
        "fetchOffset.retryInterval": "1ms",
        **options,
    }
    if "assign" in options or "subscribePattern" in options:
        del given["subscribe"]
    plan = ReadPlan(ReadOptions.parse(given, Mode.STREAM), ("queueId", "queueOffset"))
    return StreamReader(plan)


def at(a0: int, a1: int, **others: int) -> dict[str, dict[str, int]]:
    more = {f"{name[0]}:{name[1:]}": offset for name, offset in others.items()}
    return {"T": {"a:0": a0, "a:1": a1, **more}}


def rows(reading_reader: StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """What a batch reads, in tasks that have another copy of the reader."""
    start, end = (json.loads(json.dumps(offsets)) for offsets in (start, end))
    copy = pickle.loads(pickle.dumps(reading_reader))
    return [
        tuple(row.values())
        for partition in reading_reader.partitions(start, end)
        for batch in copy.read(partition)
        for row in batch.to_pylist()
    ]


def expected(queue_id: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(queue_id, offset) for offset in range(start, end)]


def test_where_streams_begin(origin: FakeOrigin) -> None:
    assert reader().initialOffset() == at(10, 0)
    assert reader(startingOffsets="latest").initialOffset() == at(100, 50)
    given = json.dumps(at(20, -1))
    assert reader(startingOffsets=given).initialOffset() == at(20, 50)
    with pytest.raises(PositionError, match="Nowhere"):
        reader(subscribe="T,Nowhere").initialOffset()


def test_batches_follow_one_another(origin: FakeOrigin) -> None:
    streaming = reader()
    start = streaming.initialOffset()
    end = streaming.latestOffset(start, ALL)
    assert end == at(100, 50)
    assert rows(streaming, start, end) == expected(0, 10, 100) + expected(1, 0, 50)
    origin.all[A0] = Bounds(10, 110)
    later = streaming.latestOffset(end, ALL)
    assert later == at(110, 50)
    assert rows(streaming, end, later) == expected(0, 100, 110)


def test_nothing_new_is_the_start_itself(origin: FakeOrigin) -> None:
    streaming = reader()
    # Whatever the order of what a checkpoint holds.
    start = {"T": {"a:1": 50, "a:0": 100}}
    assert json.dumps(streaming.latestOffset(start, ALL)) == json.dumps(start)
    assert streaming.partitions(start, start) == []


def test_partitions(origin: FakeOrigin) -> None:
    streaming = reader(minPartitions="5")
    partitions = streaming.partitions(at(10, 0), at(100, 50))
    assert len(partitions) == 5
    assert all(isinstance(partition, RangePartition) for partition in partitions)


def test_limits_are_known_to_spark() -> None:
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    assert reader(maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(maxBytesPerTrigger="7k").getDefaultReadLimit() == ReadMaxBytes(7168)
    assert reader(minOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMinRows(7)


def test_most_offsets(origin: FakeOrigin) -> None:
    streaming = reader(maxOffsetsPerTrigger="14")
    assert streaming.latestOffset(at(10, 0), ReadMaxRows(14)) == at(19, 5)
    assert streaming.latestOffset(at(10, 0), ALL) == at(100, 50)
    assert streaming.latestOffset(at(99, 50), ReadMaxRows(14)) == at(100, 50)


def test_most_bytes(origin: FakeOrigin) -> None:
    origin.body = lambda offset: bytes(10_000)
    streaming = reader(maxBytesPerTrigger="285000")
    end = streaming.latestOffset(at(10, 0), ReadMaxBytes(285_000))
    # 140 messages of about 10,120 bytes wait.
    assert end == at(28, 10)
    assert streaming.latestOffset(at(100, 50), ReadMaxBytes(285_000)) == at(100, 50)
    # Both limits count.
    streaming = reader(maxBytesPerTrigger="285000", maxOffsetsPerTrigger="14")
    assert streaming.latestOffset(at(10, 0), ReadMaxRows(14)) == at(19, 5)
    streaming = reader(maxBytesPerTrigger="1", maxOffsetsPerTrigger="14")
    assert streaming.latestOffset(at(10, 0), ReadMaxRows(14)) == at(11, 1)


def test_least_offsets(origin: FakeOrigin, clock: list[float]) -> None:
    streaming = reader(minOffsetsPerTrigger="20", maxTriggerDelay="1m")
    limit = ReadMinRows(20)
    start = streaming.latestOffset(at(10, 0), limit)
    assert start == at(100, 50)
    origin.all[A0] = Bounds(10, 119)
    clock[0] += 59
    assert streaming.latestOffset(start, limit) == start
    clock[0] += 1
    assert streaming.latestOffset(start, limit) == at(119, 50)
    # The wait starts over, and ends as soon as there is enough.
    origin.all[A1] = Bounds(0, 69)
    assert streaming.latestOffset(at(119, 50), limit) == at(119, 50)
    origin.all[A1] = Bounds(0, 70)
    assert streaming.latestOffset(at(119, 50), limit) == at(119, 70)


def test_the_first_batch_does_not_wait(origin: FakeOrigin) -> None:
    streaming = reader(minOffsetsPerTrigger="1000")
    assert streaming.latestOffset(at(10, 0), ReadMinRows(1000)) == at(100, 50)


def test_available_now(origin: FakeOrigin) -> None:
    streaming = reader(
        maxOffsetsPerTrigger="100", minOffsetsPerTrigger="90", subscribe="T", maxTriggerDelay="1h"
    )
    streaming.prepareForTriggerAvailableNow()
    origin.all[A0] = Bounds(10, 200)
    origin.all[B0] = Bounds(0, 30)
    seen = []
    start = at(10, 0)
    while True:
        end = streaming.latestOffset(start, ReadMaxRows(100))
        if end == start:
            break
        seen += rows(streaming, start, end)
        start = end
    assert sorted(seen) == expected(0, 10, 100) + expected(1, 0, 50)


def test_available_now_with_queues_that_came_since_the_last_run(origin: FakeOrigin) -> None:
    origin.all[B0] = Bounds(3, 30)
    streaming = reader()
    streaming.prepareForTriggerAvailableNow()
    end = streaming.latestOffset(at(100, 50), ALL)
    assert end == at(100, 50, b0=3)
    last = streaming.latestOffset(end, ALL)
    assert last == at(100, 50, b0=30)
    assert len(rows(streaming, end, last)) == 27
    assert streaming.latestOffset(last, ALL) == last


def test_available_now_while_a_topic_is_gone(origin: FakeOrigin) -> None:
    origin.all.clear()
    streaming = reader(failOnDataLoss="false")
    streaming.prepareForTriggerAvailableNow()
    assert streaming.latestOffset(at(100, 50), ALL) == at(100, 50)


@pytest.mark.parametrize("starting", ["latest", json.dumps(at(100, -1))])
def test_the_latest_start_is_kept(origin: FakeOrigin, starting: str) -> None:
    streaming = reader(startingOffsets=starting)
    start = streaming.initialOffset()
    origin.all[A1] = Bounds(0, 60)
    # Spark runs a batch for it, and keeps its end.
    assert streaming.latestOffset(start, ALL) == start == at(100, 50)
    assert streaming.partitions(start, start) == []
    # A crash: Spark asks again where to begin, and runs the batch again.
    streaming = reader(startingOffsets=starting)
    later = streaming.initialOffset()
    assert later == at(100, 60)
    assert streaming.partitions(later, start) == []
    streaming = reader(startingOffsets=starting)
    end = streaming.latestOffset(start, ALL)
    assert rows(streaming, start, end) == expected(1, 50, 60)


def test_a_first_batch_that_is_not_empty_is_read(origin: FakeOrigin) -> None:
    streaming = reader(startingOffsets="latest")
    start = streaming.initialOffset()
    origin.all[A0] = Bounds(10, 110)
    assert rows(streaming, start, at(110, 50)) == expected(0, 100, 110)


def test_new_queues_begin_at_their_earliest(origin: FakeOrigin) -> None:
    streaming = reader()
    start = at(100, 50)
    origin.all[B0] = Bounds(5, 20)
    # It appears first, so that the batch that reads it begins at a known offset.
    appeared = streaming.latestOffset(start, ALL)
    assert appeared == at(100, 50, b0=5)
    assert rows(streaming, start, appeared) == []
    end = streaming.latestOffset(appeared, ALL)
    assert end == at(100, 50, b0=20)
    assert rows(streaming, appeared, end) == expected(0, 5, 20)


def test_new_queues_count_as_backlog(origin: FakeOrigin, clock: list[float]) -> None:
    streaming = reader(minOffsetsPerTrigger="20")
    start = streaming.latestOffset(at(10, 0), ReadMinRows(20))
    origin.all[B0] = Bounds(0, 19)
    assert streaming.latestOffset(start, ReadMinRows(20)) == start
    origin.all[B0] = Bounds(0, 20)
    assert streaming.latestOffset(start, ReadMinRows(20)) == at(100, 50, b0=0)


def test_new_topics(origin: FakeOrigin) -> None:
    streaming = reader(subscribePattern="T.*")
    origin.all[Queue("T2", "a", 0)] = Bounds(0, 3)
    end = streaming.latestOffset(at(100, 50), ALL)
    assert end == {**at(100, 50), "T2": {"a:0": 0}}
    assert streaming.latestOffset(end, ALL) == {**at(100, 50), "T2": {"a:0": 3}}


def test_assigned_queues_stay(origin: FakeOrigin) -> None:
    streaming = reader(assign='{"T": ["a:0"]}')
    assert streaming.initialOffset() == {"T": {"a:0": 10}}
    assert streaming.latestOffset({"T": {"a:0": 10}}, ALL) == {"T": {"a:0": 100}}


def test_queues_that_are_no_longer_selected_are_dropped(origin: FakeOrigin) -> None:
    start = {**at(10, 0), "Old": {"a:0": 7}}
    streaming = reader()
    end = streaming.latestOffset(start, ALL)
    assert end == at(100, 50)
    assert len(rows(streaming, start, end)) == 140


def test_a_queue_whose_broker_is_away(origin: FakeOrigin, caplog: pytest.LogCaptureFixture) -> None:
    origin.all[B0] = Bounds(0, 20)
    start = at(100, 50, b0=10)
    with pytest.raises(DataLossError, match=r"queues disappeared \(T@c:0\)"):
        reader().latestOffset(at(100, 50, c0=10), ALL)
    streaming = reader(failOnDataLoss="false")
    bounds = origin.all.pop(B0)
    origin.all[A0] = Bounds(10, 101)
    with caplog.at_level(logging.WARNING):
        end = streaming.latestOffset(start, ALL)
    assert end == at(101, 50, b0=10)
    assert "T@b:0" in caplog.text
    caplog.clear()
    asked = origin.asked
    assert streaming.latestOffset(end, ALL) == end
    # No second wait, no second warning.
    assert origin.asked - asked <= 3
    assert "T@b:0" not in caplog.text
    # It resumes where it was.
    origin.all[B0] = bounds
    assert streaming.latestOffset(end, ALL) == at(101, 50, b0=20)


def test_a_queue_that_returns_soon_is_not_a_loss(
    origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = origin.all.pop(A1)
    monkeypatch.setattr(
        retries.time,  # type: ignore[attr-defined]
        "sleep",
        lambda seconds: origin.all.setdefault(A1, gone),
    )
    assert reader().latestOffset(at(10, 0), ALL) == at(100, 50)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, on a clock that they advance."""
    pauses: list[float] = []
    begin = time.monotonic()
    monkeypatch.setattr(retries.time, "sleep", pauses.append)  # type: ignore[attr-defined]
    monkeypatch.setattr(
        retries.time,  # type: ignore[attr-defined]
        "monotonic",
        lambda: begin + sum(pauses),
    )
    return pauses


def test_a_broker_that_is_away_for_minutes_is_not_a_loss(
    origin: FakeOrigin, slept: list[float]
) -> None:
    gone = dict(origin.all)
    origin.all.clear()
    origin.away = {"a"}
    streaming = reader()

    def come_back(queues: object) -> dict[Queue, Bounds]:
        if sum(slept) > 200:
            origin.all.update(gone)
        return FakeOrigin.bounds(origin, cast("list[Queue]", queues))

    origin.bounds = come_back  # type: ignore[method-assign]
    assert streaming.latestOffset(at(10, 0), ALL) == at(100, 50)
    # The limit is an option.
    origin.all.clear()
    slept.clear()
    origin.bounds = FakeOrigin.bounds.__get__(origin)  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="their broker is away"):
        reader(reconnectTimeout="30s").latestOffset(at(10, 0), ALL)
    assert 29.9 < sum(slept) < 31
    # Without failOnDataLoss the stream continues soon.
    slept.clear()
    streaming = reader(failOnDataLoss="false")
    assert streaming.latestOffset(at(10, 0), ALL) == at(10, 0)
    assert sum(slept) < 1


def test_servers_that_are_gone_are_waited_for(origin: FakeOrigin, slept: list[float]) -> None:
    origin.error = UnreachableError
    streaming = reader()
    streaming.initialOffset()
    origin.failures = 20
    assert streaming.latestOffset(at(10, 0), ALL) == at(100, 50)
    # A query that resumes from its checkpoint.
    origin.failures = 20
    assert reader().latestOffset(at(10, 0), ALL) == at(100, 50)
    origin.failures = 1000
    with pytest.raises(UnreachableError):
        reader().partitions(at(10, 0), at(100, 50))
    assert sum(slept) > 300
    # A new query fails early: its addresses may be wrong.
    slept.clear()
    with pytest.raises(UnreachableError):
        reader().initialOffset()
    assert len(slept) == 3


def test_a_topic_that_is_deleted(origin: FakeOrigin) -> None:
    origin.all.clear()
    with pytest.raises(DataLossError, match="T@a:0, T@a:1"):
        reader().latestOffset(at(10, 0), ALL)
    assert reader(failOnDataLoss="false").latestOffset(at(10, 0), ALL) == at(10, 0)


def test_retention_overtakes(origin: FakeOrigin, caplog: pytest.LogCaptureFixture) -> None:
    origin.all[A0] = Bounds(60, 100)
    start = at(10, 50)
    with pytest.raises(DataLossError, match="T@a:0: offsets 10 to 59 have expired"):
        reader().latestOffset(start, ALL)
    streaming = reader(failOnDataLoss="false", maxOffsetsPerTrigger="10")
    with caplog.at_level(logging.WARNING):
        end = streaming.latestOffset(start, ReadMaxRows(10))
    assert "offsets 10 to 59 have expired" in caplog.text
    # Lost messages do not count.
    assert end == at(70, 50)
    assert rows(streaming, start, end) == expected(0, 60, 70)


def test_all_messages_expired(origin: FakeOrigin) -> None:
    origin.all[A0] = Bounds(100, 100)
    streaming = reader(failOnDataLoss="false")
    end = streaming.latestOffset(at(10, 50), ALL)
    assert end == at(100, 50)
    assert rows(streaming, at(10, 50), end) == []
    assert streaming.latestOffset(end, ALL) == end


def test_retention_overtakes_a_repeated_batch(origin: FakeOrigin) -> None:
    origin.all[A0] = Bounds(60, 100)
    with pytest.raises(DataLossError, match="T@a:0"):
        reader().partitions(at(10, 0), at(70, 0))
    again = reader(failOnDataLoss="false")
    assert rows(again, at(10, 0), at(70, 0)) == expected(0, 60, 70)


def test_a_queue_that_was_reset(origin: FakeOrigin) -> None:
    origin.all[A0] = Bounds(0, 30)
    start = at(100, 50)
    with pytest.raises(DataLossError, match=r"T@a:0: the stream is at offset 100, but .* reset"):
        reader().latestOffset(start, ALL)
    with pytest.raises(DataLossError, match=r"T@a:0: .* reset"):
        reader().partitions(start, at(30, 50))
    streaming = reader(failOnDataLoss="false", maxOffsetsPerTrigger="20")
    end = streaming.latestOffset(start, ReadMaxRows(20))
    assert end == at(20, 50)
    assert rows(streaming, start, end) == expected(0, 0, 20)
    later = streaming.latestOffset(end, ReadMaxRows(20))
    assert rows(streaming, end, later) == expected(0, 20, 30)


def test_a_queue_that_was_reset_and_is_empty(origin: FakeOrigin) -> None:
    origin.all[A0] = Bounds(0, 0)
    streaming = reader(failOnDataLoss="false")
    end = streaming.latestOffset(at(100, 50), ALL)
    assert end == at(0, 50)
    assert rows(streaming, at(100, 50), end) == []
    assert streaming.latestOffset(end, ALL) == end


def test_a_repeated_batch_reads_the_same(origin: FakeOrigin) -> None:
    streaming = reader()
    first = rows(streaming, at(10, 0), at(70, 20))
    origin.all[A0] = Bounds(10, 1000)
    origin.all[B0] = Bounds(0, 1000)
    assert rows(reader(), at(10, 0), at(70, 20)) == first


def test_a_repeated_batch_whose_queue_disappeared(origin: FakeOrigin) -> None:
    del origin.all[A1]
    with pytest.raises(DataLossError, match="T@a:1"):
        reader().partitions(at(10, 0), at(70, 20))
    assert rows(reader(failOnDataLoss="false"), at(10, 0), at(70, 20)) == expected(0, 10, 70)


def test_progress_shows_the_ends_of_queues(origin: FakeOrigin) -> None:
    streaming = reader(maxOffsetsPerTrigger="14")
    assert streaming.reportLatestOffset() is None
    streaming.latestOffset(at(10, 0), ReadMaxRows(14))
    assert streaming.reportLatestOffset() == at(100, 50)


def test_an_origin_that_fails_is_reopened(origin: FakeOrigin) -> None:
    streaming = reader()
    streaming.initialOffset()
    origin.failures = 3
    assert streaming.latestOffset(at(10, 0), ALL) == at(100, 50)
    assert origin.closed == 3
    origin.failures = 4
    with pytest.raises(OriginError):
        streaming.latestOffset(at(10, 0), ALL)


def test_offsets_are_committed_to_a_group(origin: FakeOrigin) -> None:
    streaming = reader(group="spark")
    start = streaming.initialOffset()
    end = streaming.latestOffset(start, ALL)
    assert origin.commits == [("spark", {A0: 10, A1: 0})]
    streaming.commit(end)
    assert origin.committed == {A0: 100, A1: 50}
    # Only offsets that moved are committed again.
    streaming.latestOffset(end, ALL)
    assert len(origin.commits) == 2
    streaming.commit(at(101, 50))
    assert origin.commits[2:] == [("spark", {A0: 101})]


def test_processed_offsets_are_committed_with_the_next_batch(origin: FakeOrigin) -> None:
    # Spark commits a batch only when there is another one, so perhaps never.
    streaming = reader(group="spark")
    streaming.latestOffset(at(100, 50), ALL)
    assert origin.committed == {A0: 100, A1: 50}


def test_a_commit_that_fails_is_a_warning(
    origin: FakeOrigin, caplog: pytest.LogCaptureFixture
) -> None:
    streaming = reader(group="spark")
    origin.failing_commits = True
    with caplog.at_level(logging.WARNING):
        assert streaming.latestOffset(at(10, 0), ALL) == at(100, 50)
    assert "group spark" in caplog.text
    origin.failing_commits = False
    streaming.commit(at(10, 0))
    assert origin.committed == {A0: 10, A1: 0}


def test_without_a_group_nothing_is_committed(origin: FakeOrigin) -> None:
    streaming = reader()
    streaming.latestOffset(at(10, 0), ALL)
    streaming.commit(at(10, 0))
    assert origin.commits == []


def test_a_reader_is_pickled_without_its_state(origin: FakeOrigin) -> None:
    streaming = reader()
    streaming.initialOffset()
    assert len(pickle.dumps(streaming)) < 2000
    streaming.stop()
    streaming.stop()
    assert origin.closed == 1


def test_a_stream_of_a_stores_files(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")

    def fill(count: int) -> None:
        for _ in range(count):
            put(store, b"x")
        store.seal()

    fill(10)
    options = ReadOptions(Topics((TOPIC,)), StoreSource(str(tmp_path / "store")))
    streaming = StreamReader(ReadPlan(options, ("queueId", "queueOffset")))
    start = streaming.initialOffset()
    assert start == {TOPIC: {"store:0": 0}}
    end = streaming.latestOffset(start, ALL)
    assert rows(streaming, start, end) == expected(0, 0, 10)
    fill(5)
    later = streaming.latestOffset(end, ALL)
    assert rows(streaming, end, later) == expected(0, 10, 15)
    streaming.stop()
    store.stop()


def test_a_replica_may_lack_messages_at_both_ends(origin: FakeOrigin) -> None:
    """It is behind its master, and has less of the past: nothing is lost, and nothing skipped."""
    streaming = reader()
    assert streaming.latestOffset(at(60, 20), ALL) == at(100, 50)
    origin.lagging = {A0, A1, B0}
    origin.all[A0] = Bounds(70, 90)
    origin.all[A1] = Bounds(0, 40)
    origin.all[B0] = Bounds(5, 9)  # where a new queue begins is not known either
    for start, end in (
        (at(60, 50), at(60, 50)),
        (at(95, 20), at(95, 40)),
        (at(80, 40), at(90, 40)),
    ):
        assert streaming.latestOffset(start, ALL) == end
    # A batch from the checkpoint is read as it is; its tasks wait for the master.
    (partition,) = streaming.partitions(at(60, 50), at(95, 50))
    assert isinstance(partition, RangePartition)
    assert partition.wanted[1:] == (60, 95)
    origin.lagging.clear()
    origin.all |= {A0: Bounds(10, 100), A1: Bounds(0, 50)}
    assert streaming.latestOffset(at(60, 50), ALL) == at(100, 50, b0=5)
