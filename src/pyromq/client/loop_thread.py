"""An event loop in a thread of its own, for programs that have none.

`shared_loop` is the process's one: all synchronous clients use it. It is started when first
asked for, and ended with the interpreter, which it does not keep from ending. A fork has no
threads but the one that forked, so a child begins anew: what it inherited is never touched
again, since sockets and pollers are still the parent's, too.

Used by `sync` and by `pyromq.testing`, from any thread.
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
#: How long `stop` waits for the thread.
_STOP_SECONDS = 5.0
_SLICE_SECONDS = 0.5


class LoopThread:
    """Runs coroutines for other threads until `stop`; uvloop's where it is installed."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._is_stopping = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
        """Wait for a coroutine's result; it is cancelled when the waiting ends before that.

        Raises TimeoutError after `timeout` seconds, and whatever the coroutine raises.
        """
        self._check(coroutine)
        waiting = _Waiting(coroutine)
        try:
            self.loop.call_soon_threadsafe(waiting.begin, self.loop)
            if waiting.wait(timeout):
                return waiting.task.result()
        except BaseException:
            # Ctrl-C: nobody wants the result any more.
            self._give_up(waiting)
            raise
        self._give_up(waiting)
        raise TimeoutError(f"no result within {timeout:g} s")

    async def run_from_loop(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """The same for a coroutine of another event loop."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def submit(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Begin with a coroutine and do not wait.

        Raises ClientStateError in the thread of the loop itself: it would wait for itself.
        """
        self._check(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def check_thread(self) -> None:
        """Raise ClientStateError in the thread of the loop itself, and in a fork."""
        if self._process != os.getpid():
            raise ClientStateError(
                f"this event loop runs in process {self._process}, of which this one is a fork"
            )
        if threading.current_thread() is self._thread:
            raise ClientStateError(
                "a synchronous client was used on the event loop that serves it, for which it "
                "would wait forever: in coroutines use the asynchronous client, or make the "
                "handler a plain function"
            )

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
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
                # A coroutine's, which event loops let through. The others go on.
                logger.exception("a coroutine tried to end the process from the client's loop")

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

    def _give_up(self, waiting: _Waiting[Any]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(waiting.cancel)


class _Waiting(Generic[_Result]):
    """A coroutine and the thread that waits for it.

    Not a `concurrent.futures.Future`: one that Ctrl-C interrupts at the wrong instant keeps its
    own lock, for which the loop then waits forever.
    """

    __slots__ = ("_coroutine", "done", "task")

    task: asyncio.Task[_Result]

    def __init__(self, coroutine: Coroutine[Any, Any, _Result]) -> None:
        self._coroutine = coroutine
        self.done = threading.Lock()
        self.done.acquire()

    def wait(self, timeout: float | None) -> bool:
        """Whether the coroutine ends within `timeout` seconds.

        In slices: a Ctrl-C between Python and the wait of the system is only seen after it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if self.done.acquire(timeout=max(0.0, min(left, _SLICE_SECONDS))):
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
            # Seen to, also when nobody waits any more.
            task.exception()
        self.done.release()


def shared_loop() -> LoopThread:
    """The process's own loop for synchronous clients, started now if there is none."""
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
#: Of the parent process: kept, since to free them would close what the parent uses.
_inherited: list[LoopThread] = []


def _forked() -> None:
    global _lock, _shared
    # The lock may have been held by a thread that does not exist here.
    _lock = threading.Lock()
    if _shared is not None:
        _inherited.append(_shared)
        _shared = None


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _stop_shared() -> None:
    """End the thread while there is an interpreter: one that wakes up behind it crashes."""
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
