"""Keeps pulls that found nothing, and wakes them when a message arrives or their time is up.

`park` keeps a pull at its queue. The store reports arrivals in watched queues (`arrived`, in the
middle of a chunk); the pulls of such a queue are tried from the next loop iteration on. A tick
wakes pulls whose deadline has passed or whose connection has closed. A client that does not read
its responses gets no more until it does.

A kept pull completes itself (`ParkedPull`); `handlers.waiting_pull` implements it.

Invariants
1. A parked pull is in three tables: by queue, by connection, and by the tick of its deadline.
   `_remove` takes it out of all three.
2. Pulls are tried one at a time, in slices (`services.turns`), in the order in which they were
   woken, so that the loop stays responsive however many wait.
3. The number of parked pulls is capped by maxParkedPulls and maxParkedPullsPerConnection, the total
   length of their expressions by maxParkedExpressionSize.

Everything runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Final

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.turns import Turns
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError
from pyromq.remoting.connection import MAX_UNSENT, Connection
from pyromq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.5
#: Pulls on one queue; above that, the oldest expires.
_MAX_PER_QUEUE: Final = 10_000


class DelayedPull(ABC):
    """A pull that is answered later: once, by `try_complete` or `expire`, or never, by `cancel`."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @abstractmethod
    def try_complete(self) -> bool:
        """Write the response if the pull can be answered now; return False to keep waiting."""

    @abstractmethod
    def expire(self) -> None:
        """Write a response now: the pull may not wait any longer."""

    @abstractmethod
    def cancel(self) -> None:
        """Release what the pull holds: its connection is gone."""


class ParkedPull(DelayedPull):
    """A delayed pull that `LongPoll` keeps, with the bookkeeping of `LongPoll`."""

    __slots__ = ("deadline", "due", "is_woken", "queue", "wait_seconds", "weight")

    def __init__(self, connection: Connection, wait_seconds: float, *, weight: int = 0) -> None:
        super().__init__(connection)
        self.wait_seconds = wait_seconds
        #: Characters of the expression that the pull keeps.
        self.weight = weight
        self.deadline = 0.0
        #: The queue at which it is parked, or None.
        self.queue: ConsumeQueue | None = None
        #: The pulls whose deadline has the same tick, including this one.
        self.due: dict[ParkedPull, None] | None = None
        #: Whether it is about to be tried.
        self.is_woken = False


