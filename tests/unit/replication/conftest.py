"""A scripted master in Java's format, and a log for it to send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.replication import ScriptedMaster, whole_log
from tests.support.stores import open_store, put


@pytest.fixture
async def java() -> AsyncIterator[ScriptedMaster]:
    """A master that sends what the test says."""
    master = ScriptedMaster()
    await master.start()
    yield master
    await master.stop()


@pytest.fixture
def master_log(tmp_path: Path) -> bytes:
    """The log of a master with a few segments."""
    store = open_store(tmp_path / "log")
    for number in range(600):
        put(store, b"%d" % number * 50, queue_id=number % 4, keys=f"key-{number}")
    store.seal()
    log = whole_log(store)
    store.stop()
    return log
