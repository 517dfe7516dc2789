"""Limit the messages in flight, and avoid brokers that failed or were slow.

`InFlightLimit` is back-pressure: a producer faster than its brokers would otherwise fill memory
with unanswered requests. `BrokerFaults` follows RocketMQ's MQFaultStrategy: the slower a response,
the longer its broker is avoided; a failure counts as a response that took 30 s. A broker is
avoided only while there is another one.

Used by `producer` and `targets` on the producer's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

#: Seconds for which a broker is avoided, by least latency in seconds.
_AVOIDED_SECONDS: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))
_FAILURE_LATENCY_SECONDS: Final = 30.0
#: The least latency for which a broker is avoided.
MIN_AVOIDED_LATENCY_SECONDS: Final = 0.55


class InFlightLimit:
    """A cap on the messages in flight; waiting senders are served first come, first served."""

    __slots__ = ("_idle", "_in_flight", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._idle: asyncio.Future[None] | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_acquire(self, count: int) -> bool:
        """Count messages as in flight and return True, or return False if there is no room."""
        if self._waiting or (self._in_flight and self._in_flight + count > self._limit):
            return False
        self._in_flight += count
        return True

    async def acquire(self, count: int) -> None:
        """Wait for room, then count messages as in flight."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted in the loop iteration that cancelled the sender
                self.release(count)
            elif (count, turn) in self._waiting:
                self._waiting.remove((count, turn))
                self._admit()
            raise

    def release(self, count: int) -> None:
        """Count messages as answered or failed."""
        self._in_flight -= count
        if self._waiting:
            self._admit()
        if not self._in_flight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def wait_idle(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most `seconds`."""
        if self._in_flight:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=seconds)

    def _admit(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if self._in_flight and self._in_flight + count > self._limit:
                return
            self._waiting.popleft()
            if not turn.done():
                self._in_flight += count
                turn.set_result(None)


class BrokerFaults:
    """Avoided brokers by name. Times are the caller's `time.monotonic()`."""

    def __init__(self) -> None:
        self._avoided_until: dict[str, float] = {}

    def note(self, broker: str, latency: float, now: float) -> None:
        """Record a response after `latency` seconds."""
        seconds = next((time for least, time in _AVOIDED_SECONDS if latency >= least), 0.0)
        if seconds:
            self._avoided_until[broker] = now + seconds
        else:
            self._avoided_until.pop(broker, None)

    def note_failure(self, broker: str, now: float) -> None:
        """Record a failed connection or a missing response."""
        self.note(broker, _FAILURE_LATENCY_SECONDS, now)

    def forgive(self, broker: str) -> None:
        """Stop avoiding a broker that is reachable again (Java waits until the time is over)."""
        self._avoided_until.pop(broker, None)

    def __bool__(self) -> bool:
        return bool(self._avoided_until)

    def is_avoided(self, broker: str, now: float) -> bool:
        """Return whether another broker is preferable."""
        until = self._avoided_until.get(broker)
        if until is None:
            return False
        if until <= now:
            del self._avoided_until[broker]
            return False
        return True
