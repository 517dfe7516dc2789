from __future__ import annotations

import asyncio

import pytest

from pyromq.client.producer.pacing import BrokerFaults, InFlightLimit
from tests.support.patience import DEADLINE


async def test_senders_beyond_the_limit_wait_in_order() -> None:
    limit = InFlightLimit(3)
    assert limit.try_acquire(2)
    assert limit.try_acquire(1)
    assert not limit.try_acquire(1)
    order: list[str] = []

    async def go(name: str, count: int) -> None:
        if not limit.try_acquire(count):
            await limit.acquire(count)
        order.append(name)

    tasks = [asyncio.create_task(go("large", 2)), asyncio.create_task(go("small", 1))]
    await asyncio.sleep(0)
    limit.release(1)
    await asyncio.sleep(0)
    assert order == [], "a small batch must not overtake a large one that waits"
    limit.release(2)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_a_batch_above_the_limit_goes_alone() -> None:
    limit = InFlightLimit(3)
    assert limit.try_acquire(10)
    assert not limit.try_acquire(1)


async def test_a_cancelled_sender_makes_room_for_the_next() -> None:
    limit = InFlightLimit(1)
    assert limit.try_acquire(1)
    waiting = [asyncio.create_task(limit.acquire(1)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    limit.release(1)
    await waiting[1]
    assert waiting[0].cancelled()
    limit.release(1)
    assert limit.try_acquire(1)


async def test_a_sender_cancelled_when_admitted_releases_its_room() -> None:
    limit = InFlightLimit(1)
    assert limit.try_acquire(1)
    waiting = asyncio.create_task(limit.acquire(1))
    await asyncio.sleep(0)
    limit.release(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert limit.try_acquire(1)


async def test_wait_idle_waits_for_the_last_message() -> None:
    limit = InFlightLimit(5)
    await limit.wait_idle(10)
    assert limit.try_acquire(2)
    asyncio.get_running_loop().call_later(0.01, limit.release, 2)
    await limit.wait_idle(10)
    assert limit.try_acquire(2)
    await limit.wait_idle(0.01)


async def test_several_callers_may_wait_until_idle() -> None:
    limit = InFlightLimit(5)
    assert limit.try_acquire(1)
    waiting = [asyncio.create_task(limit.wait_idle(60)) for _ in range(2)]
    await asyncio.sleep(0)
    limit.release(1)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("latency", "avoided"),
    [(0.0, 0), (0.5, 0), (0.55, 30), (1.0, 60), (2.5, 120), (3.0, 180), (15.0, 600)],
)
def test_a_slower_broker_is_avoided_longer(latency: float, avoided: float) -> None:
    faults = BrokerFaults()
    faults.note("b", latency, now=100.0)
    assert bool(faults) == (avoided > 0)
    if avoided:
        assert faults.is_avoided("b", 100.0 + avoided - 0.1)
    assert not faults.is_avoided("b", 100.0 + avoided)
    assert not faults, "an expired entry is dropped"


def test_a_quick_response_or_a_new_connection_ends_the_avoidance() -> None:
    for latency in (0.01, None):
        faults = BrokerFaults()
        faults.note_failure("b", 0.0)
        assert faults.is_avoided("b", 1.0)
        assert not faults.is_avoided("other", 1.0)
        if latency is None:
            faults.forgive("b")
        else:
            faults.note("b", latency, 1.0)
        assert not faults.is_avoided("b", 1.0)
