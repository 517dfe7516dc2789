"""The parts that need no Spark; the rest is in tests/spark/test_replay.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyromq.client import Message, Producer
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError, StagedFile
from pyromq.spark.options import TopicPattern, Topics
from pyromq.spark.origins.broker import ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource
from pyromq.spark.origins.origin import OriginError, Queue, QueueRange
from pyromq.spark.replay.options import Filters, ReplayOptions
from pyromq.spark.replay.replayer import ArchivedTopics, ClusterTopics, begin_replay
from pyromq.spark.replay.state import ReplayError
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES

ORDERS, PAYMENTS = Queue("Orders", "b", 0), Queue("Payments", "b", 1)
FIVE = 1_794_805_200_000  # 2026-11-16 05:00 UTC
HOUR = 3_600_000
ANY_SESSION: Any = None


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Orders in the hours 5 and 6, Payments in hour 7."""
    directory = ArchiveDirectory(tmp_path / "archive")
    directory.create()
    staging = directory.new_staging("archive")
    staged = []
    places = [
        ("Orders", "2026-11-16-05"),
        ("Orders", "2026-11-16-06"),
        ("Payments", "2026-11-16-07"),
    ]
    for number, (topic, hour) in enumerate(places):
        path = staging / f"{number}.staged"
        pq.write_table(pa.table({"body": [b"x"]}), path)
        staged.append(StagedFile(topic, hour, str(path), 1, path.stat().st_size))
    directory.commit_archive(staged, [QueueRange(ORDERS, 0, 2), QueueRange(PAYMENTS, 0, 1)])
    return directory.path


def test_the_units_of_an_archive_are_its_hours(archive: Path) -> None:
    source = ArchivedTopics(archive)
    hours, ends = source.units(Filters())
    assert hours == ["2026-11-16-05", "2026-11-16-06", "2026-11-16-07"]
    assert ends == {ORDERS: 2, PAYMENTS: 1}


@pytest.mark.parametrize("wanted", [Topics(("Orders",)), TopicPattern("Ord.*")])
def test_topics_are_selected(archive: Path, wanted: Topics | TopicPattern) -> None:
    hours, ends = ArchivedTopics(archive, wanted).units(Filters())
    assert hours == ["2026-11-16-05", "2026-11-16-06"]
    assert ends == {ORDERS: 2}


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (FIVE + HOUR, None, ["06", "07"]),
        (FIVE + HOUR - 1, None, ["05", "06", "07"]),
        (None, FIVE + HOUR, ["05"]),
        (None, FIVE + HOUR + 1, ["05", "06"]),
        (FIVE + 5 * HOUR, None, []),
    ],
)
def test_hours_are_selected(
    archive: Path, since: int | None, until: int | None, expected: list[str]
) -> None:
    hours, _ = ArchivedTopics(archive).units(Filters(since=since, until=until))
    assert [hour[-2:] for hour in hours] == expected


def test_an_archive_without_the_topic(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="has no topic 'Gone'"):
        ArchivedTopics(archive, Topics(("Orders", "Gone"))).units(Filters())
    with pytest.raises(ArchiveError, match="is not an archive"):
        ArchivedTopics(tmp_path / "empty").units(Filters())


def test_a_replay_starts_with_existing_messages(archive: Path) -> None:
    source = ArchivedTopics(archive, Topics(("Orders",)))
    options = ReplayOptions(Filters(tags=("a",)), "Again", shift=None)
    settings = source.settings() | options.settings()
    progress = begin_replay(source, settings, options)
    assert progress.settings["source"] == str(archive)
    assert progress.settings["shift"] == "now"
    assert (progress.unit, progress.shift, progress.ends) == ("2026-11-16-05", None, {ORDERS: 2})


def test_the_offsets_of_a_cluster_are_determined_at_the_start() -> None:
    with Cluster(settings=PATIENT_PROPERTIES) as cluster:
        cluster.create_topic("Orders", queues=2)
        source = ClusterTopics(
            BrokerSource(ConnectionSettings((cluster.namesrv,), request_timeout=45.0)),
            {"nameserver": cluster.namesrv},
            Topics(("Orders",)),
        )
        with Producer.sync(cluster.namesrv) as producer:
            producer.send_batch([Message("Orders", b"x")] * 5)
            units, ends = source.units(Filters())
            assert (units, sum(ends.values()), len(ends)) == (["Orders"], 5, 2)
            producer.send_batch([Message("Orders", b"x")] * 5)
        ranges = source.ranges(ANY_SESSION, "Orders", ends, Filters())
        assert {each.queue: (each.start, each.end) for each in ranges} == {
            queue: (0, end) for queue, end in ends.items()
        }
        late = Filters(since=4_000_000_000_000)
        assert not any(each.size for each in source.ranges(ANY_SESSION, "Orders", ends, late))
        early = Filters(until=1000)
        assert set(source.units(early)[1].values()) == {0}
        gone = {Queue("Orders", "nobody", 0): 7}
        with pytest.raises(OriginError, match="Orders@nobody:0"):
            source.ranges(ANY_SESSION, "Orders", gone, Filters())
