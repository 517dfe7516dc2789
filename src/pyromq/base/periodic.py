"""Repeat work on the event loop until it is stopped.

    tasks = PeriodicTasks()
    tasks.start(30.0, session.send_heartbeats)
    ...
    await tasks.stop()

A failed run is logged and retried after the next interval: one mistake must not end the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

logger = logging.getLogger(__name__)

Work: TypeAlias = Callable[[], Awaitable[None] | None]
#: Seconds, or a function that returns them for settings that change at run time.
Interval: TypeAlias = float | Callable[[], float]


async def repeat(
    interval: Interval, work: Work, *, first: float | None = None, name: str = ""
) -> None:
    """Run `work` every `interval` seconds, and the first time after `first` if given.

    `work` is a function or a coroutine function; runs never overlap. Returns only by cancellation.
    """
    name = name or getattr(work, "__qualname__", repr(work))
    pause = _seconds(interval) if first is None else first
    while True:
        await asyncio.sleep(pause)
        try:
            awaitable = work()
            if awaitable is not None:
                await awaitable
        except Exception:
            logger.exception("%s failed, retrying in %g s", name, _seconds(interval))
        pause = _seconds(interval)


class PeriodicTasks:
    """The periodic tasks of one owner, stopped together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, interval: Interval, work: Work, *, first: float | None = None, name: str = ""
    ) -> None:
        """Repeat `work` in a task of its own; the parameters are those of `repeat`."""
        self._tasks.append(asyncio.create_task(repeat(interval, work, first=first, name=name)))

    async def stop(self) -> None:
        """Cancel every task and wait until it has ended. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seconds(interval: Interval) -> float:
    return interval() if callable(interval) else interval
