"""How long what is handled now has waited for its turn, told at the cost of one comparison.

The loop takes in one turn everything that its sockets had when the turn began; what is
handled last has waited for all the others. `at` is the time from which a look at `waited`
pays: a server compares it with the clock that it reads for each chunk anyway.

What is told is never too much: a wrong refusal is worse than none. So a turn counts from its
first chunk, and each turn with chunks has to be marked, which costs. uvloop runs its timers
before it handles the sockets: as long as no timer is overdue, no turn is long, and none is
marked. One that is overdue proves nothing yet, since the machine may have stalled the process
while it waited for its sockets, and what was sent meanwhile came just now; it is the reason to
mark the turns of the next seconds. asyncio's own loop has its turns marked always.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

#: How often the timer runs while there is traffic.
_TICK_SECONDS: Final = 0.05
#: Without traffic the timer ends after so many runs; nothing wakes up an idle process.
_TICKS: Final = 100
#: How long turns are marked behind one that may have been long.
_MARKED_SECONDS: Final = 10.0


class Lateness:
    """Watches the turns of one loop for waits of more than `limit` seconds."""

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        #: A chunk that is handled after this time should ask how long it has waited.
        self.at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers_come_first = False
        #: Turns are marked until then; without timers that come first, always.
        self._marks_until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_left = 0
        self._last_tick = 0.0
        self._turn_began: float | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch from now on, if there is a limit."""
        self._loop = loop
        self._timers_come_first = type(loop).__module__.partition(".")[0] == "uvloop"
        self._marks_until = -math.inf if self._timers_come_first else math.inf
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
        if self._timers_come_first and now > self._marks_until:
            if self._timer is None:
                self._ticks_left = _TICKS
                self._tick()
                return 0.0
            self.at = self._last_tick + _TICK_SECONDS + self.limit
            if now <= self.at:
                return 0.0
            self._marks_until = now + _MARKED_SECONDS
            self.at = -math.inf
        if self._turn_began is None:
            self._turn_began = now
            self._loop.call_soon(self._end_turn)
        return now - self._turn_began

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
        self.at = -math.inf if is_marking else self._last_tick + _TICK_SECONDS + self.limit

    def _end_turn(self) -> None:
        self._turn_began = None
