from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyromq.store.config import BrokerRole
from tests.unit.broker.assembled import AssembledBroker


async def test_parts_share_one_store_and_never_change(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path)
    parts = broker.parts

    assert parts.store is broker.store
    assert not parts.role.is_replica
    assert parts.hooks.rpc == ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        parts.address = "elsewhere"  # type: ignore[misc]
    await broker.close()


async def test_announced_waits_if_there_is_something_to_wait_for(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, broker_role=BrokerRole.SLAVE)
    assert broker.parts.role.is_replica
    await broker.parts.announced()
    calls: list[str] = []

    async def announce() -> None:
        calls.append("announced")

    broker.announce = announce
    await broker.parts.announced()
    assert calls == ["announced"]
    await broker.close()
