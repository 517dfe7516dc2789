from __future__ import annotations

import asyncio

import pytest

from pyromq.client.consumer.push.workers import Workers, one_by_one
from tests.support.patience import until


async def test_a_delayed_job_runs_later_but_not_after_stop() -> None:
    done: list[int] = []

    async def run(job: int) -> None:
        done.append(job)

    workers: Workers[int] = Workers(1, one_by_one(run))
    workers.add_later(2, 0.01)
    workers.add([1])
    await until(lambda: done == [1, 2])
    workers.add_later(3, 0.0)
    await workers.stop(1.0)
    await asyncio.sleep(0.01)
    assert done == [1, 2]


async def test_one_worker_runs_jobs_that_never_wait() -> None:
    done: list[int] = []
    tasks: set[object] = set()

    async def run(job: int) -> None:
        done.append(job)
        tasks.add(asyncio.current_task())

    workers = Workers(5, one_by_one(run))
    workers.add(range(1000))
    await until(lambda: len(done) == 1000)
    assert done == [*range(1000)]
    # A few other workers may be woken, but not one per job.
    assert len(tasks) < 5
    workers.add([1000])
    await until(lambda: len(done) == 1001)
    await workers.stop(1)


async def test_jobs_that_wait_run_at_once_up_to_the_limit() -> None:
    gate = asyncio.Event()

    async def run(_job: int) -> None:
        await gate.wait()

    workers = Workers(3, one_by_one(run))
    workers.add(range(7))
    await until(lambda: workers.running == 3)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (workers.running, workers.waiting) == (3, 4)
    assert not workers.has(asyncio.current_task())
    gate.set()
    await until(lambda: workers.running == 0 and workers.waiting == 0)
    await workers.stop(1)


async def test_many_jobs_do_not_starve_the_event_loop() -> None:
    done: list[int] = []

    async def run(job: int) -> None:
        done.append(job)

    workers = Workers(1, one_by_one(run))
    workers.add(range(100_000))
    while not done:  # noqa: ASYNC110 - each loop iteration counts
        await asyncio.sleep(0)
    assert len(done) < 100_000
    await workers.stop(0)


async def test_a_job_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    async def run(job: int) -> None:
        if job == 0:
            raise ValueError("broken")
        done.append(job)

    workers = Workers(1, one_by_one(run))
    workers.add([0, 1])
    await until(lambda: done == [1])
    assert "ValueError: broken" in caplog.text
    await workers.stop(1)


async def test_overdue_jobs_are_cancelled_and_returned_once() -> None:
    stubborn = asyncio.Event()
    done: list[str] = []

    async def run(job: str) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            done.append(job)
            if job == "stubborn":
                await stubborn.wait()
                return
            raise

    workers = Workers(2, one_by_one(run))
    workers.add(["meek", "stubborn"])
    await until(lambda: workers.running == 2)
    assert workers.cancel_overdue(30) == []
    assert sorted(workers.cancel_overdue(0)) == ["meek", "stubborn"]
    await until(lambda: workers.running == 1)
    assert workers.cancel_overdue(0) == []
    stubborn.set()
    await until(lambda: workers.running == 0)
    workers.add(["meek"])
    await until(lambda: workers.running == 1)
    assert workers.cancel_overdue(0) == ["meek"]
    await until(lambda: done == ["meek", "stubborn", "meek"])
    await workers.stop(1)


async def test_stop_lets_jobs_finish_and_then_cancels_them() -> None:
    gate = asyncio.Event()
    ended: list[str] = []

    async def run(job: str) -> None:
        try:
            await (gate.wait() if job == "soon" else asyncio.sleep(30))
        finally:
            ended.append(job)

    workers = Workers(2, one_by_one(run))
    workers.add(["soon", "never", "not begun"])
    await until(lambda: workers.running == 2)
    stopping = asyncio.create_task(workers.stop(0.05))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert ended == ["soon", "never"]
    workers.add(["too late"])
    assert workers.waiting == 0
