from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.services.upkeep import fall_behind
from pyromq.broker.services.upkeep.fall_behind import (
    GROUP_GET_FALL_SIZE,
    GROUP_GET_FALL_TIME,
    Fall,
)
from pyromq.protocol import kernel
from pyromq.protocol.wire.codes import ResponseCode
from tests.support.requests import pull_request
from tests.unit.broker.assembled import AssembledBroker, Client

KEY = "0@T@consumers"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path)
    broker.put(b"one", b"two", b"three")
    yield broker
    await broker.close()


def pull(broker: AssembledBroker, client: Client, offset: int = 0, count: int = 1) -> None:
    answer = client.ask(pull_request(queueOffset=str(offset), maxMsgNums=str(count)))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def size(broker: AssembledBroker) -> int | None:
    find = broker.parts.fall_behind.view(GROUP_GET_FALL_SIZE, KEY)
    assert find is not None
    return find()


@pytest.mark.parametrize("way", ["fast", "hot"])
async def test_the_bytes_after_the_last_message_of_a_pull(
    broker: AssembledBroker, way: str
) -> None:
    client: Client = getattr(broker, way)
    if way == "fast" and kernel.load("pulls") is None:
        pytest.skip("no compiled kernel")
    first, second, third = broker.records()
    pull(broker, client)  # the first one makes the plan, without the kernel
    pull(broker, client)
    await broker.stats.count()
    assert size(broker) == first.size + second.size + third.size
    pull(broker, client, 1, 2)
    await broker.stats.count()
    assert size(broker) == third.size
    assert list(broker.parts.fall_behind.falls()) == [Fall("consumers", "T", 0, third.size)]


async def test_a_group_that_stops_pulling_does_not_fall_behind(broker: AssembledBroker) -> None:
    pull(broker, broker.hot, 2)
    await broker.stats.count()
    before = size(broker)
    broker.put(b"four")
    await broker.stats.count()
    assert size(broker) == before


async def test_the_age_of_the_last_message(broker: AssembledBroker) -> None:
    broker.now = broker.records()[0].store_timestamp + 5000
    pull(broker, broker.hot)
    await broker.stats.count()
    find = broker.parts.fall_behind.view(GROUP_GET_FALL_TIME, KEY)
    assert find is not None
    assert find() == 5000


async def test_what_was_never_pulled_and_other_statistics(broker: AssembledBroker) -> None:
    service = broker.parts.fall_behind
    assert service.view("TOPIC_PUT_NUMS", "T") is None
    for key in (KEY, "", "x@T@consumers", "0@T", f"{9 * '9'}@T@consumers", f"{99 * '9'}@T@g"):
        for name in (GROUP_GET_FALL_SIZE, GROUP_GET_FALL_TIME):
            find = service.view(name, key)
            assert find is not None
            assert find() is None


async def test_a_deleted_topic_and_a_forgotten_group(broker: AssembledBroker) -> None:
    pull(broker, broker.hot)
    await broker.stats.count()
    broker.parts.fall_behind.forget_group("others")
    assert size(broker) is not None
    broker.parts.fall_behind.forget_group("consumers")
    assert size(broker) is None
    pull(broker, broker.hot)
    await broker.stats.count()
    broker.store.remove_topic("T")
    assert list(broker.parts.fall_behind.falls()) == []
    list(broker.parts.fall_behind.forget_deleted(lambda _: True))
    assert broker.parts.fall_behind._last == {}


async def test_a_deleted_group_is_forgotten(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fall_behind, "_KEYS_PER_YIELD", 1)
    pull(broker, broker.hot)
    await broker.stats.count()
    assert len(list(broker.parts.fall_behind.forget_deleted(lambda _: True))) == 1
    assert size(broker) is not None
    list(broker.parts.fall_behind.forget_deleted(lambda group: group != "consumers"))
    assert broker.parts.fall_behind._last == {}


async def test_recording_can_be_switched_off(tmp_path: Path) -> None:
    broker = AssembledBroker(tmp_path, disk_fall_recorded=False)
    broker.put(b"one")
    pull(broker, broker.hot)
    await broker.stats.count()
    assert size(broker) is None
    await broker.close()
