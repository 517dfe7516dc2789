from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.upkeep import protection as module
from pyromq.broker.services.upkeep.protection import BrokerProtection
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.store.config import BrokerRole
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker

CONFIG = BrokerConfig(
    broker_ip1="127.0.0.1",
    broker_ip2="127.0.0.1",
    disable_consume_if_consumer_read_slowly=True,
    consumer_fallbehind_threshold=10_000,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path, CONFIG)
    broker.put(*(b"x" * 1000 for _ in range(20)))
    yield broker
    await broker.close()


def protection(broker: AssembledBroker) -> BrokerProtection:
    parts = broker.parts
    return BrokerProtection(parts.config, parts.tables.groups, parts.role, parts.fall_behind)


async def pull(broker: AssembledBroker, offset: int, group: str = "consumers") -> int:
    answer = broker.fast.ask(
        pull_request(queueOffset=str(offset), maxMsgNums="1", consumerGroup=group)
    )
    await broker.stats.count()
    return answer.code


async def test_a_group_that_reads_far_back_is_disabled(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture
) -> None:
    assert await pull(broker, 18, "quick") == ResponseCode.SUCCESS
    assert await pull(broker, 0) == ResponseCode.SUCCESS
    await protection(broker).protect()
    assert await pull(broker, 1) == ResponseCode.NO_PERMISSION
    assert await pull(broker, 19, "quick") == ResponseCode.SUCCESS
    assert "group consumers reads slowly and is disabled" in caplog.text
    assert "limit 10000" in caplog.text


async def test_an_enabled_group_is_judged_by_its_next_pull(broker: AssembledBroker) -> None:
    guard = protection(broker)
    await pull(broker, 0)
    await guard.protect()
    group = broker.groups.get("consumers")
    assert group is not None
    assert not group.consume_enable
    broker.groups.update(dataclasses.replace(group, consume_enable=True))
    await guard.protect()
    assert await pull(broker, 19) == ResponseCode.SUCCESS
    await guard.protect()
    assert await pull(broker, 19) == ResponseCode.SUCCESS


async def test_tools_and_groups_of_the_system_are_exempt(broker: AssembledBroker) -> None:
    assert await pull(broker, 0, "TOOLS_CONSUMER") == ResponseCode.SUCCESS
    await protection(broker).protect()
    assert await pull(broker, 0, "TOOLS_CONSUMER") == ResponseCode.SUCCESS


async def test_nobody_is_disabled_unless_that_is_wanted(tmp_path: Path) -> None:
    off = dataclasses.replace(CONFIG, disable_consume_if_consumer_read_slowly=False)
    broker = AssembledBroker(tmp_path, off)
    broker.put(*(b"x" * 1000 for _ in range(20)))
    await pull(broker, 0)
    await protection(broker).protect()
    assert await pull(broker, 0) == ResponseCode.SUCCESS
    await broker.close()


async def test_a_replica_disables_nobody(broker: AssembledBroker) -> None:
    await pull(broker, 0)
    broker.parts.role.change(BrokerRole.SLAVE, 1)
    await protection(broker).protect()
    group = broker.groups.get("consumers")
    assert group is not None
    assert group.consume_enable


async def test_the_groups_farthest_behind_are_named(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_REPORTED", 2)
    monkeypatch.setattr(module, "_FALLS_PER_YIELD", 1)
    caplog.set_level("INFO")
    await protection(broker).report()
    assert "farthest" not in caplog.text
    for group, offset in (("quick", 19), ("slow", 0), ("slower", 0), ("slowish", 10)):
        assert await pull(broker, offset, group) == ResponseCode.SUCCESS
    await protection(broker).report()
    size = sum(record.size for record in broker.records())
    line = caplog.messages[-1]
    assert f"slow in T queue 0 {size} bytes" in line
    assert f"slower in T queue 0 {size} bytes" in line
    assert "slowish" not in line
    assert "quick" not in line
