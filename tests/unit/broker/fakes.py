"""Stand-ins for what the broker's handlers and tables meet at run time."""

from __future__ import annotations

from collections.abc import Callable

from pyromq.protocol.wire.frame import RemotingCommand


class FakeConnection:
    """A client's connection that keeps what is sent on it."""

    def __init__(self, remote_address: str = "127.0.0.1:40404") -> None:
        self.remote_address = remote_address
        self.closed = False
        self.congested = False
        self.sent: list[RemotingCommand] = []
        #: What the client answers to the broker's requests; what it returns or raises.
        self.client: Callable[[RemotingCommand], RemotingCommand] = RemotingCommand.answer

    def send(self, command: RemotingCommand) -> None:
        assert not self.closed
        self.sent.append(command)

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - the signature of connections
    ) -> RemotingCommand:
        assert timeout > 0
        self.send(command)
        return self.client(command)

    def close(self) -> None:
        self.closed = True
