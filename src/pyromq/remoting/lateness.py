"""How long what is handled now has waited for its turn, told at the cost of one comparison.

The loop takes in one turn everything that its sockets had when the turn began; what is
handled last has waited for all the others. `at` is the time from which a look at `waited`
pays: a server compares it with the clock that it reads for each chunk anyway.

uvloop runs its timers at the beginning of a turn, before it looks at the sockets: a timer
that is overdue tells when the turn began at the latest, and nothing is done for a chunk.
asyncio's own loop runs them after the sockets, so there each turn with chunks is marked.
What is told is never too much: a wrong refusal is worse than none.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

#: How often the timer runs while there is traffic: what is told is at most so much too little.
_TICK_SECONDS: Final = 0.05
#: Without traffic the timer ends after so many runs; nothing wakes up an idle process.
_TICKS: Final = 100


class Lateness:
    """Watches the turns of one loop for waits of more than `limit` seconds."""

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        #: A chunk that is handled after this time should ask how long it has waited.
        self.at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers_come_first = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_left = 0
        self._last_tick = 0.0
        self._turn_began: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch from now on, if there is a limit."""
        self._loop = loop
        self._timers_come_first = type(loop).__module__.partition(".")[0] == "uvloop"
        if self.limit != math.inf:
            self.at = -math.inf

    def stop(self) -> None:
        """Watch no more."""
        self.at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def waited(self, now: float) -> float:
        """For how many seconds, at least, what is handled now has waited in this turn."""
        assert self._loop is not None
        if not self._timers_come_first:
            if self._turn_began is None:
                self._turn_began = now
                self._loop.call_soon(self._end_turn)
            return now - self._turn_began
        if self._timer is None:
            self._ticks_left = _TICKS
            self._tick()
            return 0.0
        return max(0.0, now - self._last_tick - _TICK_SECONDS)

    def _tick(self) -> None:
        assert self._loop is not None
        self._last_tick = self._loop.time()
        if self._ticks_left == 0:
            self._timer = None
            self.at = -math.inf
            return
        self._ticks_left -= 1
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self.at = self._last_tick + _TICK_SECONDS + self.limit

    def _end_turn(self) -> None:
        self._turn_began = None
