"""Late responses that wait until their peer reads again.

They are encoded when they leave: the bodies of whole tables are shared between responses, encoded
ones would not be. Used by `remoting.connection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pyromq.protocol.wire.frame import RemotingCommand


class ParkedResponses:
    """Responses with their requests, in the order in which they leave."""

    __slots__ = ("_waiting", "size")

    def __init__(self) -> None:
        self._waiting: deque[tuple[RemotingCommand, RemotingCommand]] = deque()
        #: Bytes of their bodies.
        self.size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[RemotingCommand, RemotingCommand]]:
        return iter(self._waiting)

    def add(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Keep a response."""
        self._waiting.append((request, response))
        self.size += len(response.body)

    def take(self) -> tuple[RemotingCommand, RemotingCommand]:
        """Remove and return the oldest one."""
        request, response = self._waiting.popleft()
        self.size -= len(response.body)
        return request, response

    def clear(self) -> None:
        """Drop all."""
        self._waiting.clear()
        self.size = 0
