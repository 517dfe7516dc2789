"""Measures how long a chunk has waited for the loop, at the cost of one comparison per chunk.

In one iteration the loop handles everything that its sockets had when the iteration began, so the
last chunk has waited for all the others. `at` is the time from which calling `waited` pays off;
connections compare it with the clock that they read for each chunk anyway.

`waited` never overstates: a wrong refusal is worse than none. An iteration therefore counts from
its first chunk, which means marking every iteration that has chunks, and marking costs. uvloop
runs its timers before it polls the sockets: while no timer is overdue, no iteration is long, and
none is marked. An overdue timer alone proves nothing, because the machine may have stalled the
process while it polled, and the chunks arrived just now; it only makes the iterations of the next
seconds be marked. On asyncio's own loop all iterations are marked.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

#: How often the timer runs while there is traffic.
_TICK_SECONDS: Final = 0.05
#: Ticks without traffic after which the timer stops, so that an idle process sleeps.
_IDLE_TICKS: Final = 100
#: How long iterations are marked after one that may have been long.
_MARKED_SECONDS: Final = 10.0


class Lateness:
    """Watches the iterations of one loop for waits of more than `limit` seconds."""

    def __init__(self) -> None:
        #: A chunk that is handled after this time should call `waited`.
        self.at = math.inf
        self._limit: Callable[[], float] = lambda: math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers_come_first = False
        #: Until when iterations are marked; for ever unless timers run first.
        self._marks_until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_left = 0
        self._last_tick = 0.0
        self._iteration_began: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop, limit: Callable[[], float]) -> None:
        """Start watching; `limit` returns the seconds that count as late now."""
        self._loop = loop
        self._limit = limit
        self._timers_come_first = type(loop).__module__.partition(".")[0] == "uvloop"
        self._marks_until = -math.inf if self._timers_come_first else math.inf
        self.at = -math.inf

    def stop(self) -> None:
        """Stop watching."""
        self.at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def waited(self, now: float) -> float:
        """Return for how many seconds, at least, the current chunk has waited."""
        assert self._loop is not None
        if self._timers_come_first and now > self._marks_until:
            if self._timer is None:
                self._ticks_left = _IDLE_TICKS
                self._tick()
                return 0.0
            self.at = self._last_tick + _TICK_SECONDS + self._limit()
            if now <= self.at:
                return 0.0
            self._marks_until = now + _MARKED_SECONDS
            self.at = -math.inf
        if self._iteration_began is None:
            self._iteration_began = now
            self._loop.call_soon(self._end_iteration)
        return now - self._iteration_began

    def _tick(self) -> None:
        assert self._loop is not None
        self._last_tick = self._loop.time()
        if self._ticks_left == 0:
            self._timer = None
            self.at = -math.inf
            return
        self._ticks_left -= 1
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        is_marking = self._last_tick <= self._marks_until
        self.at = -math.inf if is_marking else self._last_tick + _TICK_SECONDS + self._limit()

    def _end_iteration(self) -> None:
        self._iteration_began = None
