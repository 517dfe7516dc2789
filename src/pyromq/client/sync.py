"""Run an asynchronous client for threads that have no event loop.

    with Producer.sync("127.0.0.1:9876", group="shop") as producer:
        producer.send(Message("orders", b"one book"))

A synchronous client wraps the asynchronous client of the same arguments, which runs on the
process's background loop (`loop_thread`). Each method calls the asynchronous method of the same
name, waits for it, and returns its result or raises its exception. Any thread may call it.

Guarantees:
1. The constructor checks its arguments. The first call starts the client.
2. After a fork, the first call in the child creates and starts a new client from the same
   arguments; the parent's client is not affected. A client closed in the parent stays closed in
   the child. Unpickling also creates a new client that has not been started.
3. Ctrl-C interrupts every wait. A client still open when the interpreter exits is closed.
4. A call from the background loop itself (from a coroutine handler) raises `ClientStateError`,
   because it would wait for itself.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self, TypeVar

from pyromq.client.errors import ClientStateError
from pyromq.client.loop_thread import shared_loop

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class _State(Enum):
    """The life of a synchronous client: NEW, STARTED, CLOSED. A fork turns STARTED into NEW."""

    NEW = auto()
    STARTED = auto()
    CLOSED = auto()


class SyncClient:
    """Base of the synchronous clients in `producer.sync` and `consumer.sync`.

    `make` creates the asynchronous client. It is typed `Any`, because its class imports the
    synchronous one for its `sync` method. The tests of the two modules compare every method with
    the asynchronous one instead.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._state = _State.NEW
        self._process = os.getpid()
        self._create()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(lambda it: it.__aexit__(error_type, error, traceback))

    def start(self) -> None:
        """Start now instead of on first use."""
        self._run(_nothing)

    def close(self) -> None:
        """Finish the work in flight and leave the cluster. Idempotent."""
        self._end(lambda it: it.close())

    @property
    def client_id(self) -> str:
        """Return the id under which brokers know this client."""
        client_id: str = self._own().client_id
        return client_id

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process gets the arguments, as a forked child does.
        return type(self), (self._make,)

    # Helpers for derived classes, in call order

    def _run(self, call: Callable[[Any], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run `call(client)` on the background loop and return its result."""
        client = self._own()
        if self._is_started:
            return shared_loop().run(call(client))
        return shared_loop().run(self._run_started(client, call))

    def _own(self) -> Any:
        """Return this process's client."""
        if self._is_closed:
            raise ClientStateError("this client is closed: create a new one")
        if self._process != os.getpid():
            with _lock:
                if self._process != os.getpid():
                    self._create()
                    self._state = _State.NEW
                    self._process = os.getpid()
        return self._client

    def _create(self) -> None:
        self._client = self._make()
        self._starting: asyncio.Task[None] | None = None

    async def _run_started(
        self, client: Any, call: Callable[[Any], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        if self._starting is None:
            self._starting = asyncio.ensure_future(client.start())
            open_clients.add(self)
            _close_at_exit()
        try:
            # Shielded: other threads may wait for the same start.
            await asyncio.shield(self._starting)
        except Exception:
            open_clients.discard(self)
            raise
        if self._state is _State.NEW:
            self._state = _State.STARTED
        return await call(client)

    def _end(self, call: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        try:
            if self in open_clients:
                shared_loop().run(call(self._client))
        finally:
            self._state = _State.CLOSED
            open_clients.discard(self)

    @property
    def _is_started(self) -> bool:
        return self._state is _State.STARTED

    @property
    def _is_closed(self) -> bool:
        return self._state is _State.CLOSED


async def _nothing(_: object) -> None:
    """Do nothing beyond the start that every call implies."""


def on_loop(call: Callable[[Any], _Result]) -> Callable[[Any], Coroutine[Any, Any, _Result]]:
    """Return a coroutine function that calls a plain method of a client on its loop."""

    @functools.wraps(call)
    async def called(client: Any) -> _Result:
        return call(client)

    return called


_lock = threading.Lock()
#: This process's clients that have started and are not closed yet.
open_clients: set[SyncClient] = set()
#: The process in which `_close_at_exit` has done its work.
_prepared_process = 0


def _forked() -> None:
    global _lock
    # A thread that does not exist in the child may have held the lock.
    _lock = threading.Lock()
    open_clients.clear()


os.register_at_fork(after_in_child=_forked)


def _close_at_exit() -> None:
    """Make a child of `multiprocessing` close its clients at exit: it skips `atexit` functions."""
    global _prepared_process
    process_module = sys.modules.get("multiprocessing.process")
    if _prepared_process == os.getpid() or process_module is None:
        return
    _prepared_process = os.getpid()
    if process_module.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_all, exitpriority=10)


@atexit.register
def _close_all() -> None:
    for client in list(open_clients):
        try:
            client.close()
        except Exception:
            logger.warning("closing client %s at exit failed", client, exc_info=True)
