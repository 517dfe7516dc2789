"""The work of a task: decode, filter, report losses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyromq.client.consumer.subscription import Subscription
from pyromq.spark.arrow import BATCH_BYTES, BATCH_ROWS
from pyromq.spark.columns import arrow_schema
from pyromq.spark.options import ReadOptions, TopicPattern, Topics
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import OriginError, Queue, QueueRange
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.reading.conditions import parse_where
from pyromq.spark.reading.positions import DataLossError
from pyromq.spark.reading.ranges import ReadPlan, log_ranges, read_log, read_range
from tests.support.stores import TOPIC, open_store, put
from tests.unit.spark.fake_origin import FakeOrigin

A0 = Queue("T", "a", 0)
COLUMNS = ("queueOffset", "body")
SOURCE = BrokerSource(ConnectionSettings(("localhost:9876",)))


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> FakeOrigin:
    origin = FakeOrigin({A0: (10, 1000)})
    monkeypatch.setattr(BrokerSource, "open", lambda source, subscription=None: origin)
    return origin


def plan(columns: tuple[str, ...] = COLUMNS, **options: Any) -> ReadPlan:
    return ReadPlan(ReadOptions(Topics(("T",)), SOURCE, **options), columns)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def test_rows_in_order_with_the_plans_columns(origin: FakeOrigin) -> None:
    found = list(read_range(plan(), QueueRange(A0, 20, 333)))
    assert {batch.schema for batch in found} == {arrow_schema(COLUMNS)}
    assert offsets(iter(found)) == list(range(20, 333))
    assert found[0].column("body")[0].as_py() == b"20"
    assert origin.closed == 1


def test_batches_are_not_too_large(origin: FakeOrigin) -> None:
    origin.body = lambda offset: bytes(1 << 20)
    found = list(read_range(plan(), QueueRange(A0, 10, 60)))
    assert offsets(iter(found)) == list(range(10, 60))
    assert all(batch.num_rows <= BATCH_ROWS for batch in found)
    assert all(batch.nbytes <= BATCH_BYTES + (1 << 20) for batch in found)


def test_blocks_without_a_matching_row(origin: FakeOrigin) -> None:
    origin.tags = lambda offset: "rare" if offset == 555 else "often"
    wanted = QueueRange(A0, 10, 1000)
    assert offsets(read_range(plan(tags=frozenset({"rare"})), wanted)) == [555]
    where = parse_where("storeTimestamp = '2023-11-14 22:22:35Z' and tags = 'rare'")
    assert offsets(read_range(plan(where=where), wanted)) == [555]


def test_a_task_that_is_cancelled_closes_its_origin(origin: FakeOrigin) -> None:
    rows = read_range(plan(), QueueRange(A0, 10, 1000))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert origin.closed == 1


def test_an_origin_that_fails_is_closed(origin: FakeOrigin) -> None:
    origin.failures = 1
    with pytest.raises(OriginError):
        list(read_range(plan(), QueueRange(A0, 10, 20)))
    assert origin.closed == 1


def test_lost_records(origin: FakeOrigin, caplog: pytest.LogCaptureFixture) -> None:
    wanted = QueueRange(A0, 5, 20)
    with pytest.raises(DataLossError, match="T@a:0: offsets 5 to 9 are lost: they have expired"):
        list(read_range(plan(), wanted))
    with caplog.at_level(logging.WARNING):
        assert offsets(read_range(plan(fail_on_data_loss=False), wanted)) == list(range(10, 20))
    assert "offsets 5 to 9 are lost" in caplog.text


def test_damaged_records(origin: FakeOrigin, caplog: pytest.LogCaptureFixture) -> None:
    origin.damaged = {12}
    wanted = QueueRange(A0, 10, 15)
    with pytest.raises(DataLossError, match="T@a:0, offsets 10 to 14, missing 12: the record"):
        list(read_range(plan(), wanted))
    with caplog.at_level(logging.WARNING):
        found = offsets(read_range(plan(fail_on_data_loss=False), wanted))
    assert found == [10, 11, 13, 14]
    assert "T@a:0, offsets 10 to 14, missing 12" in caplog.text


def test_a_block_of_damaged_records(origin: FakeOrigin) -> None:
    origin.damaged = set(range(1000))
    with pytest.raises(DataLossError, match="T@a:0, 5 records, none of them whole"):
        list(read_range(plan(), QueueRange(A0, 10, 15)))


def test_tags_are_compared_as_text(origin: FakeOrigin) -> None:
    # These two have the same hash in Java.
    origin.tags = lambda offset: "Aa" if offset % 2 else "BB"
    found = list(read_range(plan(tags=frozenset({"Aa"})), QueueRange(A0, 10, 20)))
    assert offsets(iter(found)) == [11, 13, 15, 17, 19]
    assert {batch.schema for batch in found} == {arrow_schema(COLUMNS)}
    with_tags = plan(("tags", "queueOffset"), tags=frozenset({"Aa"}))
    found = list(read_range(with_tags, QueueRange(A0, 10, 20)))
    assert found[0].column("tags").to_pylist() == ["Aa"] * 5


def test_batches_declare_not_null_columns(origin: FakeOrigin) -> None:
    wanted = replace(plan(tags=frozenset({"a"})), not_null=frozenset({"body"}))
    origin.tags = lambda offset: "a"
    found = list(read_range(wanted, QueueRange(A0, 10, 15)))
    assert {batch.schema for batch in found} == {arrow_schema(COLUMNS, not_null={"body"})}


def test_the_subscription_for_brokers() -> None:
    options = plan(tags=frozenset({"b", "a"})).options
    assert plan().subscription is None
    assert ReadPlan(options, COLUMNS).subscription == Subscription.tags("a || b")
    both = ReadPlan(options, COLUMNS, pushed_tags=frozenset({"b", "c"}))
    assert both.subscription == Subscription.tags("b")
    pushed = ReadPlan(plan().options, COLUMNS, pushed_tags=frozenset({"c"}))
    assert pushed.subscription == Subscription.tags("c")
    by_sql = ReadPlan(plan(sql="a = 1").options, COLUMNS, pushed_tags=frozenset({"c"}))
    assert by_sql.subscription == Subscription.sql("a = 1")


def test_files_of_a_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(300):
        put(store, b"%d" % number, topic="Other" if number % 3 == 0 else TOPIC)
        store.seal()
    store.stop()
    options = ReadOptions(Topics((TOPIC,)), StoreSource(str(tmp_path / "store"), "broker-a"))
    by_queue = ReadPlan(options, ("topic", "brokerName", "queueOffset", "body"))
    found = list(read_range(by_queue, QueueRange(Queue(TOPIC, "broker-a", 0), 0, 200)))
    bodies = [b"%d" % number for number in range(300) if number % 3]
    assert _bodies(found) == bodies
    assert set(found[0].column("brokerName").to_pylist()) == {"broker-a"}

    by_topic = replace(by_queue, options=replace(options, commit_log_only=True))
    assert _bodies(_read_log(by_topic)) == bodies
    # Topics are not known before the log is read.
    pattern = replace(by_topic.options, wanted=TopicPattern("Oth.*"))
    by_pattern = ReadPlan(pattern, ("body",))
    assert _bodies(_read_log(by_pattern)) == [b"%d" % number for number in range(0, 300, 3)]


def _read_log(plan: ReadPlan) -> list[pa.RecordBatch]:
    return [batch for wanted in log_ranges(plan) for batch in read_log(plan, wanted)]


def _bodies(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [body for batch in batches for body in batch.column("body").to_pylist()]
