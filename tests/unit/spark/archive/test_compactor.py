from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pyromq.spark.archive import archiver, compactor, durable_files
from pyromq.spark.archive.archiver import ArchiveOptions, run_archive
from pyromq.spark.archive.compactor import (
    Compacted,
    CompactOptions,
    FileGroup,
    plan_groups,
    run_compact,
)
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError, DataFile
from pyromq.spark.archive.files import ParquetFiles
from pyromq.spark.options import Topics
from pyromq.spark.origins.origin import Queue
from tests.unit.spark.archive.test_archiver import FakeSource
from tests.unit.spark.fake_origin import FakeOrigin

A = Queue("Orders", "broker-a", 0)
B = Queue("Payments", "broker-a", 0)
HOUR = "2023-11-14-22"


def here(session: object, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [work(item) for item in items]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # slow, and invisible here
    for module in (archiver, compactor):
        monkeypatch.setattr(module, "fan_out", here)
        monkeypatch.setattr(module, "parallelism", lambda session: 2)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Ten small files of one hour and one of the next, of two topics."""
    origin = FakeOrigin({A: (0, 3000), B: (0, 100)})
    archive_all(origin, tmp_path, 10)
    return tmp_path


def archive_all(origin: FakeOrigin, path: Path, commits: int) -> None:
    records = sum(end - first for first, end in origin.all.values())
    options = ArchiveOptions(Topics(("Orders", "Payments")), max_records=-(-records // commits))
    source: Any = FakeSource(origin)
    run_archive(None, source, path, options)  # type: ignore[arg-type]


def compact(path: Path, options: CompactOptions | None = None, **more: Any) -> Compacted:
    return run_compact(None, path, options or CompactOptions(), **more)  # type: ignore[arg-type]


def rows(path: Path) -> list[dict[str, Any]]:
    found = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["queueOffset"]))


def names(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in ArchiveDirectory(path).files():
        found.setdefault(f"{file.topic} {file.hour}", []).append(file.path.name)
    return found


def test_small_files_become_one(archive: Path) -> None:
    before = rows(archive)
    positions = ArchiveDirectory(archive).state().positions
    files = len(ArchiveDirectory(archive).files())
    done = compact(archive)
    # One hour of each topic had several files.
    assert (done.groups, done.files_after) == (2, 2)
    assert done.files_before > 15
    assert names(archive)["Orders 2023-11-14-22"] == ["0000000001-00000-c0000000011-00000.parquet"]
    assert len(ArchiveDirectory(archive).files()) == files - done.files_before + 2
    assert rows(archive) == before
    assert ArchiveDirectory(archive).state().positions == positions
    assert compact(archive).groups == 0


def test_queues_stay_in_order_over_several_merges(tmp_path: Path) -> None:
    origin = FakeOrigin({A: (0, 300), B: (0, 0)})
    for _ in range(3):
        archive_all(origin, tmp_path, 3)
        origin.all[A] = origin.all[A]._replace(end=origin.all[A].end + 300)
        sizes = [file.bytes for file in ArchiveDirectory(tmp_path).files()]
        compact(tmp_path, CompactOptions(target_bytes=2 * max(sizes) + 1))
    offsets = [
        offset
        for file in ArchiveDirectory(tmp_path).files()
        for offset in pq.read_table(file.path)["queueOffset"].to_pylist()
    ]
    assert offsets == [*range(900)]


def test_a_concurrent_archive_job(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = FakeOrigin({A: (0, 3000), B: (0, 140)})

    def meanwhile(session: object, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        results = here(session, work, items)
        archive_all(origin, archive, 2)
        return results

    monkeypatch.setattr(compactor, "fan_out", meanwhile)
    compact(archive)
    assert [row["queueOffset"] for row in rows(archive) if row["topic"] == "Payments"] == [
        *range(140)
    ]
    assert len(names(archive)["Payments 2023-11-14-22"]) == 2


def test_only_these_topics_and_hours(archive: Path) -> None:
    assert compact(archive, CompactOptions(topics=frozenset({"None"}))).groups == 0
    assert compact(archive, CompactOptions(before=HOUR)).groups == 0
    done = compact(archive, CompactOptions(topics=frozenset({"Payments"}), before="2023-11-14-23"))
    assert done.groups == 1


def test_progress(archive: Path) -> None:
    seen: list[int] = []
    done = compact(archive, on_progress=lambda progress: seen.append(progress.groups))
    assert seen == [1, 2]
    assert done.bytes_after < done.bytes_before


def test_a_filesystem_that_cannot_swap(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(one: Path, other: Path) -> None:
        raise durable_files.CannotExchangeError(22, "Invalid argument")

    before = rows(archive)
    monkeypatch.setattr(durable_files, "exchange", cannot)
    with pytest.raises(ArchiveError, match=r"cannot swap two directories.*Invalid argument"):
        compact(archive)
    assert compact(archive, CompactOptions(allow_gaps=True)).groups == 2
    assert rows(archive) == before


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="is not an archive"):
        compact(tmp_path)


def test_a_failed_merge_replaces_nothing(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(archive)
    monkeypatch.setattr(ParquetFiles, "add_table", lambda *_: None)
    with pytest.raises(ArchiveError, match="does not have all"):
        compact(archive)
    assert rows(archive) == before


def file(number: int, size: int, hour: str = HOUR) -> DataFile:
    return DataFile(Path(f"/archive/topic=t/hour={hour}/{number}"), "t", hour, size)


def test_groups() -> None:
    files = [
        *(file(number, 10) for number in range(5)),
        file(5, 60),  # large: stays, and separates its neighbours
        file(6, 10),
        file(7, 30),
        file(8, 40),
        file(9, 40),
        file(0, 10, "2023-11-14-23"),
    ]
    groups = plan_groups(files, CompactOptions(target_bytes=100))
    assert [[each.path.name for each in group.files] for group in groups] == [
        ["0", "1", "2", "3", "4"],
        ["6", "7", "8"],
    ]
    assert groups[0] == FileGroup("t", HOUR, tuple(files[:5]))
    assert groups[0].bytes == 50


def test_groups_keep_to_their_size() -> None:
    numbers = random.Random(7)
    files = [file(number, numbers.randrange(1, 200)) for number in range(300)]
    groups = plan_groups(files, CompactOptions(target_bytes=200))
    assert all(len(group.files) > 1 and group.bytes <= 200 for group in groups)
    assert all(each.bytes < 100 for group in groups for each in group.files)
