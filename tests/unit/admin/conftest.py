"""The admin API of a small cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyromq.admin import Admin
from pyromq.testing import Cluster


@pytest.fixture
async def admin(rocketmq: Cluster) -> AsyncIterator[Admin]:
    """Administers the cluster of the fixture `rocketmq`."""
    async with Admin(rocketmq.namesrv) as admin:
        yield admin
