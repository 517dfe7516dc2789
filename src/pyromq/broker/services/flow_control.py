"""Flow control: lanes for slow work, and refusal of requests that waited too long.

RocketMQ gives every request family a thread pool with a bounded queue. Here the loop serves quick
requests itself, and a `Lane` takes the rest: index lookups, scans over many topics, disk reads. A
lane has a few threads, started on demand, and a bounded queue, so slow requests of one family never
delay another, and sends never wait for any of them.

Invariants
1. At most `capacity` requests wait in a lane, with bodies of at most `MAX_WAITING_SIZE` together;
   further ones are refused with [OVERLOAD].
2. If a lane has a wait limit, a request that exceeds it is refused with [TIMEOUT_CLEAN_QUEUE] and
   never started, even if every thread is stuck.
3. Everything but the work itself runs on the loop, so no lock is needed.
4. However many requests wait for a whole table, at most two snapshots of it exist (`SharedBody`):
   the one being encoded and the next.

Requests that the loop serves have no queue but the socket buffers: they wait there, and for other
requests of the same loop iteration. `FastFailure` refuses those that waited too long, with the
remarks of RocketMQ's BrokerFastFailure.

The broker's tables belong to the loop: take what the work needs from them before submitting it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from time import monotonic
from typing import Any, Final, TypeVar

from pyromq.base.sizes import MIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.routes import Pool, Route, Routes, wrapped
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RemotingCommand, RequestError, command_from
from pyromq.remoting.connection import Connection, Handler, HotHandler
from pyromq.remoting.runs import wants_answer
from pyromq.remoting.service import Result
from pyromq.store.config import MessageStoreConfig
from pyromq.store.growth import Growth

logger = logging.getLogger(__name__)

T = TypeVar("T")
AsyncHandler = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand | None]]

#: Bytes of the requests that may wait in a lane.
MAX_WAITING_SIZE: Final = 256 * MIB
OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
REJECT_REQUEST: Final = "[REJECTREQUEST]system busy, start flow control for a while"
#: RocketMQ queues any number of admin requests, whose callers then time out.
_ADMIN_CAPACITY: Final = 10_000
#: Enough to keep a disk busy; work that computes holds the GIL and gains nothing from more.
_DISK_THREADS: Final = 4
_THREADS: Final = 2
#: Concurrent scans over many queues; they share the loop anyway.
_MAX_CONCURRENT_SCANS: Final = 4
#: Refusals come in bursts: they are logged as one line per this many seconds.
_REPORT_SECONDS: Final = 10.0


class Lanes:
    """The lanes of a broker, with the names and capacities of RocketMQ's thread pools."""

    def __init__(self, config: BrokerConfig) -> None:
        self.send = Lane("send", config.send_thread_pool_queue_capacity)
        self.pull = Lane("pull", config.pull_thread_pool_queue_capacity, threads=_DISK_THREADS)
        self.query = Lane("query", config.query_thread_pool_queue_capacity, threads=_DISK_THREADS)
        self.admin = Lane("admin", _ADMIN_CAPACITY, threads=_DISK_THREADS)
        self.heartbeat = Lane("heartbeat", config.heartbeat_thread_pool_queue_capacity)
        self.end_transaction = Lane("end-transaction", config.end_transaction_pool_queue_capacity)
        self.set_limits(config)

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply the wait limits of changed settings."""
        for lane, milliseconds in (
            (self.send, config.wait_time_mills_in_send_queue),
            (self.pull, config.wait_time_mills_in_pull_queue),
            (self.heartbeat, config.wait_time_mills_in_heartbeat_queue),
            (self.end_transaction, config.wait_time_mills_in_transaction_queue),
        ):
            lane.wait_limit_ms = milliseconds if config.broker_fast_failure_enable else None

    @property
    def all(self) -> list[Lane]:
        """Return every lane."""
        return [lane for lane in vars(self).values() if isinstance(lane, Lane)]

    async def stop(self) -> None:
        """Cancel waiting requests and wait until all threads have ended."""
        await asyncio.gather(*(lane.stop() for lane in self.all))


class _Waiting:
    """A request in a lane's queue."""

    __slots__ = ("result", "since", "size", "work")

    def __init__(
        self, work: Callable[[], Any], result: asyncio.Future[Any], since: float, size: int
    ) -> None:
        self.work = work
        self.result = result
        self.since = since
        self.size = size