class LongPoll:
    """The parked pulls of a broker."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._config = config or BrokerConfig()
        #: The time budget that parked pulls share with those that have just arrived.
        self.turns = Turns()
        # Dictionaries without values are sets that keep their order.
        self._parked: dict[ConsumeQueue, dict[ParkedPull, None]] = {}
        #: Includes connections without parked pulls until they are closed.
        self._by_connection: dict[Connection, set[ParkedPull]] = {}
        #: By the number of the tick of their deadline.
        self._due: dict[int, dict[ParkedPull, None]] = {}
        self._count = 0
        self._weight = 0
        self._arrived: set[ConsumeQueue] = set()
        self._woken: deque[ParkedPull] = deque()
        self._is_trying = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Set when the broker stops: pulls must not wait any longer.
        self.stopping = False

    def start(self) -> None:
        """Start the ticks."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def stop(self) -> None:
        """Expire every parked pull."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for queue in list(self._parked):
            for parked in list(self._parked[queue]):
                if parked.connection.closed:
                    parked.cancel()
                else:
                    self._run(parked, is_over=True)
                self._remove(parked)

    def __len__(self) -> int:
        return self._count

    def park(self, queue: ConsumeQueue, parked: ParkedPull) -> None:
        """Keep a pull until the next message of `queue`. Raises RequestError above the limits."""
        assert self._loop is not None
        config = self._config
        own = self._by_connection.get(parked.connection)
        if own is None:
            own = self._by_connection[parked.connection] = set()
        if (
            len(own) >= config.max_parked_pulls_per_connection
            or self._count >= config.max_parked_pulls
            or (parked.weight and self._weight + parked.weight > config.max_parked_expression_size)
        ):
            raise self._refusal(parked, len(own))
        own.add(parked)
        parked.queue = queue
        waiting = self._parked.get(queue)
        if waiting is None:
            waiting = self._parked[queue] = {}
            queue.watched = True
        waiting[parked] = None
        wait = min(parked.wait_seconds, config.max_suspend_timeout_millis / 1000)
        self._set_deadline(parked, self._loop.time() + wait)
        self._count += 1
        self._weight += parked.weight
        if len(waiting) > _MAX_PER_QUEUE:
            oldest = next(iter(waiting))
            self._run(oldest, is_over=True)
            self._remove(oldest)

    def _refusal(self, parked: ParkedPull, own: int) -> RequestError:
        """Return SYSTEM_BUSY, which makes clients back off; PULL_NOT_FOUND would not."""
        config = self._config
        limit = config.max_parked_pulls_per_connection
        if own >= limit:
            fact, key = f"{own} pulls of this connection wait", "maxParkedPullsPerConnection"
        elif self._count >= config.max_parked_pulls:
            limit = config.max_parked_pulls
            fact, key = f"{self._count} pulls wait", "maxParkedPulls"
        else:
            limit = config.max_parked_expression_size
            fact = (
                f"waiting pulls hold expressions of {self._weight} characters, "
                f"this one has {parked.weight}"
            )
            key = "maxParkedExpressionSize"
        return RequestError(ResponseCode.SYSTEM_BUSY, f"{fact}, limit {limit} ({key})")

    def arrived(self, queue: ConsumeQueue) -> None:
        """Note a message in a watched queue; it is readable from the next loop iteration on."""
        if self._loop is None:
            return
        self._arrived.add(queue)
        if not self._is_trying:
            self._is_trying = True
            self.turns.add(self._try_next)

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        number = int(now / _TICK_SECONDS)
        for due in [self._due.pop(tick) for tick in list(self._due) if tick <= number]:
            self._wake(due)
        for connection in [each for each in self._by_connection if each.closed]:
            self._wake(self._by_connection[connection] or self._by_connection.pop(connection))
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _wake(self, several: Iterable[ParkedPull]) -> None:
        """Queue pulls to be tried, each once, after those already queued."""
        for parked in several:
            if not parked.is_woken:
                parked.is_woken = True
                self._woken.append(parked)
        if not self._is_trying:
            self._is_trying = True
            self.turns.add(self._try_next)

    def _try_next(self) -> bool:
        """Try the next woken pull; return whether there are more."""
        woken = self._woken
        if self._arrived:
            arrived, self._arrived = self._arrived, set()
            for queue in arrived:
                waiting = self._parked.get(queue)
                if waiting is None:
                    queue.watched = False
                else:
                    self._wake(waiting)
        if woken:
            parked = woken.popleft()
            parked.is_woken = False
            if parked.queue is not None:
                self._try(parked)
        self._is_trying = bool(woken or self._arrived)
        return self._is_trying

    def _try(self, parked: ParkedPull) -> None:
        """Complete, expire or cancel a pull; one that is not done stays."""
        assert self._loop is not None
        now = self._loop.time()
        connection = parked.connection
        if connection.closed:
            parked.cancel()
            self._remove(parked)
        elif connection.unsent > MAX_UNSENT:
            self._set_deadline(parked, now)  # try again at the next tick
        elif self._run(parked, is_over=parked.deadline <= now):
            self._remove(parked)

    def _run(self, parked: ParkedPull, *, is_over: bool) -> bool:
        """Return whether the pull is done with: answered, or failed and its connection closed."""
        try:
            if not is_over:
                return parked.try_complete()
            parked.expire()
        except Exception:
            # Other pulls must not suffer; the client retries over a new connection.
            logger.exception(
                "waiting pull of %s failed: connection closed", parked.connection.remote_address
            )
            parked.connection.close()
            parked.cancel()
        return True

    def _set_deadline(self, parked: ParkedPull, deadline: float) -> None:
        if parked.due is not None:
            parked.due.pop(parked, None)
        parked.deadline = deadline
        tick = int(deadline / _TICK_SECONDS) + 1
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
        due[parked] = None
        parked.due = due

    def _remove(self, parked: ParkedPull) -> None:
        queue = parked.queue
        if queue is None:
            return
        parked.queue = None
        if parked.due is not None:
            parked.due.pop(parked, None)
        waiting = self._parked[queue]
        del waiting[parked]
        if not waiting:
            del self._parked[queue]
            queue.watched = False
        self._by_connection[parked.connection].discard(parked)
        self._count -= 1
        self._weight -= parked.weight
