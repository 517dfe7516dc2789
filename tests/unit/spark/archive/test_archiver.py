from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from pyromq.spark.archive import archiver
from pyromq.spark.archive.archiver import Archived, ArchiveOptions, plan_archive, run_archive
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError
from pyromq.spark.archive.files import FileSettings
from pyromq.spark.archive.manifest import ARCHIVE
from pyromq.spark.columns import COLUMN_NAMES, MAP
from pyromq.spark.options import Edge, Time, TopicPattern, Topics
from pyromq.spark.origins.origin import Queue, QueueRange
from pyromq.spark.reading.positions import DataLossError, PositionError
from tests.support.patience import wait_until
from tests.unit.spark.fake_origin import EPOCH, FakeOrigin

A = Queue("Orders", "broker-a", 0)
B = Queue("Orders", "broker-a", 1)
C = Queue("Payments", "broker-a", 0)
ORDERS = ArchiveOptions(Topics(("Orders",)))


class FakeSource:
    """Opens the same origin each time."""

    def __init__(self, origin: FakeOrigin) -> None:
        self.origin = origin

    def open(self) -> Any:
        return self.origin


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # slow, and invisible here

    def here(session: object, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    monkeypatch.setattr(archiver, "fan_out", here)
    monkeypatch.setattr(archiver, "parallelism", lambda session: 2)


def run(origin: FakeOrigin, path: Path, options: ArchiveOptions = ORDERS, **more: Any) -> Archived:
    return run_archive(None, FakeSource(origin), path, options, **more)  # type: ignore[arg-type]


def offsets(path: Path) -> dict[tuple[str, int], list[int]]:
    """Return the offsets of each queue that a reader finds, sorted, with repeats."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in ds.dataset(path, partitioning="hive").to_table().to_pylist():
        found.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    return {queue: sorted(each) for queue, each in found.items()}


def test_each_message_once(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 100), B: (3, 50), C: (0, 10)})
    first = run(origin, tmp_path)
    assert (first.messages, first.commits, first.lost, first.left) == (147, 1, 0, 0)
    again = run(origin, tmp_path)
    assert (again.messages, again.commits) == (0, 0)
    origin.all[A] = origin.all[A]._replace(end=120)
    more = run(origin, tmp_path)
    assert more.messages == 20
    assert offsets(tmp_path) == {("Orders", 0): [*range(120)], ("Orders", 1): [*range(3, 50)]}
    assert origin.closed == 6  # by the driver, at the start and later, and by its tasks
    columns = ds.dataset(tmp_path, partitioning="hive").schema.names
    assert set(columns) == {*COLUMN_NAMES, "hour"}


def test_a_limit_splits_commits(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 1000), B: (0, 10)})
    seen: list[tuple[int, int]] = []
    done = run(
        origin,
        tmp_path,
        ArchiveOptions(Topics(("Orders",)), max_records=300),
        on_progress=lambda archived: seen.append((archived.messages, archived.left)),
    )
    assert done.commits == 4
    assert offsets(tmp_path) == {("Orders", 0): [*range(1000)], ("Orders", 1): [*range(10)]}
    assert all(messages + left == 1010 for messages, left in seen)
    assert seen[-1] == (1010, 0)


def test_a_single_run_ends_at_the_initial_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = FakeOrigin({A: (0, 100)})

    def grow(archived: Archived) -> None:
        origin.all[A] = origin.all[A]._replace(end=origin.all[A].end + 50)
        origin.all[B] = origin.all[A]

    run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), max_records=30), on_progress=grow)
    assert offsets(tmp_path) == {("Orders", 0): [*range(100)]}


@pytest.mark.parametrize(
    ("starting", "first"),
    [(None, 10), (Edge.EARLIEST, 10), (Edge.LATEST, 100), (Time(EPOCH + 40_000), 40)],
)
def test_where_new_topics_start(tmp_path: Path, starting: Edge | Time | None, first: int) -> None:
    origin = FakeOrigin({A: (10, 100)})
    options = ArchiveOptions(Topics(("Orders",)), starting)
    run(origin, tmp_path, options)
    # Later messages belong to the archive, and new queues from their first message on.
    origin.all[A] = origin.all[A]._replace(end=110)
    origin.all[B] = origin.all[A]
    run(origin, tmp_path, options)
    assert offsets(tmp_path) == {
        ("Orders", 0): [*range(first, 110)],
        ("Orders", 1): [*range(10, 110)],
    }


def test_a_pattern_finds_new_topics(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 5)})
    options = ArchiveOptions(TopicPattern("Orders|Pay.*"))
    run(origin, tmp_path, options)
    origin.all[C] = origin.all[A]
    run(origin, tmp_path, options)
    assert offsets(tmp_path) == {("Orders", 0): [*range(5)], ("Payments", 0): [*range(5)]}


def test_an_unknown_topic(tmp_path: Path) -> None:
    with pytest.raises(PositionError, match="no topic 'Orders'"):
        run(FakeOrigin({C: (0, 5)}), tmp_path)


def test_expired_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    origin = FakeOrigin({A: (0, 10)})
    run(origin, tmp_path)
    origin.all[A] = origin.all[A]._replace(first=15, end=20)
    with pytest.raises(DataLossError, match=r"offsets 10 to 14 are lost: they have expired"):
        run(origin, tmp_path)
    assert ArchiveDirectory(tmp_path).state().positions == {A: 10}
    done = run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), fail_on_data_loss=False))
    assert (done.messages, done.lost) == (5, 5)
    assert "offsets 10 to 14 are lost" in caplog.text
    (lost,) = ArchiveDirectory(tmp_path).state().lost
    assert (lost.start, lost.end) == (10, 15)
    assert offsets(tmp_path) == {("Orders", 0): [*range(10), *range(15, 20)]}


def test_damaged_messages(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 10)})
    origin.damaged = {4}
    with pytest.raises(DataLossError, match="offsets 4 to 4 are lost"):
        run(origin, tmp_path)
    assert not list(tmp_path.glob("topic=*"))
    done = run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), fail_on_data_loss=False))
    assert (done.messages, done.lost) == (9, 1)


def test_a_recreated_topic(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 50)})
    run(origin, tmp_path)
    origin.all[A] = origin.all[A]._replace(end=7)
    with pytest.raises(DataLossError, match="deleted and recreated"):
        run(origin, tmp_path)
    run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), fail_on_data_loss=False))
    assert offsets(tmp_path) == {("Orders", 0): sorted([*range(50), *range(7)])}
    assert ArchiveDirectory(tmp_path).state().positions == {A: 7}


def test_an_unavailable_queue_is_archived_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = FakeOrigin({A: (0, 5), B: (0, 5)})
    with monkeypatch.context() as patch:
        bounds = origin.bounds
        patch.setattr(origin, "bounds", lambda queues: bounds([A]))
        run(origin, tmp_path)
    assert "Orders@broker-a:1 is unavailable" in caplog.text
    assert offsets(tmp_path) == {("Orders", 0): [*range(5)]}
    run(origin, tmp_path)
    assert offsets(tmp_path) == {("Orders", 0): [*range(5)], ("Orders", 1): [*range(5)]}


def test_an_archive_keeps_its_form_of_properties(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 5)})
    run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), files=FileSettings(MAP)))
    origin.all[A] = origin.all[A]._replace(end=10)
    with pytest.raises(ArchiveError, match="stores properties as 'map'"):
        run(origin, tmp_path, ArchiveOptions(Topics(("Orders",)), files=FileSettings()))
    run(origin, tmp_path)
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(dict(each)["KEYS"] for each in table["properties"].to_pylist()) == [
        f"key-{offset}" for offset in range(10)
    ]


def test_a_missing_message_prevents_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets_one(session: object, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        return [work(item) for item in items[1:]]

    monkeypatch.setattr(archiver, "fan_out", forgets_one)
    with pytest.raises(ArchiveError, match="the tasks wrote 0 messages and lost 0 of 20"):
        run(FakeOrigin({A: (0, 20)}), tmp_path)
    assert ArchiveDirectory(tmp_path).state().number == 0


def test_two_archivers_in_one_directory(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path)
    directory.create()
    with directory.working(ARCHIVE), pytest.raises(ArchiveError, match="another process"):
        run(FakeOrigin({A: (0, 5)}), tmp_path)


def test_a_continuous_run_retries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "_MAX_BACKOFF_SECONDS", 0.001)
    origin = FakeOrigin({A: (0, 5)})
    stop = threading.Event()
    done: list[Archived] = []
    errors: list[BaseException] = []

    def archive() -> None:
        try:
            done.append(run(origin, tmp_path, interval=0.001, stop=stop))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=archive)
    thread.start()
    try:
        state = ArchiveDirectory(tmp_path)
        wait_until(lambda: state.peek().positions == {A: 5})
        origin.failures = 30
        origin.all[A] = origin.all[A]._replace(end=9)
        wait_until(lambda: state.peek().positions == {A: 9})
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert done[0].messages == 9
    assert "archive round failed, retrying in 0 s: no broker answers" in caplog.text
    assert offsets(tmp_path) == {("Orders", 0): [*range(9)]}


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    origin = FakeOrigin({A: (0, 5_000_000)})
    plan = plan_archive(FakeSource(origin), path, ORDERS)  # type: ignore[arg-type]
    assert plan.ranges == [QueueRange(A, 0, 5_000_000)]
    assert not path.exists()


def test_success_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(FakeOrigin({A: (0, 5)}), tmp_path)
    assert caplog.text == ""


@pytest.mark.parametrize("interval", [None, 1.0])
def test_an_unknown_topic_creates_no_directory(tmp_path: Path, interval: float | None) -> None:
    options = ArchiveOptions(Topics(("nosuch",)))
    with pytest.raises(PositionError, match="no topic 'nosuch'"):
        run(FakeOrigin({A: (0, 10)}), tmp_path / "archive", options, interval=interval)
    assert list(tmp_path.iterdir()) == []
