"""Requests that a server sends to a client on the client's own connection.

Each connection counts the opaques of this direction separately; a response is matched by its
opaque. Runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.errors import RemotingClosedError, RemotingTimeoutError

_OPAQUE_MASK = 0x7FFFFFFF


class OutgoingRequests:
    """The requests of one connection that wait for the client's response."""

    __slots__ = ("_last_opaque", "_waiting")

    def __init__(self) -> None:
        self._last_opaque = 0
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    async def ask(
        self,
        command: RemotingCommand,
        seconds: float,
        send: Callable[[RemotingCommand], None],
        remote_address: str,
    ) -> RemotingCommand:
        """Send a request and return its response.

        Raises RemotingTimeoutError, or RemotingClosedError if the connection is lost meanwhile.
        """
        self._last_opaque = command.opaque = (self._last_opaque + 1) & _OPAQUE_MASK
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = answer
        try:
            send(command)
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise RemotingTimeoutError(
                remote_address, f"{remote_address} gave no response within {seconds:g} s"
            ) from None
        finally:
            self._waiting.pop(command.opaque, None)

    def take(self, answer: RemotingCommand) -> bool:
        """Give a response to its request; return whether there is one."""
        future = self._waiting.get(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)
        return future is not None

    def fail(self, remote_address: str) -> None:
        """Fail every waiting request, because the connection was lost."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RemotingClosedError(remote_address, "the connection was lost"))
