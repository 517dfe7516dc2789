"""Run an event loop in a thread, for programs that have none.

All synchronous clients of a process share `shared_loop`. The first call starts it, and it stops at
the exit of the interpreter without delaying that. A forked child has only the thread that forked,
so it starts a loop of its own and never touches the inherited one, whose sockets and poller are
still the parent's.

Used by `sync` and `pyromq.testing`, from any thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from pyromq.client.errors import ClientStateError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
#: Time limit of `stop` for the thread to end.
_STOP_SECONDS = 5.0
#: Longest uninterrupted wait, see `_Waiting.wait`.
_MAX_WAIT_SECONDS = 0.5


class LoopThread:
    """A thread that runs coroutines for other threads until `stop`, on uvloop if installed."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._is_stopping = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
        """Run a coroutine and return its result, or raise its exception.

        Raises TimeoutError after `timeout` seconds. A timeout or Ctrl-C cancels the coroutine.
        """
        self._check(coroutine)
        waiting = _Waiting(coroutine)
        try:
            self.loop.call_soon_threadsafe(waiting.begin, self.loop)
            if waiting.wait(timeout):
                return waiting.task.result()
        except BaseException:
            # Ctrl-C: the result is no longer wanted.
            self._cancel(waiting)
            raise
        self._cancel(waiting)
        raise TimeoutError(f"no result within {timeout:g} s")

    async def run_from_loop(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine for a task of another event loop."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def submit(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start a coroutine and return a future for its result.

        Raises ClientStateError on the loop's own thread, which would wait for itself.
        """
        self._check(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def check_thread(self) -> None:
        """Raise ClientStateError on the loop's own thread, and in a forked child."""
        if self._process != os.getpid():
            raise ClientStateError(
                f"this event loop runs in process {self._process}, and this is a fork of it"
            )
        if threading.current_thread() is self._thread:
            raise ClientStateError(
                "a synchronous client was called on the event loop that serves it and would wait "
                "forever: use the asynchronous client in coroutines, or make the handler a plain "
                "function"
            )

    def stop(self) -> None:
        """Cancel all tasks and end the thread."""
        self._is_stopping = True
        if self._process == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_SECONDS)

    def _work(self) -> None:
        try:
            self._run_forever()
            self.loop.run_until_complete(self._end())
        finally:
            self.loop.close()

    def _run_forever(self) -> None:
        while not self._is_stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Event loops let these through. The other coroutines must continue.
                logger.exception("a coroutine on the client's loop tried to exit the process")

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()

    def _check(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self.check_thread()
        except ClientStateError:
            coroutine.close()
            raise

    def _cancel(self, waiting: _Waiting[Any]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(waiting.cancel)


class _Waiting(Generic[_Result]):
    """A coroutine and the thread that waits for it.

    Not a `concurrent.futures.Future`: Ctrl-C at the wrong instant leaves its lock held, and the
    loop then waits for it forever.
    """

    __slots__ = ("_coroutine", "done", "task")

    task: asyncio.Task[_Result]

    def __init__(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._coroutine = coroutine
        self.done = threading.Lock()
        self.done.acquire()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the coroutine at most `timeout` seconds, and return whether it ended.

        The wait is split: a Ctrl-C that arrives just before the system call is noticed after it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _MAX_WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if self.done.acquire(timeout=max(0.0, min(left, _MAX_WAIT_SECONDS))):
                return True
            if deadline is not None and left <= 0:
                return False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task = loop.create_task(self._coroutine)
        self.task.add_done_callback(self._finish)

    def cancel(self) -> None:
        self.task.cancel()

    def _finish(self, task: asyncio.Task[_Result]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if no thread waits any more
        self.done.release()


def shared_loop() -> LoopThread:
    """Return the loop of all synchronous clients of this process, started if necessary."""
    global _shared
    found = _shared
    if found is None:
        with _lock:
            if _shared is None:
                _shared = LoopThread("pyromq-client")
            found = _shared
    return found


_lock = threading.Lock()
_shared: LoopThread | None = None
#: Loops of the parent process. Kept alive: freeing them would close the parent's sockets.
_inherited: list[LoopThread] = []


def _forked() -> None:
    global _lock, _shared
    # A thread that does not exist in the child may have held the lock.
    _lock = threading.Lock()
    if _shared is not None:
        _inherited.append(_shared)
        _shared = None


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _stop_shared() -> None:
    """End the thread before the interpreter: a thread that wakes up later crashes."""
    global _shared
    found, _shared = _shared, None
    if found is not None:
        found.stop()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
