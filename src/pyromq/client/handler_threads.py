"""Run the application's plain functions in threads, so that they cannot block the event loop.

Unlike the threads of `concurrent.futures`, these do not keep the interpreter from exiting, and a
function that never returns does not occupy a slot: once its caller stops waiting, another thread
takes its place. The event loop collects many results per iteration. The module also holds the
helpers shared by all code that calls functions of the application.

`run` and `close` belong to the event loop, `_work` to each thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)


class HandlerThreads:
    """A pool of at most `limit` threads that are not stuck, started on demand."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._done: deque[_Call] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_collecting = False
        #: Calls with a waiting caller; threads; threads stuck in an abandoned call.
        self._open = self._count = self._stuck = 0

    async def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Return the function's result, or raise its exception."""
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
                self._abandon(call)
            raise

    def close(self) -> None:
        """End each thread once it is idle."""
        for _ in range(self._count):
            self._calls.put(None)
        self._count = 0

    # Helpers, in call order.

    def _work(self) -> None:
        _thread.is_handler = True
        while (call := self._calls.get()) is not None:
            if call.is_abandoned:
                continue
            call.is_begun = True
            try:
                call.result = call.function(call.argument)
            except StopIteration as error:
                # A future cannot hold a StopIteration.
                call.error = RuntimeError(f"the handler raised {error!r}")
            except Exception as error:
                call.error = error
            except BaseException as error:
                # A SystemExit must not reach the event loop.
                call.error = RuntimeError(f"the handler raised {error!r}")
                call.error.__cause__ = error
            self._done.append(call)
            if not self._is_collecting:
                self._is_collecting = True
                assert self._loop is not None
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the event loop is closed: no caller is left

    def _collect(self) -> None:
        # Clear the flag first: a call that ends after the last check of `_done` schedules again.
        self._is_collecting = False
        while self._done:
            call = self._done.popleft()
            call.is_collected = True
            if call.is_stuck:
                self._stuck -= 1
                if self._count > self._limit:
                    self._count -= 1
                    self._calls.put(None)
            elif not call.is_abandoned:
                self._open -= 1
            if not call.future.done():
                if call.error is None:
                    call.future.set_result(call.result)
                else:
                    call.future.set_exception(call.error)

    def _abandon(self, call: _Call) -> None:
        call.is_abandoned = True
        self._open -= 1
        if call.is_begun:
            call.is_stuck = True
            self._stuck += 1
            logger.warning(
                "%r of group %s did not return in time: abandoning its thread",
                call.function,
                self._name,
            )


async def call_in_thread(
    function: Callable[[Any], Any],
    argument: Any,
    threads: HandlerThreads,
    *,
    with_context: bool = False,
) -> Any:
    """Call a plain function in a thread and return its result, awaited if it is awaitable.

    With `with_context` it sees the context variables of the calling task.
    """
    if with_context:
        run: Callable[..., Any] = copy_context().run
        function = partial(run, function)
    result = await threads.run(function, argument)
    return await result if inspect.isawaitable(result) else result


def is_coroutine_function(function: Callable[[Any], Any]) -> bool:
    """Return whether calling the function only creates a coroutine, which the loop can run."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


def failure_of(error: BaseException) -> Exception:
    """Return an error of the application's function as an Exception.

    Re-raises the cancellation of the current task, and passes SystemExit and KeyboardInterrupt on
    to the event loop.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        # The event loop gets it; this worker continues for as long as the loop does.
        asyncio.get_running_loop().call_soon(_raise, error)
    else:
        raise error
    return RuntimeError(f"the handler raised {error!r}")


def _raise(error: BaseException) -> None:
    raise error


def is_handler_thread() -> bool:
    """Return whether the caller runs in a handler's thread."""
    return getattr(_thread, "is_handler", False)


_thread = threading.local()


class _Call:
    __slots__ = (
        "argument",
        "error",
        "function",
        "future",
        "is_abandoned",
        "is_begun",
        "is_collected",
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
        self.is_begun = self.is_collected = self.is_abandoned = self.is_stuck = False
