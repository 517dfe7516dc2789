from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.metrics.metered import MeteredBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[MeteredBroker]:
    made = MeteredBroker(tmp_path)
    yield made
    await made.close()
