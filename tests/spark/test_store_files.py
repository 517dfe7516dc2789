"""Stores on the real engine: read as tables, made again, verified; ours and Java's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyromq.protocol.names import TRANSACTION_GIVEN_UP_TOPIC as GIVEN_UP
from pyromq.protocol.names import TRANSACTION_HALF_TOPIC as HALF
from pyromq.protocol.names import TRANSACTION_OP_TOPIC as OP
from pyromq.spark.audit.auditor import audit
from pyromq.spark.audit.report import DeadLetters, DuplicateKey, Finding
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.settings import ConnectionSettings
from pyromq.spark.stores.rebuild import rebuild_stores
from pyromq.spark.stores.verify import verify_stores
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.check import guess_config
from pyromq.store.results import StoreError
from tests.golden.golden_data import read_index
from tests.golden.test_store import GoldenStore
from tests.spark.conftest import SendMany
from tests.support.stores import (
    BORN_HOST,
    BORN_TIME,
    SEGMENT,
    TOPIC,
    open_store,
    put,
    read_all,
    small_config,
)
from tests.unit.store.offline.test_rebuild import derived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.testing import Cluster

COUNT = 300


def write_store(root: Path, count: int = COUNT) -> Path:
    store = open_store(root)
    for number in range(count):
        put(store, b"body %d" % number * 30, queue_id=number % 3, tags="t", keys=f"k{number} x")
        store.seal()
    store.stop()
    return root


def test_a_store_s_files_are_a_table(spark: SparkSession, tmp_path: Path) -> None:
    root = write_store(tmp_path / "store")
    reader = spark.read.format("rocketmq").option("storePath", str(root))
    rows = reader.option("subscribe", TOPIC).load().collect()
    store = open_store(root)
    expected = {
        (queue_id, record.queue_offset): record.body
        for queue_id in range(3)
        for record in read_all(store, TOPIC, queue_id)
    }
    store.stop()
    assert {(row.queueId, row.queueOffset): bytes(row.body) for row in rows} == expected


@pytest.mark.parametrize("name", ["store-written", "store-broker"])
def test_java_s_store_files_are_a_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    golden = GoldenStore(name, tmp_path / "store")
    rows = (
        spark.read.format("rocketmq")
        .option("storePath", str(golden.root))
        .option("subscribe", "GoldenTopic")
        .load()
        .select("queueId", "queueOffset", "physicalOffset", "msgId", "storeHost")
        .collect()
    )
    places = {
        (queue["queueId"], entry[0])
        for queue in read_index(name)["consumeQueues"]
        if queue["topic"] == "GoldenTopic"
        for entry in queue["entries"]
    }
    assert {(row.queueId, row.physicalOffset) for row in rows} == places
    assert len(rows) == len(places)
    ids = {record["offset"]: record["id"] for record in golden.index["records"]}
    assert all(row.msgId == ids[row.physicalOffset] for row in rows)


def test_several_stores_are_made_again_and_verified(spark: SparkSession, tmp_path: Path) -> None:
    ours = [write_store(tmp_path / f"store{number}", 100 + number) for number in range(2)]
    javas = [GoldenStore(name, tmp_path / name) for name in ("store-written", "store-broker")]
    configs = [small_config(root) for root in ours] + [golden.config() for golden in javas]
    before = [derived(root) for root in ours]
    java_before = [golden.derived_files() for golden in javas]
    assert [each.differences for each in verify_stores(spark, configs, part_size=16_384)] == [0] * 4
    for config in configs:
        shutil.rmtree(config.consume_queue_directory)
        shutil.rmtree(config.index_directory)
    made = rebuild_stores(spark, configs, part_size=16_384)
    assert [derived(root) for root in ours] == before
    assert [golden.derived_files() for golden in javas] == java_before
    assert [each.entries for each in made[:2]] == [100, 101]
    assert [each.keys for each in made[:2]] == [200, 202]
    assert [each.log_end for each in made[2:]] == [golden.index["maxOffset"] for golden in javas]
    assert {path.name for path in ours[0].iterdir()} == {
        "checkpoint",
        "commitlog",
        "consumequeue",
        "index",
        "lock",
    }


def test_differences_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    root = write_store(tmp_path / "store")
    path = sorted((root / "consumequeue" / TOPIC / "1").iterdir())[0]
    content = bytearray(path.read_bytes())
    for number in range(4):
        content[number * 20 + 7] ^= 1
    path.write_bytes(content)
    report = tmp_path / "report.jsonl"
    [verified] = verify_stores(spark, [guess_config(root)], report=report)
    assert verified.differences == 4
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["file"], line["entry"]) for line in lines] == [
        (str(path), number) for number in range(4)
    ]
    assert all(line["expected"] != line["found"] for line in lines)
    assert not list(root.glob("verify.*"))


def test_a_store_in_use_is_refused_and_can_be_verified(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(50):
        put(store, b"%d" % number, keys=f"k{number}")
        store.seal()
    queues = store.config.consume_queue_directory
    files = {path: path.stat().st_ino for path in queues.rglob("*")}
    with pytest.raises(StoreError, match="is in use by another broker"):
        rebuild_stores(spark, [store.config])
    [verified] = verify_stores(spark, [store.config])
    assert verified.differences == 0
    assert verified.rebuilt.entries == 50
    assert {path: path.stat().st_ino for path in queues.rglob("*")} == files
    assert not list(store.config.root.glob("*.*"))
    store.stop()


def put_with(store: MessageStore, topic: str, body: bytes, **properties: str) -> int:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
    queue = store.queue(topic, 0)
    return store.put(queue, body, raw, 0, 0, 0, BORN_TIME, BORN_HOST, 0)


def test_an_audit_finds_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(tmp_path / "broker-a")
    for number in range(100):
        put_with(store, "Orders", b"body", UNIQ_KEY=f"KEY{number % 98}")
    for number in range(4):
        put_with(store, HALF, b"half", UNIQ_KEY=f"T{number}", REAL_TOPIC="Paid", PGROUP="pay")
    put_with(store, OP, b"1", TAGS="d")
    # Put back, and ended then: the end names the later half.
    put_with(store, HALF, b"half", UNIQ_KEY="T2", REAL_TOPIC="Paid", PGROUP="pay")
    put_with(store, OP, b"4", TAGS="d")
    put_with(store, GIVEN_UP, b"half", UNIQ_KEY="T3", REAL_TOPIC="Paid", PGROUP="pay")
    for number in range(3):
        put_with(store, "%DLQ%workers", b"dead", UNIQ_KEY=f"D{number}", RETRY_TOPIC="Orders")
    place = put_with(store, "Orders", b"damaged body", UNIQ_KEY="KEY999")
    store.seal()
    skipping = store.queue("Orders", 0)
    skipping.skip_to(skipping.next_offset + 5)
    skipping.write_pending()
    put_with(store, "Orders", b"behind a gap", UNIQ_KEY="KEY1000")
    store.seal()
    store.stop()
    root = store.config.root
    segment = root / "commitlog" / f"{place - place % SEGMENT:020d}"
    content = segment.read_bytes().replace(b"damaged body", b"dAmaged body")
    segment.write_bytes(content)
    (root / "config").mkdir(exist_ok=True)
    offsets = {"offsetTable": {"Orders@readers": {"0": 90}, "Gone@readers": {"0": 1}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))

    report = audit(spark, [StoreSource(str(root))])
    assert not report.is_clean
    [dead_letters, orders] = report.topics
    assert (orders.topic, orders.messages, orders.queues) == ("Orders", 102, 1)
    assert orders.producers == {"127.0.0.1": 102}
    assert orders.consumers == {"readers": 107 - 90}
    assert dead_letters.topic == "%DLQ%workers"
    assert report.gaps == [Finding("Orders", "broker-a", 0, 101, 106)]
    assert report.repeated_offsets == []
    assert report.duplicate_key_count == 2
    assert report.duplicate_keys == [
        DuplicateKey("Orders", "KEY0", 2),
        DuplicateKey("Orders", "KEY1", 2),
    ]
    assert report.damage_count == 1
    assert report.damage[0][0] == f"{segment} at {place % SEGMENT}"
    assert [(each.offset, each.is_given_up) for each in report.open_transactions] == [(3, True)]
    assert report.dead_letters == [DeadLetters("workers", "Orders", 3)]
    assert json.loads(report.to_json())["topics"][1]["producers"] == {"127.0.0.1": 102}


def test_an_audit_of_a_cluster(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    send_many(topic, 500)
    settings = ConnectionSettings((cluster.namesrv,))
    report = audit(spark, [BrokerSource(settings)], topics=[topic], cluster=settings)
    [found] = report.topics
    assert (found.topic, found.messages) == (topic, 500)
    assert sum(found.producers.values()) == 500
    assert report.is_clean
