"""The part of `RemotingClient` that most of its users need, so that tests can replace it."""

from __future__ import annotations

from typing import Protocol

from pyromq.protocol.wire.frame import RemotingCommand


class Requester(Protocol):
    """Sends requests to servers."""

    async def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - as in RemotingClient
    ) -> RemotingCommand:
        """Send a request and return its response. Raises RemotingError."""
