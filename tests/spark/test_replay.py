"""The replay job on the real engine: from a cluster and from an archive, killed and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyromq.client import Message
from pyromq.protocol.message.properties import decode_properties
from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.options import Topics
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.replay.options import Filters, Order, ReplayOptions
from pyromq.spark.replay.replayer import (
    ArchivedTopics,
    ClusterTopics,
    ReplaySource,
    run_replay,
)
from pyromq.spark.replay.rows import Changes, Schedule, replayed
from pyromq.testing import Cluster
from tests.spark.conftest import SPARK_CONF, SendMany

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

MESSAGES = 600
SEED = int(os.environ.get("PYROMQ_SEED") or 7)


def message(topic: str, number: int) -> Message:
    return Message(
        topic,
        b"%d" % number,
        tags="even" if number % 2 == 0 else "odd",
        keys=f"key-{number}",
        properties={"color": "ü"},
        flag=number,
    )


def read(spark: SparkSession, cluster: Cluster, topic: str) -> list[Row]:
    reader = spark.read.format("rocketmq").options(
        nameserver=cluster.namesrv, subscribe=topic, includeProperties="map"
    )
    return reader.load().collect()


def sink(cluster: Cluster) -> dict[str, str]:
    return {"nameserver": cluster.namesrv, "sendTimeout": "60s"}


def from_cluster(cluster: Cluster, topic: str) -> ClusterTopics:
    return ClusterTopics(
        BrokerSource(ConnectionSettings((cluster.namesrv,), request_timeout=60.0)),
        {"nameserver": cluster.namesrv, "requestTimeout": "60s"},
        Topics((topic,)),
    )


@pytest.fixture
def source(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    send_many: SendMany,
    tmp_path: Path,
) -> ReplaySource:
    """A topic of the cluster, or an archive of it."""
    send_many(topic, MESSAGES, lambda number: message(topic, number))
    messages = from_cluster(cluster, topic)
    if request.param == "cluster":
        return messages
    archive = tmp_path / "archive"
    run_archive(spark, messages.source, archive, ArchiveOptions(messages.wanted, tasks=2))
    return ArchivedTopics(archive, messages.wanted)


class KilledError(BaseException):
    """Simulates the death of the process."""


@pytest.mark.parametrize("source", ["cluster", "archive"], indirect=True)
def test_a_killed_replay_resumes_and_repeats_at_most_one_batch(
    source: ReplaySource, spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-again"
    cluster.create_topic(target)
    options = ReplayOptions(
        Filters(where="cast(cast(body as string) as int) < 400", tags=("even",)),
        target,
        order=Order.QUEUES,
        part_messages=250,
        shift=-1000,
    )
    reports = 0

    def die_at_the_second_batch(_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 3:  # the second batch is about to start
            raise KilledError

    state = tmp_path / "state"
    with pytest.raises(KilledError):
        run_replay(
            spark, source, sink(cluster), options, state=state, on_progress=die_at_the_second_batch
        )
    # Pretend that the first batch was not recorded as done: it is sent again.
    saved = (state / "replay.json").read_text()
    assert '"partsDone": 1' in saved
    (state / "replay.json").write_text(saved.replace('"partsDone": 1', '"partsDone": 0'))

    finished = run_replay(spark, source, sink(cluster), options, state=state)
    assert finished.resumed
    assert finished.messages == 200
    rows = read(spark, cluster, target)
    assert len(rows) > 200, "the first batch was sent twice"
    kept = {row.uniqueKey: row for row in rows}
    assert sorted(int(row.body) for row in kept.values()) == list(range(0, 400, 2))
    originals = {row.body: row for row in read(spark, cluster, topic)}
    for row in kept.values():
        number = int(row.body)
        original = originals[row.body]
        assert (row["keys"], row.tags, row.flag) == (f"key-{number}", "even", number)
        assert row.queueId == original.queueId
        place = f"{topic}@{original.brokerName}:{original.queueId}:{original.queueOffset}"
        assert row.properties["ORIGIN_PLACE"] == place
        stored = int(original.storeTimestamp.timestamp() * 1000 + 0.5)
        assert abs(int(row.properties["ORIGIN_STORE_TIME"]) + 1000 - stored) <= 1
        assert row.properties["color"] == "ü"
    nothing_more = run_replay(spark, source, sink(cluster), options, state=state)
    assert (nothing_more.messages, nothing_more.parts) == (0, 0)


def test_a_replay_at_the_original_pace(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    send_many(topic, 50)
    target = f"{topic}-again"
    cluster.create_topic(target)
    options = ReplayOptions(to_topic=target, pace=1.0, rate=1_000_000, shift=None)
    run_replay(spark, from_cluster(cluster, topic), sink(cluster), options)
    rows = read(spark, cluster, target)
    assert sorted(int(row.body) for row in rows) == list(range(50))


@pytest.mark.parametrize("kind", ["string", "map<string,string>"])
def test_changes_to_a_message(kind: str, spark: SparkSession) -> None:
    properties = {"a": "b", "__SHARDINGKEY": "k", "ORIGIN_PLACE": "of an earlier replay"}
    raw = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    at = datetime(2026, 11, 16, 5, tzinfo=UTC)
    rows = [
        ("T", "b", 1, 300, b"x", 5, raw if kind == "string" else properties, at, at, "OLD"),
        ("T", "b", 1, 301, b"y", 5, None, at, at, None),
    ]
    frame = spark.createDataFrame(
        rows,
        "topic string, brokerName string, queueId int, queueOffset long, body binary, flag int, "
        f"properties {kind}, bornTimestamp timestamp, storeTimestamp timestamp, uniqueKey string",
    )
    start = int(at.timestamp() * 1000)
    schedule = Schedule(origin=start - 4000, start=start, pace=2.0)
    one, other = replayed(frame, Changes("id", "To", 250, Order.KEYS), schedule).collect()

    def found(row: Row) -> dict[str, str]:
        return row.properties if kind != "string" else decode_properties(row.properties)

    added = {
        "ORIGIN_PLACE": "T@b:1:300",
        "ORIGIN_BORN_TIME": str(start + 250),
        "ORIGIN_STORE_TIME": str(start + 250),
    }
    assert found(one) == {"a": "b", "__SHARDINGKEY": "k", **added}
    assert found(other) == {**added, "ORIGIN_PLACE": "T@b:1:301"}
    assert (one.topic, one.flag, one.orderingKey, other.orderingKey) == ("To", 5, "k", None)
    assert [key[20:] for key in (one.uniqueKey, other.uniqueKey)] == [
        "00000000012C",
        "00000000012D",
    ]
    assert one.sendAt.timestamp() * 1000 == start + 2000
    kept, made = replayed(frame, Changes("id", keep_unique_keys=True)).collect()
    assert (kept.topic, kept.uniqueKey, made.uniqueKey) == ("T", "OLD", other.uniqueKey)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_the_command_survives_kills(
    seed: int,
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    send_many: SendMany,
    tmp_path: Path,
) -> None:
    choice = random.Random(seed)
    send_many(topic, 4000)
    target = f"{topic}-again"
    cluster.create_topic(target)
    state = tmp_path / "state"
    command = [
        *(sys.executable, "-m", "pyromq", "spark", "replay", "--state", str(state)),
        *("--source-nameserver", cluster.namesrv, "--topic", topic, "--to-topic", target),
        *("--nameserver", cluster.namesrv, "--part-messages", "500", "--master", "local[2,4]"),
        *("--conf", f"spark.local.dir={tmp_path}"),
        *(part for item in SPARK_CONF.items() for part in ("--conf", "=".join(item))),
    ]
    kills = 0
    while kills < 6:
        saved = (state / "replay.json").read_bytes() if (state / "replay.json").exists() else b""
        with (tmp_path / f"{kills}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            # Wait until it has progressed.
            while process.poll() is None and not is_changed(state, saved):
                time.sleep(0.05)
            time.sleep(choice.uniform(0, 1.5))
            ended = process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if ended is not None:
            assert ended == 0, (tmp_path / f"{kills}.log").read_text()
            break
        kills += 1
    assert kills > 0
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    rows = read(spark, cluster, target)
    kept = {row.uniqueKey: row.body for row in rows}
    assert sorted(int(body) for body in kept.values()) == list(range(4000))
    assert len(rows) <= 4000 + kills * 500


def is_changed(state: Path, before: bytes) -> bool:
    """Return whether a replay has saved progress."""
    path = state / "replay.json"
    return path.exists() and path.read_bytes() != before
