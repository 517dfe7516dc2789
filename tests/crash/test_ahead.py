"""Segments ahead of the writer go in an order that leaves no gap, whenever a kill comes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from pyromq.store.results import PutError
from tests.support.patience import wait_until
from tests.support.stores import SEGMENT, body_for, open_store, put


def numbers(store: MessageStore) -> list[int]:
    return sorted(int(path.name) // SEGMENT for path in store.config.commit_log_directory.iterdir())


def with_two_ahead(root: Path) -> MessageStore:
    """A store whose writer was so quick that two segments are ready behind its own."""
    store = open_store(root)
    for _ in range(4):
        put(store, body_for(store, SEGMENT - 100))
        store.seal()
    wait_until(lambda: numbers(store) == list(range(6)))
    return store


def watch_removals(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[], list[int]]
) -> list[list[int]]:
    """What `look` sees after each removal."""
    unlink = os.unlink
    seen: list[list[int]] = []

    def removing(*arguments: Any, **others: Any) -> None:
        unlink(*arguments, **others)
        seen.append(look())

    monkeypatch.setattr(os, "unlink", removing)
    return seen


def test_a_stop_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_two_ahead(tmp_path)
    seen = watch_removals(monkeypatch, lambda: numbers(store))
    store.stop()
    assert [0, 1, 2, 3] in seen
    for left in seen:
        assert left == list(range(len(left)))


def test_a_roll_that_fails_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_two_ahead(tmp_path)
    seen = watch_removals(monkeypatch, lambda: numbers(store))

    def full(self: MappedFile, end: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "reserve", full)
        with pytest.raises(PutError, match="No space left"):
            put(store, body_for(store, SEGMENT - 100))
    assert [0, 1, 2, 3] in seen
    store.stop()
    for left in seen:
        assert left == list(range(len(left)))
