"""Pulls that found nothing wait here until a message arrives or their time is over.

`park` hangs a pull on its queue; the store tells of arrivals in watched queues
(`arrived`, in the middle of a chunk), and the parked pulls of such a queue run again
in the next turn of the loop. A tick looks for those whose time is over or whose
client has gone. A client that does not read what it was sent gets no more: its pulls
wait until it does.

Everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pyromq.protocol.frame import RawFrame
from pyromq.remoting.server import MAX_UNSENT, Connection
from pyromq.store.consume_queue import ConsumeQueue

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
    deadline: float = 0.0


class RunAgain(Protocol):
    """Runs a parked pull once more."""

    def __call__(self, parked: ParkedPull[Any], *, is_over: bool) -> bytes | None:
        """Its answer; None: it goes on waiting, which it may not when its time is over."""


class LongPoll:
    """The parked pulls of a broker."""

    def __init__(self) -> None:
        self._parked: dict[ConsumeQueue, list[ParkedPull[Any]]] = {}
        self._arrived: set[ConsumeQueue] = set()
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
            self._look(queue, all_over=True)

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(self, queue: ConsumeQueue, parked: ParkedPull[Any]) -> None:
        """Let a pull wait for the next message of `queue`."""
        assert self._loop is not None
        parked.deadline = self._loop.time() + parked.wait_seconds
        waiting = self._parked.setdefault(queue, [])
        waiting.append(parked)
        queue.watched = True
        if len(waiting) > _MAX_PER_QUEUE:
            self._run(waiting.pop(0), is_over=True)

    def arrived(self, queue: ConsumeQueue) -> None:
        """A message came to a watched queue; it can be read when the loop turns."""
        if not self._arrived and self._loop is not None:
            self._loop.call_soon(self._wake)
        self._arrived.add(queue)

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, set()
        for queue in arrived:
            self._look(queue)

    def _tick(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for queue, waiting in list(self._parked.items()):
            if any(parked.deadline <= now or parked.connection.closed for parked in waiting):
                self._look(queue)
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _look(self, queue: ConsumeQueue, *, all_over: bool = False) -> None:
        """Run every parked pull of a queue again; those without an answer stay."""
        assert self._loop is not None
        now = self._loop.time()
        waiting = self._parked.pop(queue, [])
        staying = []
        for parked in waiting:
            if parked.connection.closed:
                continue
            if parked.connection.unsent > MAX_UNSENT and not all_over:
                parked.deadline = now  # the next tick looks again
                staying.append(parked)
            elif not self._run(parked, is_over=all_over or parked.deadline <= now):
                staying.append(parked)
        if staying:
            self._parked.setdefault(queue, []).extend(staying)
        queue.watched = queue in self._parked

    def _run(self, parked: ParkedPull[Any], *, is_over: bool) -> bool:
        """Whether the pull is done with: it got its answer, or never will."""
        assert self.run_again is not None
        try:
            answer = self.run_again(parked, is_over=is_over)
        except Exception:
            # The pulls beside it must not suffer; its client asks again when it is closed.
            logger.exception(
                "%s: a waiting pull could not be answered: closed",
                parked.connection.remote_address,
            )
            parked.connection.close()
            return True
        if answer is not None:
            parked.connection.write(answer)
        return answer is not None
