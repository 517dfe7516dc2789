"""Run a limited number of jobs at once on long-lived tasks, instead of one task per job.

A worker runs one job after the other. It wakes another worker only if jobs are left in the next
loop iteration, so handlers that never wait keep one worker busy, and handlers that do wait get as
many workers as allowed. A worker yields to the event loop every few milliseconds.

The owner's coroutine function runs all jobs of a worker's turn, because a coroutine per job would
cost as much as a short handler:

    async def run(worker):
        while (job := worker.take(time.monotonic())) is not None:
            ...

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
    """Runs jobs in order, at most `limit` at once; `run` runs those of one worker's turn."""

    def __init__(self, limit: int, run: Callable[[Worker[Job]], Awaitable[None]]) -> None:
        self._limit = limit
        self._run = run
        #: Jobs that no worker has taken.
        self.jobs: deque[Job] = deque()
        self._workers: list[Worker[Job]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._later: set[asyncio.TimerHandle] = set()
        #: Whether another worker will be woken in the next loop iteration.
        self.is_help_coming = False
        self._is_stopped = False

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue jobs."""
        if not self._is_stopped:
            self.jobs.extend(jobs)
            # In the next iteration: the pull that follows this one leaves before the handlers run.
            if not self.is_help_coming:
                self.call_help()

    def add_later(self, job: Job, seconds: float) -> None:
        """Queue a job after a delay, unless the workers are stopped before."""

        def add() -> None:
            self._later.discard(timer)
            self.add([job])

        timer = asyncio.get_running_loop().call_later(seconds, add)
        self._later.add(timer)

    def call_help(self) -> None:
        """Wake another worker in the next loop iteration, if jobs are left then."""
        self.is_help_coming = True
        asyncio.get_running_loop().call_soon(self._help)

    @property
    def waiting(self) -> int:
        """Number of queued jobs."""
        return len(self.jobs)

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
        self.jobs.clear()
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
            worker: Worker[Job] = Worker(self)
            self._workers.append(worker)
            worker.task = asyncio.create_task(self._work(worker))

    def _help(self) -> None:
        self.is_help_coming = False
        if self.jobs and not self._is_stopped:
            self._wake_one()

    async def _work(self, worker: Worker[Job]) -> None:
        jobs, run = self.jobs, self._run
        loop = asyncio.get_running_loop()
        while True:
            while not jobs:
                if self._is_stopped:
                    return
                idle: asyncio.Future[None] = loop.create_future()
                self._idle.append(idle)
                await idle
            worker.begin_turn()
            try:
                await run(worker)
            except asyncio.CancelledError:
                if not worker.is_overdue or self._is_stopped:
                    raise
            except Exception:
                logger.exception("job failed: %r", worker.job)
            worker.end_job()
            if jobs:
                await asyncio.sleep(0)


class Worker(Generic[Job]):
    """A task that runs jobs, and the job that it runs now."""

    __slots__ = ("_crew", "_jobs", "_turn_end", "began", "is_overdue", "job", "task")

    task: asyncio.Task[None]

    def __init__(self, crew: Workers[Job]) -> None:
        self._crew = crew
        self._jobs = crew.jobs
        self._turn_end = 0.0
        self.job: Job | None = None
        #: `time.monotonic()` of the start of the job.
        self.began = 0.0
        #: Whether the job was cancelled because it took too long.
        self.is_overdue = False

    def take(self, now: float) -> Job | None:
        """End the last job; return the next one, or None if there is none or the turn is over.

        `now` is `time.monotonic()`.
        """
        if self.is_overdue:
            self.end_job()
        jobs = self._jobs
        if not jobs or now > self._turn_end:
            self.job = None
            return None
        self.began = now
        self.job = job = jobs.popleft()
        if jobs and not self._crew.is_help_coming:
            self._crew.call_help()
        return job

    def begin_turn(self) -> None:
        """Allow jobs to run for some time."""
        self._turn_end = time.monotonic() + _MAX_TURN_SECONDS

    def end_job(self) -> None:
        """Forget the job, and that it was cancelled."""
        self.job = None
        if self.is_overdue:
            self.is_overdue = False
            self.task.uncancel()


def one_by_one(run: Callable[[Job], Awaitable[None]]) -> Callable[[Worker[Job]], Awaitable[None]]:
    """Return a function that runs the jobs of a turn by awaiting `run(job)` for each."""

    async def run_turn(worker: Worker[Job]) -> None:
        while (job := worker.take(time.monotonic())) is not None:
            await run(job)

    return run_turn
