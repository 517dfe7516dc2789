"""What can go wrong between two ends of a connection, as exceptions.

Each names the address of the other end. Raised by `remoting.client` and by a
server's requests to its clients; an answer that carries an error code is not
among them: it is an answer, and its meaning belongs to whoever asked.
"""

from __future__ import annotations

from pyromq.protocol.errors import RocketMQError


class RemotingError(RocketMQError):
    """A request that got no answer; `address` is the other end."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class RemotingConnectError(RemotingError):
    """No connection could be made: nothing was sent."""


class RemotingTimeoutError(RemotingError):
    """No answer within the time given: the request may have been carried out."""


class RemotingClosedError(RemotingError):
    """The connection ended before the answer: the request may have been carried out."""
