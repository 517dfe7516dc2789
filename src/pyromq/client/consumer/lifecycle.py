"""The states of a consumer, and the legal transitions between them.

    NEW -> STARTING -> RUNNING -> CLOSING -> CLOSED
    NEW, STARTING --------------> CLOSING           closed early, or the start failed

A consumer starts once and closes once. Every call of `close` shares one task, which finishes
even if all its callers are cancelled. Used by the push and the lite pull consumer, on their
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, Final

from pyromq.client.errors import ClientStateError


class State(Enum):
    """A stage in the life of a consumer."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


_LEGAL: Final = {
    State.NEW: {State.STARTING, State.CLOSING},
    State.STARTING: {State.RUNNING, State.CLOSING},
    State.RUNNING: {State.CLOSING},
    State.CLOSING: {State.CLOSED},
    State.CLOSED: set[State](),
}


class Lifecycle:
    """The state of one consumer."""

    def __init__(self) -> None:
        self.state = State.NEW
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing is not None

    def begin_start(self) -> bool:
        """Move to STARTING, or return False if the consumer runs already.

        Raises ClientStateError if it was closed, or if another task is starting it.
        """
        if self.state is State.RUNNING:
            return False
        if self.is_closing:
            raise ClientStateError("this client is closed: create a new one")
        if self.state is State.STARTING:
            raise ClientStateError("another task is starting this client: call start() once")
        self._move(State.STARTING)
        return True

    def end_start(self) -> bool:
        """Move to RUNNING, or return False if the consumer was closed meanwhile."""
        if self.is_closing:
            return False
        self._move(State.RUNNING)
        return True

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Return the task that closes the consumer; the first call starts `work` in it.

        Callers shield the task, so that a cancelled caller does not leave a half-closed consumer.
        """
        if self._closing is None:
            self._move(State.CLOSING)
            self._closing = asyncio.create_task(self._run_close(work))
        return self._closing

    async def until_closed(self) -> None:
        """Wait until the consumer is CLOSED."""
        await self._closed.wait()

    async def _run_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        finally:
            self._move(State.CLOSED)
            self._closed.set()

    def _move(self, new: State) -> None:
        if new not in _LEGAL[self.state]:
            raise ClientStateError(f"illegal transition from {self.state.value} to {new.value}")
        self.state = new
