"""What holds for every test of the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.message_store import MessageStore
from tests.support.stores import open_store


@pytest.fixture(autouse=True)
def writes_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into a hole of a file could end in a SIGBUS on a full disk."""
    write = MappedFile.write

    def checked(self: MappedFile, position: int, data: bytes) -> None:
        assert position + len(data) <= self.reserved, (self.path, position, len(data))
        write(self, position, data)

    monkeypatch.setattr(MappedFile, "write", checked)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here outlives the kernel, and hundreds of syncs are most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def stores_are_stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that fails in its middle must not disturb the ones behind it."""
    started: list[MessageStore] = []
    start = MessageStore.start

    def remembered(self: MessageStore) -> None:
        start(self)
        started.append(self)

    monkeypatch.setattr(MessageStore, "start", remembered)
    yield
    for store in started:
        store.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """An open store with small files."""
    store = open_store(tmp_path / "store")
    yield store
    store.stop()
