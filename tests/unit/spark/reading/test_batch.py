"""A batch read: partitions, filters, and both ways in which Spark plans it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual, In, InputPartition

from pyromq.client.consumer.subscription import Subscription
from pyromq.spark.options import Mode, ReadOptions, TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import OriginError, Queue
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.reading import batch
from pyromq.spark.reading.batch import BatchReader, LogPartition, PushingBatchReader, batch_reader
from pyromq.spark.reading.partitions import RangePartition
from pyromq.spark.reading.ranges import ReadPlan
from tests.support.stores import TOPIC, open_store, put
from tests.unit.spark.fake_origin import FakeOrigin

A0, A1 = Queue("T", "a", 0), Queue("T", "a", 1)
COLUMNS = ("queueId", "queueOffset")


class WatchedOrigin(FakeOrigin):
    """Records the subscriptions that it was opened with."""

    def __init__(self) -> None:
        super().__init__({A0: (10, 100), A1: (0, 50)})
        self.subscriptions: list[Subscription | None] = []

    def open(self, subscription: Subscription | None = None) -> FakeOrigin:
        self.subscriptions.append(subscription)
        return self


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> WatchedOrigin:
    origin = WatchedOrigin()
    monkeypatch.setattr(
        BrokerSource, "open", lambda source, subscription=None: origin.open(subscription)
    )
    return origin


def plan(columns: tuple[str, ...] = COLUMNS, /, **options: str) -> ReadPlan:
    given = {
        "nameserver": "localhost:9876",
        "subscribe": "T",
        "fetchOffset.retryInterval": "1ms",
        **options,
    }
    return ReadPlan(ReadOptions.parse(given, Mode.BATCH), columns)


def reader(**options: str) -> BatchReader:
    return BatchReader(plan(**options))


def pushing_reader(**options: str) -> PushingBatchReader:
    return PushingBatchReader(plan(**options))


def rows(reader: BatchReader) -> list[tuple[Any, ...]]:
    """Return the rows of a query: planned here, read by a copy of the reader."""
    partitions = reader.partitions()
    copy = pickle.loads(pickle.dumps(reader))
    return [
        tuple(row.values())
        for partition in partitions
        for found in copy.read(pickle.loads(pickle.dumps(partition)))
        for row in found.to_pylist()
    ]


def parts(reader: BatchReader) -> list[RangePartition]:
    found = reader.partitions()
    return [part for part in found if isinstance(part, RangePartition)]


def test_everything_once(origin: WatchedOrigin) -> None:
    expected = [(0, offset) for offset in range(10, 100)] + [(1, offset) for offset in range(50)]
    assert rows(reader()) == expected
    assert rows(reader(minPartitions="7")) == expected
    assert len(reader(minPartitions="7").partitions()) == 7
    assert len(reader(maxRecordsPerPartition="20").partitions()) == 5 + 3
    assert origin.closed == len(origin.subscriptions)


def test_nothing_to_read(origin: WatchedOrigin) -> None:
    origin.all.clear()
    options = ReadOptions(TopicPattern("x"), BrokerSource(ConnectionSettings(("localhost:9876",))))
    nothing = BatchReader(ReadPlan(options, COLUMNS))
    # Spark needs at least one partition.
    assert len(nothing.partitions()) == 1
    assert rows(nothing) == []


def test_the_placeholder_partition_is_empty(origin: WatchedOrigin) -> None:
    found = reader().read(InputPartition(None))
    assert isinstance(found, Iterator)
    assert list(found) == []


def test_planning_is_retried(origin: WatchedOrigin) -> None:
    origin.failures = 3
    assert len(rows(reader())) == 140
    origin.failures = 4
    with pytest.raises(OriginError):
        reader().partitions()


def test_filters_that_are_pushed(origin: WatchedOrigin) -> None:
    pushing = pushing_reader()
    later = GreaterThanOrEqual(("queueOffset",), 95)
    body = EqualTo(("body",), b"97")
    assert pushing.pushFilters([EqualTo(("topic",), "T"), later, body]) == [body]
    assert rows(pushing) == [(0, offset) for offset in range(95, 100)]


def test_tags_that_are_pushed(origin: WatchedOrigin) -> None:
    pushing = pushing_reader()
    tags = In(("tags",), ("tag-1", "tag-2"))
    assert pushing.pushFilters([tags]) == [tags]
    rows(pushing)
    # Offsets are searched among all messages.
    assert set(origin.subscriptions) == {None, Subscription.tags("tag-1 || tag-2")}


def test_tags_that_are_pushed_beside_the_option(origin: WatchedOrigin) -> None:
    pushing = pushing_reader(tags="tag-0 || tag-1")
    pushing.pushFilters([In(("tags",), ("tag-1", "tag-2"))])
    found = rows(pushing)
    assert set(origin.subscriptions) == {None, Subscription.tags("tag-1")}
    assert found
    pushing = pushing_reader(tags="tag-0")
    pushing.pushFilters([EqualTo(("tags",), "tag-1")])
    assert rows(pushing) == []


def test_sessions_without_push_down_accept_the_reader() -> None:
    # pyspark's plan_data_source_read compares this.
    assert pushing_reader().pushFilters.__func__ is DataSourceReader.pushFilters


def test_nothing_is_pushed_if_spark_shares_partitions(
    origin: WatchedOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = batch_reader(plan())
    condition = EqualTo(("queueId",), 1)
    assert list(plain.pushFilters([condition])) == [condition]
    assert len(rows(plain)) == 140
    monkeypatch.setattr(batch, "is_safe", lambda version: True)
    assert list(batch_reader(plan()).pushFilters([condition])) == []


def test_a_condition_as_an_option(origin: WatchedOrigin) -> None:
    assert rows(reader(where="queueOffset >= 95")) == [(0, offset) for offset in range(95, 100)]
    assert rows(reader(where="queueId = 1 and queueOffset < 2")) == [(1, 0), (1, 1)]
    assert rows(reader(where="topic = 'Other'")) == []
    # Stored a second for each offset after the epoch of 1,700,000,000.
    late = rows(reader(where="storeTimestamp > '2023-11-14 22:14:57Z'"))
    assert late == [(0, 98), (0, 99)]
    assert {part.wanted.start for part in parts(reader(where="queueOffset >= 60"))} == {60}


def test_tags_of_a_condition_as_an_option(origin: WatchedOrigin) -> None:
    found = rows(reader(where="tags = 'tag-1' and queueId = 1 and queueOffset < 10"))
    assert found == [(1, 1), (1, 4), (1, 7)]
    assert set(origin.subscriptions) == {None, Subscription.tags("tag-1")}
    assert rows(reader(where="tags = 'tag-1'", tags="tag-2")) == []
    pushing = pushing_reader(where="queueId = 1")
    pushing.pushFilters([GreaterThanOrEqual(("queueOffset",), 48)])
    assert rows(pushing) == [(1, 48), (1, 49)]


def test_the_log_alone(tmp_path: Any) -> None:
    store = open_store(tmp_path / "store")
    for number in range(20):
        put(store, b"%d" % number)
        store.seal()
    store.stop()
    source = StoreSource(str(tmp_path / "store"))
    options = ReadOptions(Topics((TOPIC,)), source, commit_log_only=True)
    log_reader = PushingBatchReader(ReadPlan(options, ("queueOffset",)))
    condition = EqualTo(("queueOffset",), 3)
    assert log_reader.pushFilters([condition]) == [condition]
    assert all(isinstance(part, LogPartition) for part in log_reader.partitions())
    assert rows(log_reader) == [(offset,) for offset in range(20)]


def test_partitions_are_small(origin: WatchedOrigin) -> None:
    partition = reader().partitions()[0]
    assert isinstance(partition, RangePartition)
    assert len(pickle.dumps(partition)) < 300
