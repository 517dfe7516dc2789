"""Threads for handlers that are plain functions, so that they cannot block the event loop.

Unlike those of `concurrent.futures`, these threads do not keep the interpreter from ending,
and a function that never comes back does not cost a place: once its caller has given up, it
is replaced by another thread. Results come back to the event loop many at a time. And what
all those have in common who call functions of the application.

`run`, `close` on the event loop; `_work` in each thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class HandlerThreads:
    """At most `limit` threads that are of use, started when needed."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._done: deque[_Call] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_collecting = False
        #: Calls that somebody waits for; threads; those whose call was given up.
        self._open = self._count = self._stuck = 0

    async def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """The function's result, or what it raised."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        call = _Call(function, argument, loop.create_future())
        self._open += 1
        if self._open > self._count - self._stuck < self._limit:
            self._count += 1
            threading.Thread(
                target=self._work, name=f"{self._name}-handler-{self._count}", daemon=True
            ).start()
        self._calls.put(call)
        try:
            return await call.future
        except asyncio.CancelledError:
            if not call.is_collected:
                self._give_up(call)
            raise

    def close(self) -> None:
        """Each thread ends when it has nothing to do."""
        for _ in range(self._count):
            self._calls.put(None)
        self._count = 0

    # Helpers, in call order.

    def _work(self) -> None:
        _thread.is_handler = True
        while (call := self._calls.get()) is not None:
            if call.is_given_up:
                continue
            call.is_begun = True
            try:
                call.result = call.function(call.argument)
            except StopIteration as error:
                # asyncio cannot carry this one.
                call.error = RuntimeError(f"the handler raised {error!r}")
            except Exception as error:
                call.error = error
            except BaseException as error:
                # SystemExit and its like are for this thread, not for the event loop.
                call.error = RuntimeError(f"the handler raised {error!r}")
                call.error.__cause__ = error
            self._done.append(call)
            if not self._is_collecting:
                self._is_collecting = True
                assert self._loop is not None
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the event loop was closed: nobody waits any more

    def _collect(self) -> None:
        # First the flag: whoever finishes after the last look at `_done` calls again.
        self._is_collecting = False
        while self._done:
            call = self._done.popleft()
            call.is_collected = True
            if call.is_stuck:
                self._stuck -= 1
                if self._count > self._limit:
                    self._count -= 1
                    self._calls.put(None)
            elif not call.is_given_up:
                self._open -= 1
            if not call.future.done():
                if call.error is None:
                    call.future.set_result(call.result)
                else:
                    call.future.set_exception(call.error)

    def _give_up(self, call: _Call) -> None:
        call.is_given_up = True
        self._open -= 1
        if call.is_begun:
            call.is_stuck = True
            self._stuck += 1
            logger.warning(
                "%r of group %s does not come back: its thread is left alone",
                call.function,
                self._name,
            )


async def call_in_thread(
    function: Callable[[Any], Any], argument: Any, threads: HandlerThreads
) -> Any:
    """A plain function's result; what it has made to be awaited, is."""
    result = await threads.run(function, argument)
    return await result if inspect.isawaitable(result) else result


def is_coroutine_function(function: Callable[[Any], Any]) -> bool:
    """Whether calling it runs nothing yet: it may be called on the event loop."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


def failure_of(error: BaseException) -> Exception:
    """What ended a function of the application, as its failure; raised again if we ended it."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        # For the event loop; the worker that has met it goes on as long as that does.
        asyncio.get_running_loop().call_soon(_raise, error)
    else:
        raise error
    return RuntimeError(f"the handler raised {error!r}")


def _raise(error: BaseException) -> None:
    raise error


def is_handler_thread() -> bool:
    """Whether it is a handler that asks."""
    return getattr(_thread, "is_handler", False)


_thread = threading.local()


class _Call:
    __slots__ = (
        "argument",
        "error",
        "function",
        "future",
        "is_begun",
        "is_collected",
        "is_given_up",
        "is_stuck",
        "result",
    )

    def __init__(
        self, function: Callable[[Any], Any], argument: Any, future: asyncio.Future[Any]
    ) -> None:
        self.function = function
        self.argument = argument
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None
        self.is_begun = self.is_collected = self.is_given_up = self.is_stuck = False
