from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from pyromq.cli.doctor import disk
from pyromq.cli.doctor.disk import examine_disks, file_system_of, measure_syncs
from pyromq.cli.doctor.finding import Finding, Level
from pyromq.store.config import FlushDiskType
from tests.support.stores import small_config


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def findings(path: Path, root: Path = Path("/"), **changes: object) -> dict[str, Finding]:
    return {each.check: each for each in examine_disks(small_config(path, **changes), root)}


def mounted(root: Path, *lines: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in lines))
    return root


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", Level.OK),
        ("xfs", Level.OK),
        ("tmpfs", Level.FAIL),
        ("overlay", Level.WARN),
        ("nfs4", Level.WARN),
        ("fuse.sshfs", Level.WARN),
    ],
)
def test_file_systems(tmp_path: Path, kind: str, level: Level) -> None:
    root = mounted(
        tmp_path / "fake",
        "1 0 8:1 / / rw - btrfs /dev/sda rw",
        f"2 1 8:2 / {tmp_path} rw shared:1 - {kind} /dev/sdb rw",
        "3 1 8:3 / /elsewhere rw - proc proc rw",
    )
    assert findings(tmp_path / "not" / "made", root)["file system"].level is level


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    root = mounted(
        tmp_path / "fake",
        f"2 1 8:2 / {str(spaced).replace(' ', chr(92) + '040')} rw - xfs /dev/sdb rw",
        "1 0 8:1 / / rw - btrfs /dev/sda rw",
        "damaged",
    )
    assert file_system_of(spaced / "x", root) == "xfs"
    assert file_system_of(tmp_path, root) == "btrfs"
    assert file_system_of(tmp_path, tmp_path / "nothing") is None
    assert file_system_of(tmp_path) is not None


@pytest.mark.parametrize(("percent", "level"), [(10, Level.OK), (80, Level.WARN), (95, Level.FAIL)])
def test_room(tmp_path: Path, percent: int, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 1 << 40
    usage = Usage(total, total * percent // 100, total * (100 - percent) // 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    found = findings(tmp_path)["disk room"]
    assert found.level is level
    assert f"{percent} % used" in found.what


def test_no_room_for_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1000, 0, 1000))
    assert findings(tmp_path)["disk room"].level is Level.WARN


def test_each_directory_of_the_log_is_examined(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    config = small_config(tmp_path, store_path_commit_log=",".join(map(str, paths)))
    checks = [each.check for each in examine_disks(config)]
    assert checks.count("disk room") == 3
    assert checks.count("disk latency") == 1


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.001, Level.OK), (0.05, Level.WARN), (0.5, Level.FAIL)]
)
def test_latency(
    tmp_path: Path, seconds: float, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "measure_syncs", lambda _path: [seconds] * 25)
    found = findings(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)["disk latency"]
    assert found.level is level
    if level is not Level.OK:
        assert "with SYNC_FLUSH" in found.why


def test_the_measurement_leaves_nothing(tmp_path: Path) -> None:
    assert len(measure_syncs(tmp_path, count=3)) == 3
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "measure_syncs", refuse)
    found = findings(tmp_path)["disk latency"]
    assert (found.level, found.what) == (
        Level.WARN,
        f"{tmp_path} cannot be written: Permission denied",
    )
