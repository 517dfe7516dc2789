"""Run a limited number of jobs at once on long-lived tasks, instead of one task per job.

A worker runs one job after the other. It wakes another worker only if jobs are left in the next
loop iteration, so handlers that never wait keep one worker busy, and handlers that do wait get as
many workers as allowed. A worker yields to the event loop every few milliseconds.

Used by `concurrent` and `orderly`, on the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Job = TypeVar("Job")

#: How long a worker runs jobs before it yields to the event loop.
_MAX_TURN_SECONDS: Final = 0.002
#: How long `stop` waits for workers that it cancelled.
_CANCEL_SECONDS: Final = 1.0


class Workers(Generic[Job]):
    """Runs `run(job)` for each job in order, at most `limit` at once."""

    def __init__(self, limit: int, run: Callable[[Job], Awaitable[None]]) -> None:
        self._limit = limit
        self._run = run
        self._jobs: deque[Job] = deque()
        self._workers: list[_Worker[Job]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._later: set[asyncio.TimerHandle] = set()
        self._is_help_coming = False
        self._is_stopped = False

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue jobs."""
        if not self._is_stopped:
            self._jobs.extend(jobs)
            self._wake_one()

    def add_later(self, job: Job, seconds: float) -> None:
        """Queue a job after a delay, unless the workers are stopped before."""

        def add() -> None:
            self._later.discard(timer)
            self.add([job])

        timer = asyncio.get_running_loop().call_later(seconds, add)
        self._later.add(timer)

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """Number of jobs in flight."""
        return sum(worker.job is not None for worker in self._workers)

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task is one of the workers."""
        return any(worker.task is task for worker in self._workers)

    def cancel_overdue(self, seconds: float) -> list[Job]:
        """Cancel the jobs that have run for longer than `seconds`; return each of them once."""
        begun_before = time.monotonic() - seconds
        overdue = []
        for worker in self._workers:
            if worker.job is not None and not worker.is_overdue and worker.began < begun_before:
                worker.is_overdue = True
                overdue.append(worker.job)
                worker.task.cancel()
        return overdue

    async def stop(self, grace: float) -> None:
        """Drop queued jobs; let running ones finish within `grace` seconds, then cancel them."""
        self._is_stopped = True
        self._jobs.clear()
        for timer in self._later:
            timer.cancel()
        tasks = [worker.task for worker in self._workers]
        busy = [worker.task for worker in self._workers if worker.job is not None]
        for worker in self._workers:
            if worker.job is None:
                worker.task.cancel()
        if busy:
            _, pending = await asyncio.wait(busy, timeout=grace)
            for task in pending:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)

    # Helpers, in call order.

    def _wake_one(self) -> None:
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return
        if len(self._workers) < self._limit:
            worker: _Worker[Job] = _Worker()
            self._workers.append(worker)
            worker.task = asyncio.create_task(self._work(worker))

    def _help(self) -> None:
        self._is_help_coming = False
        if self._jobs:
            self._wake_one()

    async def _work(self, worker: _Worker[Job]) -> None:
        jobs, run, clock = self._jobs, self._run, time.monotonic
        loop = asyncio.get_running_loop()
        turn_began = clock()
        while True:
            while not jobs:
                if self._is_stopped:
                    return
                idle: asyncio.Future[None] = loop.create_future()
                self._idle.append(idle)
                await idle
                turn_began = clock()
            job = jobs.popleft()
            if jobs and not self._is_help_coming:
                self._is_help_coming = True
                loop.call_soon(self._help)
            worker.job = job
            worker.began = began = clock()
            try:
                await run(job)
            except asyncio.CancelledError:
                if not worker.is_overdue or self._is_stopped:
                    raise
            except Exception:
                logger.exception("job failed: %r", job)
            worker.job = None
            if worker.is_overdue:
                worker.is_overdue = False
                worker.task.uncancel()
            if began - turn_began > _MAX_TURN_SECONDS:
                await asyncio.sleep(0)
                turn_began = clock()


class _Worker(Generic[Job]):
    __slots__ = ("began", "is_overdue", "job", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.job: Job | None = None
        self.began = 0.0
        self.is_overdue = False