class Lane:
    """A bounded queue with its own threads."""

    def __init__(
        self, name: str, capacity: int, *, threads: int = _THREADS, wait_limit_ms: int | None = None
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.wait_limit_ms = wait_limit_ms
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_size = 0
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def size(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    @property
    def head_wait_ms(self) -> int:
        """Return how long the first of them has waited; 0 if none waits."""
        if not self._waiting:
            return 0
        return _milliseconds(asyncio.get_running_loop().time() - self._waiting[0].since)

    async def run(self, work: Callable[[], T], size: int = 0) -> T:
        """Run `work` in a thread of this lane. Raises RequestError if the queue is full.

        `size` is the number of bytes held for it while it waits.
        """
        return await self.submit(work, size)

    def submit(self, work: Callable[[], T], size: int = 0) -> asyncio.Future[T]:
        """Like `run`, but return a future. Raises RequestError if the queue is full."""
        if self._stopped:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "the broker is stopping")
        if self._running >= self._threads and (
            len(self._waiting) >= self.capacity or self._waiting_size + size > MAX_WAITING_SIZE
        ):
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._waiting.append(_Waiting(work, result, loop.time(), size))
        self._waiting_size += size
        if self._running < self._threads:
            self._begin_next(loop)
        elif self._timer is None and self.wait_limit_ms is not None:
            self._timer = loop.call_later(self.wait_limit_ms / 1000, self._clean, loop)
        return result

    async def stop(self) -> None:
        """Cancel waiting requests and wait until all threads have ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._pop().result.cancel()
        if self._executor is not None:
            await asyncio.to_thread(self._executor.shutdown)

    def _begin_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the first request that is still wanted."""
        while self._waiting:
            waiting = self._pop()
            if waiting.result.done():  # the caller has gone
                continue
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self._threads, thread_name_prefix=f"pyromq-{self.name}"
                )
            self._running += 1
            done = self._executor.submit(waiting.work)
            done.add_done_callback(partial(self._report, loop, waiting.result))
            return

    def _pop(self) -> _Waiting:
        first = self._waiting.popleft()
        self._waiting_size -= first.size
        return first

    def _report(
        self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any], done: Future[Any]
    ) -> None:
        """Notify the loop, from the lane's thread."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, loop, result, done)

    def _finish(
        self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[Any], done: Future[Any]
    ) -> None:
        self._running -= 1
        if not self._stopped:
            self._begin_next(loop)
        if result.done():
            return
        error = done.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(done.result())

    def _clean(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse requests that have waited too long; run again when the next one will have."""
        self._timer = None
        while self._waiting and self.wait_limit_ms is not None:
            first = self._waiting[0]
            waited = _milliseconds(loop.time() - first.since)
            if waited < self.wait_limit_ms and not first.result.done():
                self._timer = loop.call_at(
                    first.since + (self.wait_limit_ms + 1) / 1000, self._clean, loop
                )
                return
            self._pop()
            if not first.result.done():
                first.result.set_exception(waited_too_long(waited, len(self._waiting)))


