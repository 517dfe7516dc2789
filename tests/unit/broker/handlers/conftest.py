"""Fixtures for tests of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.assembled import AssembledBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    """A broker without sockets."""
    assembled = AssembledBroker(tmp_path)
    yield assembled
    await assembled.close()
