from __future__ import annotations

import asyncio
from typing import Any

from pyromq.remoting.in_flight import Requests
from tests.support.clocks import held_loop, on_held_loop


@on_held_loop
async def test_overdue_requests_are_reported_oldest_first_and_answered_ones_are_not() -> None:
    loop = held_loop()
    requests, overdue = Requests(), list[tuple[Any, int, float]]()
    futures: dict[int, asyncio.Future[Any]] = {}

    def add(opaque: int) -> None:
        futures[opaque] = requests[opaque] = loop.create_future()
        deadlines = requests.deadlines.get(2.0) or requests.deadlines_of(
            2.0, lambda *each: overdue.append(each)
        )
        deadlines.add(loop.time() + 2.0, opaque, 100 + opaque)

    for opaque in (1, 2, 3):
        add(opaque)
        await loop.pass_time(0.5)
    del requests[2]
    await loop.pass_time(0.6)
    assert overdue == [(futures[1], 101, 2.0)]
    add(4)
    await loop.pass_time(1.0)
    assert overdue == [(futures[1], 101, 2.0), (futures[3], 103, 2.0)]
    assert list(requests) == [4]
    requests.clear()
    await loop.pass_time(2.0)
    assert not requests.deadlines
    assert len(overdue) == 2
