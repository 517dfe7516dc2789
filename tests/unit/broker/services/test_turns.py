from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import pytest

from pyromq.broker.services import turns as module
from pyromq.broker.services.turns import Turns
from tests.support.patience import until


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def once(work: Callable[[], object]) -> Callable[[], bool]:
    """Work that needs no second turn."""

    def run() -> bool:
        work()
        return False

    return run


async def test_work_waits_for_the_next_turn_and_comes_in_order() -> None:
    turns = Turns()
    done: list[int] = []
    for number in range(3):
        turns.add(once(partial(done.append, number)))
    assert done == []
    assert len(turns) == 3
    await asyncio.sleep(0)
    assert done == [0, 1, 2]
    assert len(turns) == 0


async def test_long_work_takes_several_turns_and_shares_them() -> None:
    turns = Turns()
    done: list[str] = []

    def work(name: str) -> bool:
        busy(module.TURN_SECONDS)
        done.append(name)
        return done.count(name) < 3

    turns.add(lambda: work("a"))
    turns.add(lambda: work("b"))
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert len(done) == count, "one piece fills a turn"
    assert done == ["a", "b"] * 3


async def test_what_is_charged_ends_the_turn_until_the_next() -> None:
    turns = Turns()
    turns.charge(time.perf_counter())
    assert not turns.is_over
    turns.charge(time.perf_counter() - 1)
    assert turns.is_over
    await asyncio.sleep(0)
    assert not turns.is_over


async def test_a_turn_that_work_has_filled_is_over_for_handlers_too() -> None:
    turns = Turns()
    turns.add(once(lambda: busy(module.TURN_SECONDS)))
    await asyncio.sleep(0)
    assert turns.is_over
    await asyncio.sleep(0)
    assert not turns.is_over


async def test_work_that_fails_is_told_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns()
    done: list[int] = []

    def fail() -> bool:
        raise RuntimeError("broken work")

    with caplog.at_level(logging.ERROR):
        turns.add(fail)
        turns.add(once(lambda: done.append(1)))
        await until(lambda: done)
    assert len(turns) == 0
    assert "broken work" in caplog.text
