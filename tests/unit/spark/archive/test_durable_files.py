from __future__ import annotations

import ctypes
import errno
from pathlib import Path

import pytest

from pyromq.spark.archive.durable_files import (
    CannotExchangeError,
    exchange,
    link,
    make_directories,
    remove,
    remove_tree,
    rename,
)


def test_two_directories_are_swapped(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        make_directories(directory)
        (directory / directory.name).touch()
    exchange(one, other)
    assert (one / "other").exists()
    assert (other / "one").exists()


def test_directories_that_cannot_be_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        exchange(tmp_path, tmp_path / "gone")
    # A directory and one below it: the same error as from filesystems that cannot do it.
    (tmp_path / "below").mkdir()
    with pytest.raises(CannotExchangeError) as refused:
        exchange(tmp_path, tmp_path / "below")
    assert refused.value.errno == errno.EINVAL
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(CannotExchangeError):
        exchange(tmp_path, tmp_path)


def test_steps_are_idempotent(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    make_directories(deep)
    make_directories(deep)
    (deep / "file").write_text("x")
    link(deep / "file", deep / "second")
    rename(deep / "file", deep / "second")
    remove(deep / "second")
    remove(deep / "second")
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
