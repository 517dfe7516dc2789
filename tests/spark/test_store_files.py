"""Stores on the real engine: read as tables, made again, verified; ours and Java's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyromq.spark.jobs.rebuild import rebuild_stores
from pyromq.spark.jobs.verify import verify_stores
from pyromq.store.check import guess_config
from pyromq.store.results import StoreError
from tests.golden.golden_data import read_index
from tests.golden.test_store import GoldenStore
from tests.support.stores import TOPIC, open_store, put, read_all, small_config
from tests.unit.store.test_rebuild import derived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    assert verified.made.entries == 50
    assert {path: path.stat().st_ino for path in queues.rglob("*")} == files
    assert not list(store.config.root.glob("*.*"))
    store.stop()
