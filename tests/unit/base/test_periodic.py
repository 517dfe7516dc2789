from __future__ import annotations

import asyncio
import logging

import pytest

from pyromq.base.periodic import PeriodicTasks, repeat
from tests.support.patience import until


async def test_work_is_repeated_until_stopped() -> None:
    runs: list[int] = []
    tasks = PeriodicTasks()
    tasks.start(0.0, lambda: runs.append(1))
    await until(lambda: len(runs) >= 3)
    await tasks.stop()
    count = len(runs)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(runs) == count
    await tasks.stop()


async def test_coroutines_do_not_overlap() -> None:
    running, most, runs = 0, 0, 0

    async def work() -> None:
        nonlocal running, most, runs
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        runs += 1

    tasks = PeriodicTasks()
    tasks.start(0.0, work)
    await until(lambda: runs >= 3)
    await tasks.stop()
    assert most == 1


async def test_a_failed_run_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0

    def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("a mistake")

    tasks = PeriodicTasks()
    with caplog.at_level(logging.ERROR):
        tasks.start(0.0, work, name="sample")
        await until(lambda: runs >= 2)
        await tasks.stop()
    assert [record.getMessage() for record in caplog.records] == ["sample failed, retrying in 0 s"]


async def test_stop_ends_a_run_in_flight() -> None:
    began = asyncio.Event()
    ended = asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks = PeriodicTasks()
    tasks.start(0.0, work)
    await began.wait()
    await tasks.stop()
    assert ended.is_set()


async def test_the_first_run_has_its_own_delay_and_intervals_may_change() -> None:
    asked: list[float] = []
    runs = 0

    def interval() -> float:
        asked.append(0.0)
        return 0.0

    def work() -> None:
        nonlocal runs
        runs += 1

    task = asyncio.create_task(repeat(interval, work, first=0.0))
    await until(lambda: runs >= 2)
    task.cancel()
    assert asked
    with pytest.raises(asyncio.CancelledError):
        await task
