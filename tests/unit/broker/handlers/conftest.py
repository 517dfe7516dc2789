"""What most tests of handlers work with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.wired import Wired


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Wired]:
    """The parts of a broker, without sockets."""
    wired = Wired(tmp_path)
    yield wired
    await wired.close()
