"""What the responses of a chunk wait for, and how that ended.

With SYNC_FLUSH they wait for the fsync of the chunk, with SYNC_MASTER for a replica that has it,
with both for both at the same time. There is one waiter per chunk, whatever its number of messages.
With neither, nothing waits and a chunk costs nothing here.

`OffsetWaiters` serves both kinds: `store.flush` and `replication.acknowledged` each have one.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol


class AckOutcome(Enum):
    """How the wait of a chunk ended."""

    #: On disk, on a replica, or both, as the settings ask for.
    STORED = auto()
    FLUSH_TIMED_OUT = auto()
    FLUSH_FAILED = auto()
    REPLICA_TIMED_OUT = auto()
    #: No replica is connected, or all lag too far behind.
    NO_REPLICA = auto()
    #: The raft group has not committed it in time; it may do so later.
    QUORUM_TIMED_OUT = auto()
    #: This broker no longer leads its raft group, which may or may not keep the messages.
    LEADERSHIP_LOST = auto()


class OffsetGate(Protocol):
    """Something that lets a chunk pass when it has everything below an offset."""

    def wait(self, offset: int) -> asyncio.Future[AckOutcome]:
        """Return a future that is done when everything below `offset` may pass, or on timeout."""


class Acknowledgements:
    """The gates that a chunk must pass before its responses leave."""

    __slots__ = ("_flush", "_replicas")

    def __init__(self, flush: OffsetGate | None = None) -> None:
        """`flush` is the gate of SYNC_FLUSH; None with ASYNC_FLUSH."""
        self._flush = flush
        self._replicas: OffsetGate | None = None

    def require_replicas(self, replicas: OffsetGate | None) -> None:
        """Let chunks wait for a replica from now on, or no longer."""
        self._replicas = replicas

    @property
    def gate(self) -> Callable[[int], asyncio.Future[AckOutcome]] | None:
        """Return the function that a chunk calls with its end, or None if nothing waits."""
        flush, replicas = self._flush, self._replicas
        if flush is None:
            return None if replicas is None else replicas.wait
        return flush.wait if replicas is None else self._wait_for_both

    def _wait_for_both(self, offset: int) -> asyncio.Future[AckOutcome]:
        """Wait for fsync and replica in parallel; a missing replica outweighs a late fsync."""
        assert self._flush is not None
        assert self._replicas is not None
        flushed, replicated = self._flush.wait(offset), self._replicas.wait(offset)
        both: asyncio.Future[AckOutcome] = asyncio.get_running_loop().create_future()

        def one_is_done(_: object) -> None:
            if flushed.done() and replicated.done() and not both.done():
                outcome = replicated.result()
                both.set_result(flushed.result() if outcome is AckOutcome.STORED else outcome)

        flushed.add_done_callback(one_is_done)
        replicated.add_done_callback(one_is_done)
        return both


class _Waiter(NamedTuple):
    offset: int
    deadline: float
    future: asyncio.Future[AckOutcome]


class OffsetWaiters:
    """Chunks that wait until a watermark reaches their end, in the order of their ends."""

    def __init__(self, mark: Callable[[], int], timed_out: AckOutcome) -> None:
        """`mark` returns the watermark; `timed_out` is the outcome after a deadline."""
        self._mark = mark
        self._timed_out = timed_out
        self._waiting: deque[_Waiter] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: AckOutcome | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, offset: int, seconds: float) -> asyncio.Future[AckOutcome]:
        """Return a future that is done when the watermark reaches `offset`, or after `seconds`."""
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[AckOutcome] = loop.create_future()
        self._waiting.append(_Waiter(offset, loop.time() + seconds, future))
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._check_deadlines)
        if self._failure is not None:
            loop.call_soon(self.notify)
        return future

    def fail(self, outcome: AckOutcome) -> None:
        """Resolve all waiters below the watermark as usual, all others with `outcome`, for good."""
        self._failure = outcome

    def abandon(self, outcome: AckOutcome) -> None:
        """Resolve all that wait now: below the watermark as usual, all others with `outcome`."""
        self.notify()
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.future.done():
                waiter.future.set_result(outcome)

    def notify(self) -> None:
        """Resolve the waiters that the watermark has reached, or whose time is over."""
        mark, waiting = self._mark(), self._waiting
        now = self._loop.time() if self._loop is not None else 0.0
        while waiting:
            offset, deadline, future = waiting[0]
            if offset <= mark:
                outcome = AckOutcome.STORED
            elif self._failure is not None:
                outcome = self._failure
            elif deadline <= now:
                outcome = self._timed_out
            else:
                break
            waiting.popleft()
            if not future.done():
                future.set_result(outcome)

    def notify_from_thread(self) -> None:
        """Call `notify` on the loop, if anything waits. Any thread."""
        if self._waiting and self._loop is not None:
            self._loop.call_soon_threadsafe(self.notify)

    def _check_deadlines(self) -> None:
        self._timer = None
        self.notify()
        if self._waiting and self._loop is not None:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._check_deadlines)
