"""Errors of a connection; each names the address of the other end.

Raised by `remoting.client`, and by a server's requests to its clients. A response with an error
code raises none of these: the caller decides what the code means.
"""

from __future__ import annotations

from pyromq.protocol.errors import RocketMQError


class RemotingError(RocketMQError):
    """A request got no response; `address` is the other end."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class RemotingConnectError(RemotingError):
    """The connection could not be opened; nothing was sent."""


class RemotingTimeoutError(RemotingError):
    """No response arrived in time; the request may have been applied."""


class RemotingClosedError(RemotingError):
    """The connection was lost before the response; the request may have been applied."""
