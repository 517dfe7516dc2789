from __future__ import annotations

import asyncio
import math
import socket
import time

from pyromq.remoting import lateness as lateness_module
from pyromq.remoting.lateness import Lateness
from tests.support.loops import on_both_loops
from tests.support.patience import until

LIMIT = 0.01
#: What a tick may hide, and some.
STALL = lateness_module._TICK_SECONDS + 0.1


def ask(lateness: Lateness) -> float | None:
    """What a server does for each chunk."""
    now = asyncio.get_running_loop().time()
    return lateness.waited(now) if now > lateness.at else None


@on_both_loops
async def test_what_comes_behind_a_stall_of_the_same_turn_has_waited() -> None:
    loop = asyncio.get_running_loop()
    lateness = Lateness(LIMIT)
    lateness.start(loop)
    told: list[float | None] = []

    def turn() -> None:
        ask(lateness)
        time.sleep(STALL)
        told.append(ask(lateness))

    loop.call_soon(turn)
    await until(lambda: told)

    (waited,) = told
    assert waited is not None
    assert LIMIT < waited < 10
    lateness.stop()


@on_both_loops
async def test_what_comes_in_the_turn_after_a_stall_has_not() -> None:
    loop = asyncio.get_running_loop()
    lateness = Lateness(LIMIT)
    lateness.start(loop)
    ours, theirs = socket.socketpair()
    told: list[float | None] = []

    def readable() -> None:
        if not ours.recv(100):
            return
        told.append(ask(lateness))
        if len(told) == 1:
            time.sleep(STALL)
            theirs.send(b"behind the stall")

    loop.add_reader(ours.fileno(), readable)
    theirs.send(b"first")
    await until(lambda: len(told) == 2)

    assert told[1] is None or told[1] < LIMIT
    loop.remove_reader(ours.fileno())
    ours.close()
    theirs.close()
    lateness.stop()


@on_both_loops
async def test_without_a_limit_nobody_has_to_ask() -> None:
    lateness = Lateness()
    lateness.start(asyncio.get_running_loop())

    assert ask(lateness) is None
    lateness.stop()


@on_both_loops
async def test_a_stopped_one_never_asks_again() -> None:
    lateness = Lateness(LIMIT)
    lateness.start(asyncio.get_running_loop())
    assert ask(lateness) == 0.0
    lateness.stop()

    assert lateness.at == math.inf


@on_both_loops
async def test_the_timer_ends_without_traffic() -> None:
    lateness = Lateness(LIMIT)
    lateness.start(asyncio.get_running_loop())
    ask(lateness)
    lateness._ticks_left = 0

    await until(lambda: lateness._timer is None)

    assert lateness.at == -math.inf
    assert ask(lateness) is not None  # it begins again
    lateness.stop()
