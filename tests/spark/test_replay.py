"""The replay job on the real engine: from a cluster and from an archive, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyromq.client import Message
from pyromq.spark.archiver import ArchiveOptions, run_archive
from pyromq.spark.broker_origin import ConnectionSettings
from pyromq.spark.options import Topics
from pyromq.spark.replay_rows import Filters, Order
from pyromq.spark.replayer import (
    ArchivedTopics,
    ClusterTopics,
    ReplayOptions,
    ReplaySource,
    run_replay,
)
from pyromq.spark.sources import BrokerSource
from pyromq.testing import Cluster
from tests.spark.conftest import SendMany

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

MESSAGES = 600


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
    """A topic of the cluster, or the archive of it."""
    send_many(topic, MESSAGES, lambda number: message(topic, number))
    messages = from_cluster(cluster, topic)
    if request.param == "cluster":
        return messages
    archive = tmp_path / "archive"
    run_archive(spark, messages.source, archive, ArchiveOptions(messages.wanted, tasks=2))
    return ArchivedTopics(archive, messages.wanted)


class KilledError(BaseException):
    """The end of a process, as far as it can be had in one."""


@pytest.mark.parametrize("source", ["cluster", "archive"], indirect=True)
def test_a_replay_that_is_killed_goes_on_and_repeats_a_part_at_most(
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

    def die_at_the_second_part(_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 3:  # the second part is about to begin
            raise KilledError

    state = tmp_path / "state"
    with pytest.raises(KilledError):
        run_replay(
            spark, source, sink(cluster), options, state=state, on_progress=die_at_the_second_part
        )
    # As if the first part's end had not been written down: it comes again.
    saved = (state / "replay.json").read_text()
    assert '"partsDone": 1' in saved
    (state / "replay.json").write_text(saved.replace('"partsDone": 1', '"partsDone": 0'))

    finished = run_replay(spark, source, sink(cluster), options, state=state)
    assert finished.resumed
    assert finished.messages == 200
    rows = read(spark, cluster, target)
    assert len(rows) > 200, "the first part was sent twice"
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


def test_a_replay_at_its_old_pace(
    spark: SparkSession, cluster: Cluster, topic: str, send_many: SendMany
) -> None:
    send_many(topic, 50)
    target = f"{topic}-again"
    cluster.create_topic(target)
    options = ReplayOptions(to_topic=target, pace=1.0, rate=1_000_000, shift=None)
    run_replay(spark, from_cluster(cluster, topic), sink(cluster), options)
    rows = read(spark, cluster, target)
    assert sorted(int(row.body) for row in rows) == list(range(50))
