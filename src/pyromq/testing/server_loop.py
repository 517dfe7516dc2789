"""The loop that a cluster's servers run on, in a thread of its own.

It runs from `start` to `stop`. In between, tests run coroutines on it from their thread or from
their own loop. A forked child leaves its parent's alone.

Used by `cluster` and `broker`, from any thread but the loop's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pyromq.client.loop_thread import LoopThread

_Result = TypeVar("_Result")


class ServerLoop:
    """Runs coroutines while the cluster does."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._thread: LoopThread | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the loop was started and not stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread."""
        self._process = os.getpid()
        self._thread = LoopThread("pyromq-testing")

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run a last coroutine, then end the thread; return False if there was nothing to end."""
        thread, self._thread = self._thread, None
        if thread is None or self._process != os.getpid():
            return False  # a fork: the cluster belongs to the parent
        try:
            thread.run(last())
        finally:
            thread.stop()
        return True

    def check(self) -> LoopThread:
        """Return the thread. Raises RuntimeError unless it runs."""
        if self._thread is None:
            raise RuntimeError(
                "the cluster is not running: use it in `with`, or call start() first"
            )
        return self._thread

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine and wait for its result."""
        return self._for(coroutine).run(coroutine)

    async def run_from_loop(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """`run` for coroutines of another loop."""
        return await self._for(coroutine).run_from_loop(coroutine)

    def _for(self, coroutine: Coroutine[Any, Any, Any]) -> LoopThread:
        try:
            return self.check()
        except RuntimeError:
            coroutine.close()
            raise
