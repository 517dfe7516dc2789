from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable

import pytest

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


def stalling_turn(lateness: Lateness, told: list[float | None]) -> None:
    """What comes first in a turn takes long; what the second one is told."""
    ask(lateness)
    time.sleep(STALL)
    told.append(ask(lateness))


@on_both_loops
async def test_what_comes_behind_a_stall_of_the_same_turn_has_waited() -> None:
    loop = asyncio.get_running_loop()
    lateness = Lateness()
    lateness.start(loop, lambda: LIMIT)
    told: list[float | None] = []

    # With uvloop the first long turn makes it watch the next ones.
    for turns in (1, 2):
        loop.call_soon(stalling_turn, lateness, told)
        await until(lambda turns=turns: len(told) == turns)  # type: ignore[misc]

    waited = told[1]
    assert waited is not None
    assert STALL - LIMIT < waited < 10  # uvloop counts milliseconds
    lateness.stop()


class Uvloop:
    """As much of a loop as lateness needs, with a name that says that timers come first."""

    __module__ = "uvloop"

    def __init__(self) -> None:
        self.now = 1000.0
        self.timer: Callable[[], None] | None = None
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, _: float, callback: Callable[[], None]) -> object:
        self.timer = callback
        return object()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def next_turn(self, seconds: float) -> None:
        """Wait for the sockets for so long; they come before the timer that is due since then."""
        while self.soon:
            self.soon.pop()()
        self.now += seconds


def test_a_stall_of_the_machine_makes_nobody_late() -> None:
    """What it finds in its sockets after a stall may have come just now."""
    loop = Uvloop()
    lateness = Lateness()
    lateness.start(loop, lambda: LIMIT)  # type: ignore[arg-type]

    def waited() -> float:
        return lateness.waited(loop.now) if loop.now > lateness.at else 0.0

    assert waited() == 0.0
    for _ in range(3):
        loop.next_turn(1.0)
        assert waited() == 0.0
        loop.now += 0.3  # handling that took long
        assert waited() == pytest.approx(0.3)
    # After a while without such a turn, turns are not marked any more.
    loop.next_turn(lateness_module._MARKED_SECONDS + 1)
    assert loop.timer is not None
    loop.timer()
    assert lateness.at == pytest.approx(loop.now + lateness_module._TICK_SECONDS + LIMIT)
    assert waited() == 0.0
    assert loop.soon == []


@on_both_loops
async def test_what_comes_in_the_turn_after_a_stall_has_not() -> None:
    loop = asyncio.get_running_loop()
    lateness = Lateness()
    lateness.start(loop, lambda: LIMIT)
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
async def test_without_a_limit_no_chunk_asks() -> None:
    assert ask(Lateness()) is None


@on_both_loops
async def test_a_stopped_one_never_asks_again() -> None:
    lateness = Lateness()
    lateness.start(asyncio.get_running_loop(), lambda: LIMIT)
    assert ask(lateness) == 0.0
    lateness.stop()

    assert lateness.at == math.inf


@on_both_loops
async def test_the_timer_ends_without_traffic() -> None:
    lateness = Lateness()
    lateness.start(asyncio.get_running_loop(), lambda: LIMIT)
    ask(lateness)
    lateness._ticks_left = 0

    await until(lambda: lateness._timer is None)

    assert lateness.at == -math.inf
    assert ask(lateness) is not None  # it begins again
    lateness.stop()
