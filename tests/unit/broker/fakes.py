"""Stand-ins for what the broker's handlers and tables meet at run time."""

from __future__ import annotations

from pyromq.protocol.frame import RemotingCommand


class FakeConnection:
    """A client's connection that keeps what is sent on it."""

    def __init__(self, remote_address: str = "127.0.0.1:40404") -> None:
        self.remote_address = remote_address
        self.closed = False
        self.sent: list[RemotingCommand] = []

    def send(self, command: RemotingCommand) -> None:
        assert not self.closed
        self.sent.append(command)

    def close(self) -> None:
        self.closed = True
