"""Back-pressure: how many messages may be on their way at once.

A producer that is faster than its brokers would fill the memory with what they have not
answered yet. Used by `producer`, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Gate:
    """Lets so many messages be on their way; others wait, first come, first served."""

    __slots__ = ("_empty", "_inside", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._empty: asyncio.Future[None] | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self, count: int) -> bool:
        """Whether the messages may go now; they are inside then."""
        if self._waiting or (self._inside and self._inside + count > self._limit):
            return False
        self._inside += count
        return True

    async def wait(self, count: int) -> None:
        """Come back when they may go."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # let in, in the very turn that gave up
                self.leave(count)
            elif (count, turn) in self._waiting:
                self._waiting.remove((count, turn))
                self._let_in()
            raise

    def leave(self, count: int) -> None:
        """They have arrived, or failed."""
        self._inside -= count
        if self._waiting:
            self._let_in()
        if not self._inside and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def wait_empty(self, seconds: float) -> None:
        """Wait until nothing is on its way, so long at most."""
        if self._inside:
            if self._empty is None or self._empty.done():
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._empty,), timeout=seconds)

    def _let_in(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if self._inside and self._inside + count > self._limit:
                return
            self._waiting.popleft()
            if not turn.done():
                self._inside += count
                turn.set_result(None)
