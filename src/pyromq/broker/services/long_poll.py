"""Pulls that found nothing wait here until a message arrives or their time is over.

`park` hangs a pull on its queue; the store tells of arrivals in watched queues
(`arrived`, in the middle of a chunk), and the parked pulls of such a queue run again
from the next turn of the loop on. A tick looks for those whose time is over or whose
client has gone. A client that does not read what it was sent gets no more: its pulls
wait until it does.

Invariants
1. A parked pull is in three tables: by its queue, by its connection, and by the tick that
   ends its wait. `_remove` takes it out of all three.
2. Pulls run one at a time, in slices (`services.turns`), in the order in which they were
   woken. However many wait, the loop goes on beside them.
3. What waits is bounded by maxParkedPulls and maxParkedPullsPerConnection, and the expressions
   that pulls bring along by maxParkedExpressionSize.

Everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.turns import Turns
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RequestError
from pyromq.remoting.connection import MAX_UNSENT, Connection
from pyromq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.5
#: More pulls than this on one queue cannot be meant: the oldest is answered.
_MAX_PER_QUEUE: Final = 10_000

Pull = TypeVar("Pull")


@dataclass(slots=True, eq=False)
class ParkedPull(Generic[Pull]):
    """A pull that waits."""

    connection: Connection
    frame: RawFrame
    #: Where to look for messages from.
    offset: int
    wait_seconds: float
    #: What the pull handler knows about it.
    pull: Pull
    #: Characters of the expression that it brings along.
    weight: int = 0
    deadline: float = 0.0
    #: Where it waits; None when it does not.
    queue: ConsumeQueue | None = None
    #: The pulls whose wait ends with the same tick, this one among them.
    due: dict[ParkedPull[Any], None] | None = None
    #: Whether it will be looked at soon.
    is_woken: bool = False


class RunAgain(Protocol):
    """Runs a parked pull once more."""

    def __call__(self, parked: ParkedPull[Any], *, is_over: bool) -> bytes | None:
        """Return its answer, or None to keep waiting (not allowed when its time is over)."""


class LongPoll:
    """The parked pulls of a broker."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._config = config or BrokerConfig()
        #: What pulls cost together; the pull handler works by the same budget.
        self.turns = Turns()
        # Dictionaries without values are sets that keep their order.
        self._parked: dict[ConsumeQueue, dict[ParkedPull[Any], None]] = {}
        #: Of each connection that has had some, until it is closed.
        self._of: dict[Connection, set[ParkedPull[Any]]] = {}
        #: By the number of the tick that ends their wait.
        self._due: dict[int, dict[ParkedPull[Any], None]] = {}
        self._count = 0
        self._weight = 0
        self._arrived: set[ConsumeQueue] = set()
        self._woken: deque[ParkedPull[Any]] = deque()
        self._is_looking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Set by the pull handler.
        self.run_again: RunAgain | None = None
        #: The broker goes: nothing may wait any more.
        self.stopping = False

    def start(self) -> None:
        """Begin to look for pulls whose time is over."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def stop(self) -> None:
        """Answer every parked pull; the pull handler says how, as this is `stopping`."""
        self.stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for queue in list(self._parked):
            for parked in list(self._parked[queue]):
                if not parked.connection.closed:
                    self._run(parked, is_over=True)
                self._remove(parked)

    def __len__(self) -> int:
        return self._count

    def park(self, queue: ConsumeQueue, parked: ParkedPull[Any]) -> None:
        """Let a pull wait for the next message of `queue`. Raises RequestError when too many do."""
        assert self._loop is not None
        config = self._config
        own = self._of.get(parked.connection)
        if own is None:
            own = self._of[parked.connection] = set()
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

    def _refusal(self, parked: ParkedPull[Any], own: int) -> RequestError:
        config = self._config
        limit = config.max_parked_pulls_per_connection
        if own >= limit:
            fact, key = f"{own} pulls of this connection wait", "maxParkedPullsPerConnection"
        elif self._count >= config.max_parked_pulls:
            limit = config.max_parked_pulls
            fact, key = f"{self._count} pulls wait", "maxParkedPulls"
        else:
            limit = config.max_parked_expression_size
            fact = f"expressions of {self._weight} characters wait, this one has {parked.weight}"
            key = "maxParkedExpressionSize"
        # Told that nothing was found, a client would ask again at once; now it waits a while.
        return RequestError(ResponseCode.SYSTEM_BUSY, f"{fact}, limit {limit} ({key})")

    def arrived(self, queue: ConsumeQueue) -> None:
        """A message came to a watched queue; it can be read when the loop turns."""
        if self._loop is None:
            return
        self._arrived.add(queue)
        if not self._is_looking:
            self._is_looking = True
            self.turns.add(self._look_at_next)

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        number = int(now / _TICK_SECONDS)
        for due in [self._due.pop(tick) for tick in list(self._due) if tick <= number]:
            self._wake(due)
        for connection in [connection for connection in self._of if connection.closed]:
            self._wake(self._of[connection] or self._of.pop(connection))
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _wake(self, several: Iterable[ParkedPull[Any]]) -> None:
        """Have pulls looked at, each once, after those that were woken before."""
        for parked in several:
            if not parked.is_woken:
                parked.is_woken = True
                self._woken.append(parked)
        if not self._is_looking:
            self._is_looking = True
            self.turns.add(self._look_at_next)

    def _look_at_next(self) -> bool:
        """Look at the next woken pull; whether there are more."""
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
                self._look(parked)
        self._is_looking = bool(woken or self._arrived)
        return self._is_looking

    def _look(self, parked: ParkedPull[Any]) -> None:
        """Run a parked pull again; one without an answer stays."""
        assert self._loop is not None
        now = self._loop.time()
        connection = parked.connection
        if connection.closed:
            self._remove(parked)
        elif connection.unsent > MAX_UNSENT:
            self._set_deadline(parked, now)  # the next tick looks again
        elif self._run(parked, is_over=parked.deadline <= now):
            self._remove(parked)

    def _set_deadline(self, parked: ParkedPull[Any], deadline: float) -> None:
        if parked.due is not None:
            parked.due.pop(parked, None)
        parked.deadline = deadline
        tick = int(deadline / _TICK_SECONDS) + 1
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
        due[parked] = None
        parked.due = due

    def _remove(self, parked: ParkedPull[Any]) -> None:
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
        self._of[parked.connection].discard(parked)
        self._count -= 1
        self._weight -= parked.weight

    def _run(self, parked: ParkedPull[Any], *, is_over: bool) -> bool:
        """Whether the pull is done with: it got its answer, or never will."""
        assert self.run_again is not None
        try:
            answer = self.run_again(parked, is_over=is_over)
            if answer is not None:
                parked.connection.write(answer)
        except Exception:
            # The pulls beside it must not suffer; its client asks again when it is closed.
            logger.exception(
                "%s: a waiting pull could not be answered: closed",
                parked.connection.remote_address,
            )
            parked.connection.close()
            return True
        return answer is not None