class Admission:
    """Caps the concurrent requests of a kind that each hold much memory.

    A waiting request holds nothing but itself.
    """

    def __init__(
        self, concurrent: int = _MAX_CONCURRENT_SCANS, capacity: int = _ADMIN_CAPACITY
    ) -> None:
        self._slots = asyncio.Semaphore(concurrent)
        self._capacity = capacity
        self._waiting = 0

    def of(self, handler: AsyncHandler) -> AsyncHandler:
        """Return a handler that waits for a slot; [OVERLOAD] refuses too many waiting requests."""

        @wraps(handler, assigned=(), updated=())  # so that `inspect.unwrap` finds it
        async def admitted(
            connection: Connection, request: RemotingCommand
        ) -> RemotingCommand | None:
            if self._waiting >= self._capacity:
                raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
            try:
                return await handler(connection, request)
            finally:
                self._slots.release()

        return admitted


class SharedBody:
    """The body of a response, encoded once for all requests that wait for it.

    A body is never older than its request. At most two are being encoded: one that was started
    before the last request arrived, and the next one. Nothing is cached when no request waits:
    tables are large and may be requested only once.
    """

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, bytes]],
        version: Callable[[], object] | None = None,
    ) -> None:
        """`version` returns another value after each change; without it, no body is reused."""
        self._make = make
        self._version = version
        self._current: asyncio.Task[bytes] | None = None
        self._current_version: object = None
        self._next: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """Return the body. Raises the exception of `make`."""
        body = self._next
        if body is None:
            body = self._current
            if body is None:
                body = self._begin()
            elif self._version is None or self._version() != self._current_version:
                body = self._next = asyncio.create_task(self._after(body))
                body.add_done_callback(_retrieve)
        # Shielded: a cancelled request must not cancel the others.
        return await asyncio.shield(body)

    def _begin(self) -> asyncio.Task[bytes]:
        self._current_version = None if self._version is None else self._version()
        self._current = asyncio.create_task(self._make())
        self._current.add_done_callback(self._ended)
        return self._current

    async def _after(self, current: asyncio.Task[bytes]) -> bytes:
        await asyncio.wait((current,))
        self._next = None
        return await asyncio.shield(self._current or self._begin())

    def _ended(self, ended: asyncio.Task[bytes]) -> None:
        _retrieve(ended)
        if self._current is ended:
            self._current = None


def _retrieve(ended: asyncio.Task[bytes]) -> None:
    """Mark an exception as retrieved, even if every caller has gone."""
    if not ended.cancelled():
        ended.exception()


