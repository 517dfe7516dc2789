"""A lock at brokers that one resend of a queue holds, so that no request of another is in flight.

A process may be killed while its last requests are in flight. Its successor must not look for
their messages before the broker has stored them. So a resend locks its source (LOCK_BATCH_MQ) at
each broker it sends to, over the connection of its sends:

- pyromq's brokers end the lock with its connection, after they have handled everything that came
  over it. The successor gets the lock at once, and sees every message.
- Java's brokers know no connections: the lock ends 60 s after it was last renewed, when no request
  can be in flight any more. The successor waits for that long.

A request whose outcome is not known has the same effect within one process: `restart` takes the
lock under another name. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Annotated, Final

from pyromq.admin.errors import AdminError, UnreachableError
from pyromq.admin.session import AdminSession, read_body
from pyromq.protocol.java.wire_types import Wire
from pyromq.protocol.wire.bodies import (
    LOCK_ENDS_WITH_CONNECTION,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.header_codec import Header, header_class
from pyromq.remoting.client import ServerConnection
from pyromq.remoting.errors import RemotingError

LOCK_GROUP: Final = "PYROMQ_RESEND"
#: Brokers end a lock that was not renewed for 60 s.
RENEW_SECONDS: Final = 15.0
#: A dead holder's lock ends within this time.
MAX_WAIT_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.25


@header_class
class _LockHeader(Header):
    ends_with_connection: Annotated[str, Wire(LOCK_ENDS_WITH_CONNECTION)] = "true"


class FenceLostError(AdminError):
    """The lock may have passed to another process."""


class Fence:
    """The lock of one source queue at several brokers."""

    def __init__(
        self,
        session: AdminSession,
        source: MessageQueue,
        on_wait: Callable[[float], None] | None = None,
        max_wait: float = MAX_WAIT_SECONDS,
    ) -> None:
        """`on_wait` is called with the seconds waited while another process holds the lock."""
        self._session = session
        self._source = source
        self._on_wait = on_wait
        self._max_wait = max_wait
        self._number = 0
        self._held: dict[str, tuple[ServerConnection, float]] = {}

    async def acquire(self, address: str) -> None:
        """Lock at a broker; waits while another process holds the lock. Idempotent."""
        if address in self._held:
            return
        begin = time.monotonic()
        while not await self._lock(address):
            waited = time.monotonic() - begin
            if waited > self._max_wait:
                raise AdminError(
                    f"{address}: the dead letters of {self._source.topic} are being resent by "
                    "another process: wait for it, or stop it"
                )
            if self._on_wait is not None:
                self._on_wait(waited)
            await asyncio.sleep(_POLL_SECONDS)

    async def check(self, address: str) -> None:
        """Raise FenceLostError unless the lock is held over the present connection."""
        connection, renewed = self._held[address]
        if await self._connection(address) is not connection:
            raise FenceLostError(f"the connection to {address} was lost")
        if time.monotonic() - renewed > RENEW_SECONDS and not await self._lock(address):
            raise FenceLostError(f"{address} gave the lock to another process")

    async def restart(self) -> None:
        """Lock again everywhere, after all requests so far have had their effect."""
        self._number += 1
        addresses = list(self._held)
        self._held.clear()
        for address in addresses:
            await self.acquire(address)

    async def release(self) -> None:
        """Unlock. Call it only if no request is in flight."""
        body = UnlockBatchRequestBody(LOCK_GROUP, self._client_id, {self._source}).encode()
        for address in self._held:
            try:
                await self._session.ask(address, RequestCode.UNLOCK_BATCH_MQ, body=body)
            except AdminError:
                continue  # it ends by itself
        self._held.clear()

    @property
    def _client_id(self) -> str:
        return f"{self._session.client.client_id}-{os.getpid()}-{self._number}"

    async def _lock(self, address: str) -> bool:
        connection = await self._connection(address)
        body = LockBatchRequestBody(LOCK_GROUP, self._client_id, {self._source}).encode()
        answer = await self._session.ask(address, RequestCode.LOCK_BATCH_MQ, _LockHeader(), body)
        locked = read_body(LockBatchResponseBody, address, answer).lock_ok_mq_set
        if self._source not in locked or await self._connection(address) is not connection:
            return False
        self._held[address] = connection, time.monotonic()
        return True

    async def _connection(self, address: str) -> ServerConnection:
        try:
            return await self._session.client.remoting.connect(address)
        except RemotingError as error:
            raise UnreachableError(address, error) from error
