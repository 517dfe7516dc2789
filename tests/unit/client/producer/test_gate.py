from __future__ import annotations

import asyncio

from pyromq.client.producer.gate import Gate
from tests.support.patience import DEADLINE


async def test_so_many_go_and_others_wait_their_turn() -> None:
    gate = Gate(3)
    assert gate.enter(2)
    assert gate.enter(1)
    assert not gate.enter(1)
    order: list[str] = []

    async def go(name: str, count: int) -> None:
        if not gate.enter(count):
            await gate.wait(count)
        order.append(name)

    tasks = [asyncio.create_task(go("large", 2)), asyncio.create_task(go("small", 1))]
    await asyncio.sleep(0)
    gate.leave(1)
    await asyncio.sleep(0)
    assert order == [], "a small one does not overtake a large one that waits"
    gate.leave(2)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_more_than_the_limit_goes_alone() -> None:
    gate = Gate(3)
    assert gate.enter(10)
    assert not gate.enter(1)


async def test_one_that_gives_up_lets_the_next_go() -> None:
    gate = Gate(1)
    assert gate.enter(1)
    waiting = [asyncio.create_task(gate.wait(1)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.leave(1)
    await waiting[1]
    assert waiting[0].cancelled()
    gate.leave(1)
    assert gate.enter(1)


async def test_one_that_gives_up_in_the_turn_that_lets_it_in_leaves_again() -> None:
    gate = Gate(1)
    assert gate.enter(1)
    waiting = asyncio.create_task(gate.wait(1))
    await asyncio.sleep(0)
    gate.leave(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.enter(1)


async def test_waiting_for_the_last_one() -> None:
    gate = Gate(5)
    await gate.wait_empty(10)
    assert gate.enter(2)
    asyncio.get_running_loop().call_later(0.01, gate.leave, 2)
    await gate.wait_empty(10)
    assert gate.enter(2)
    await gate.wait_empty(0.01)


async def test_two_may_wait_for_the_last_one() -> None:
    gate = Gate(5)
    assert gate.enter(1)
    waiting = [asyncio.create_task(gate.wait_empty(60)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.leave(1)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*waiting)
