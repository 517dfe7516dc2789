"""The checkpoint file, also when it is none."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from pyromq.protocol.message.units import CHECKPOINT
from pyromq.store.log.checkpoint import Checkpoint


def loaded(path: Path) -> Checkpoint:
    checkpoint = Checkpoint(path)
    checkpoint.load()
    return checkpoint


def times(checkpoint: Checkpoint) -> tuple[int, int, int]:
    return checkpoint.log_timestamp, checkpoint.queue_timestamp, checkpoint.index_timestamp


def test_what_was_saved_is_loaded_and_takes_four_kib(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(path)
    checkpoint.log_timestamp, checkpoint.queue_timestamp, checkpoint.index_timestamp = 10, 20, 30
    checkpoint.save()
    data = path.read_bytes()
    assert (len(data), CHECKPOINT.unpack_from(data)) == (4096, (10, 20, 30))
    assert times(loaded(path)) == (10, 20, 30)
    checkpoint.log_timestamp = 40
    checkpoint.save()
    assert times(loaded(path)) == (40, 20, 30)


def test_no_file_means_nothing_is_flushed(tmp_path: Path) -> None:
    checkpoint = loaded(tmp_path / "missing")
    assert times(checkpoint) == (0, 0, 0)
    assert checkpoint.safe_timestamp == 0


@pytest.mark.parametrize("length", [0, 1, 23])
def test_too_short_a_file_is_ignored_with_a_warning(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(os.urandom(length))
    with caplog.at_level(logging.WARNING):
        assert times(loaded(path)) == (0, 0, 0)
    assert f"{path} of {length} bytes" in caplog.text
    checkpoint = Checkpoint(path)
    checkpoint.save()
    assert path.stat().st_size == 4096


@pytest.mark.parametrize(
    ("log", "queue", "safe"),
    [
        (10_000, 20_000, 7_000),
        (20_000, 10_000, 7_000),
        (2_999, 10_000, 0),
        (-5, 10_000, 0),
        (-(1 << 63), -(1 << 63), 0),
        ((1 << 63) - 1, (1 << 63) - 1, (1 << 63) - 3001),
    ],
)
def test_safe_is_the_earlier_one_less_three_seconds(log: int, queue: int, safe: int) -> None:
    checkpoint = Checkpoint(Path("unused"))
    checkpoint.log_timestamp, checkpoint.queue_timestamp = log, queue
    assert checkpoint.safe_timestamp == safe