class FastFailure:
    """Refuses requests that waited too long for the loop.

    The producer of a send that waited that long has most likely timed out and sent the message
    elsewhere: storing it now would make a duplicate and delay the requests after it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        pools: Mapping[int, Pool],
        growth: Growth | None = None,
    ) -> None:
        """`pools` names the pool of each request code that has one.

        `growth` tells when it last took long to make room in the log.
        """
        self._growth = Growth() if growth is None else growth
        self._pools = pools
        self._page_cache_limit = store_config.os_page_cache_busy_time_out_mills / 1000
        #: Refusals since the last log line.
        self._refused = 0
        self._last_line = -_REPORT_SECONDS
        #: When the last append ended that was slowed down by the page cache.
        self._busy_until = -math.inf
        self.set_limits(config)

    def set_limits(self, config: BrokerConfig) -> None:
        """Apply the limits of changed settings."""
        self._enabled = config.broker_fast_failure_enable
        self._limits: dict[int, float] = {}
        if self._enabled:
            seconds = {
                Pool.SEND: config.wait_time_mills_in_send_queue / 1000,
                Pool.PULL: config.wait_time_mills_in_pull_queue / 1000,
                Pool.HEARTBEAT: config.wait_time_mills_in_heartbeat_queue / 1000,
                Pool.TRANSACTION: config.wait_time_mills_in_transaction_queue / 1000,
            }
            self._limits = {code: seconds[pool] for code, pool in self._pools.items()}
        #: No request that waited less is refused.
        self.shortest_limit = min(self._page_cache_limit, *self._limits.values(), 3600.0)

    def timed(self, end_chunk: Callable[[], T]) -> Callable[[], T]:
        """Return `end_chunk`, which appends to the log, with its duration measured."""
        limit = self._page_cache_limit

        def timed_end_chunk() -> T:
            began = monotonic()
            outcome = end_chunk()
            ended = monotonic()
            if ended - began > limit:
                self._busy_until = ended
                logger.warning(
                    "page cache is busy: an append took %.1f s, limit %g s; sends that waited are "
                    "refused",
                    ended - began,
                    limit,
                )
            return outcome

        return timed_end_chunk

    def refuse(self, code: int, waited: float, queue_size: int) -> RequestError | None:
        """Return the refusal of a request, or None; see `LatePolicy`."""
        refusal = self._refusal_of(code, waited, queue_size)
        if refusal is not None:
            self._refused += 1
            now = monotonic()
            if now - self._last_line >= _REPORT_SECONDS:
                logger.warning(
                    "refused %d requests that waited too long, the last one %.1f s: the broker is "
                    "overloaded; add brokers, or raise the waitTimeMillsIn... settings",
                    self._refused,
                    waited,
                )
                self._refused, self._last_line = 0, now
        return refusal

    def _refusal_of(self, code: int, waited: float, queue_size: int) -> RequestError | None:
        if self._pools.get(code) is Pool.SEND and (
            max(self._busy_until, self._growth.busy_until) >= monotonic() - waited
        ):
            if not self._enabled:
                return RequestError(ResponseCode.SYSTEM_BUSY, REJECT_REQUEST)
            return _refusal("PCBUSY_CLEAN_QUEUE", _milliseconds(waited), queue_size)
        limit = self._limits.get(code)
        if limit is None or waited < limit:
            return None
        return waited_too_long(_milliseconds(waited), queue_size)


def reject_sends_while(routes: Routes, is_deficient: Callable[[], bool]) -> Routes:
    """Answer sends with [REJECTREQUEST] while the store cannot take them quickly.

    Only for stores with a transient pool, because it costs each run of sends a call.
    """

    def guarded(route: Route) -> Route:
        if route.pool is not Pool.SEND:
            return route
        plain, hot = route.plain, route.hot
        return dataclasses.replace(
            route,
            plain=None if plain is None else _guarded(plain, is_deficient),
            hot=None if hot is None else wrapped(hot, lambda run: _guarded_hot(run, is_deficient)),
        )

    return routes.changed(guarded)


def _guarded(handler: Handler, is_deficient: Callable[[], bool]) -> Handler:
    def send(connection: Connection, request: RemotingCommand) -> Result:
        if is_deficient():
            raise RequestError(ResponseCode.SYSTEM_BUSY, REJECT_REQUEST)
        return handler(connection, request)

    return send


def _guarded_hot(handler: HotHandler, is_deficient: Callable[[], bool]) -> HotHandler:
    def send(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        if not is_deficient():
            handler(connection, frames, answers)
            return
        for frame in frames:
            if wants_answer(frame):
                request = command_from(frame)
                refused = request.answer(ResponseCode.SYSTEM_BUSY, REJECT_REQUEST)
                answers.append(refused.encode())

    return send


def refuse_sends(routes: Routes) -> Routes:
    """Refuse all sends, so that producers move to another broker while this one stops."""

    def refuse(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")

    return routes.changed(
        lambda route: (
            dataclasses.replace(route, plain=refuse, hot=None) if route.pool is Pool.SEND else route
        )
    )


def waited_too_long(waited_ms: int, queue_size: int) -> RequestError:
    """Return the refusal of a request that waited too long."""
    return _refusal("TIMEOUT_CLEAN_QUEUE", waited_ms, queue_size)


def _refusal(reason: str, waited_ms: int, queue_size: int) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_BUSY,
        f"[{reason}]broker busy, start flow control for a while, "
        f"period in queue: {waited_ms}ms, size of queue: {queue_size}",
    )


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
