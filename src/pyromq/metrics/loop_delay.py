"""Measures how late the event loop runs its timers.

Ten times a second a timer notes by how much it is late: everything that waits for the loop waits
about as long. Costs 10 calls per second. On the loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyromq.metrics.family import Family, histogram
from pyromq.metrics.histogram import SHORT, Histogram

INTERVAL_SECONDS: Final = 0.1

LOOP_DELAY: Final[Family] = histogram(
    "pyromq_loop_delay_seconds",
    "By how much timers of the event loop are late, in seconds, measured ten times a second.",
)


class LoopDelay:
    """A timer that measures itself."""

    def __init__(self) -> None:
        self.histogram = Histogram(SHORT)
        #: The latest measurement, in seconds.
        self.last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Measure from now on."""
        self._plan(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_later(INTERVAL_SECONDS, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        # uvloop's timers have a resolution of a millisecond and may be early by part of it.
        self.last = max(0.0, loop.time() - self._due)
        self.histogram.observe(self.last)
        self._plan(loop)
