from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pyromq.store.backup.copying import ChecksumError, Meter, Throttle, copy_file, hash_file


def test_a_copy_is_equal_sparse_and_hashed(tmp_path: Path) -> None:
    content = b"a" * 100 + bytes(3 << 20) + b"b" + bytes(1 << 20)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    meter = Meter()
    copied = copy_file(source, target, len(content), meter)
    assert target.read_bytes() == content
    assert copied.sha256 == hashlib.sha256(content).hexdigest()
    assert copied.data_end == 100 + (3 << 20) + 1
    assert target.stat().st_blocks * 512 < len(content)
    assert meter.done == len(content)
    assert hash_file(target, len(content), Meter()) == copied


def test_a_part_is_copied_and_extended(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"abcdef")
    copied = copy_file(source, target, 4, Meter(), extend=10)
    assert target.read_bytes() == b"abcd" + bytes(6)
    assert (copied.size, copied.data_end) == (4, 4)


def test_a_short_source_is_told(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    assert copy_file(tmp_path / "source", tmp_path / "target", 9, Meter()).size == 3


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_file(tmp_path / "missing", tmp_path / "target", 9, Meter())
    assert not list(tmp_path.iterdir())


def test_a_throttle_keeps_the_rate() -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, clock=lambda: now[0], sleep=sleep)
    throttle.spend(500)
    throttle.spend(1500)
    assert slept == [0.5, 1.5]
    now[0] += 60
    throttle.spend(1000)  # the pause was not saved up
    assert slept[-1] == 1.0


def test_progress_never_exceeds_its_total() -> None:
    seen: list[tuple[int, int]] = []
    meter = Meter(on_progress=lambda done, total: seen.append((done, total)))
    meter.total = 10
    meter.count(6)
    meter.skip(6)
    assert seen == [(6, 10), (12, 12)]


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"abc")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    copy_file(source, target, 3, Meter(), sha256=sha256)
    target.unlink()
    with pytest.raises(ChecksumError):
        copy_file(source, target, 3, Meter(), sha256="0" * 64)
    assert list(tmp_path.iterdir()) == [source]
