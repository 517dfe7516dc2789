"""The TLS handshakes in progress on all ports of a process: bounded, and off the event loop.

A handshake costs a signature, about a millisecond with an RSA key. A thread does it, so that a
thousand clients that connect at once delay no request; OpenSSL releases the GIL meanwhile. The
thread takes one step at a time, in the order of arrival.

Above `max_pending` handshakes the one that began first is closed: a real client needs
milliseconds, so the oldest one belongs to a peer that stalls.

`Handshakes` is used on the loop; the functions that it runs are called in its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

Outcome = TypeVar("Outcome")


class Pending(Protocol):
    """A connection whose handshake has not ended."""

    def give_up(self, reason: str) -> None:
        """Close the connection."""


class Handshakes:
    """Counts handshakes and runs their steps."""

    def __init__(self, max_pending: int, seconds: float) -> None:
        self.max_pending = max_pending
        #: The time that a handshake may take.
        self.seconds = seconds
        #: Handshakes that ended well, and those that did not.
        self.completed = self.failed = 0
        self._pending: dict[Pending, None] = {}
        self._executor: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, connection: Pending) -> None:
        """Count a handshake, and make room for it."""
        if len(self._pending) >= self.max_pending:
            oldest = next(iter(self._pending))
            oldest.give_up(f"{self.max_pending} handshakes in progress (maxTlsHandshakes)")
        self._pending[connection] = None

    def end(self, connection: Pending, *, is_good: bool) -> None:
        """Forget a handshake. Idempotent."""
        if connection in self._pending:
            del self._pending[connection]
            self.completed += is_good
            self.failed += not is_good

    def run(self, step: Callable[[], Outcome], then: Callable[[Outcome], None]) -> None:
        """Run `step` in the thread, and `then` with its result on the loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "pyromq-tls")
        loop = asyncio.get_running_loop()

        def done(future: Future[Outcome]) -> None:
            if not future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(then, future.result())

        self._executor.submit(step).add_done_callback(done)

    def stop(self) -> None:
        """End the thread without waiting for it. Idempotent."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
