"""The requests in progress of one connection, and when there are too many to read more.

A request is in progress while its handler's coroutine runs. Their bodies cannot be dropped, so
`is_full` tells the connection to stop reading; it stays set until well below the caps, because a
connection that resumes handles all of its waiting frames.

Runs on the loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyromq.protocol.wire.frame import MAX_FRAME
from pyromq.remoting.limits import PeerLimits

#: Requests in progress above which a connection is not read.
_MAX_UNFINISHED: Final = 1024
#: Bytes of their bodies above which it is not read.
_MAX_UNFINISHED_SIZE: Final = 2 * MAX_FRAME


class Unfinished:
    """Counts the requests in progress of a connection."""

    __slots__ = ("_limits", "_queries", "_size", "count", "is_full")

    def __init__(self, limits: PeerLimits) -> None:
        """`limits` cap the bodies of all connections together."""
        self._limits = limits
        self._size = 0
        self._queries: set[asyncio.Task[None]] = set()
        self.count = 0
        #: Whether no further request may start.
        self.is_full = False

    def add(self, task: asyncio.Task[None], size: int, *, is_query: bool) -> None:
        """Count a request with a body of `size` bytes; may set `is_full`."""
        if is_query:
            self._queries.add(task)
        self.count += 1
        self._size += size
        self._limits.in_progress += size
        if (
            self.count > _MAX_UNFINISHED
            or self._size > _MAX_UNFINISHED_SIZE
            or self._limits.is_overworked
        ):
            self.is_full = True

    def remove(self, task: asyncio.Task[None], size: int) -> bool:
        """Forget a request that has ended; return whether `is_full` was cleared."""
        self._queries.discard(task)
        self.count -= 1
        self._size -= size
        self._limits.in_progress -= size
        if not self.is_full or not (
            self.count == 0
            or (
                self.count <= _MAX_UNFINISHED // 2
                and self._size <= _MAX_UNFINISHED_SIZE * 3 // 4
                and not self._limits.is_overworked
            )
        ):
            return False
        self.is_full = False
        return True

    def cancel_queries(self) -> None:
        """Cancel the requests that change nothing: nobody is left to read their responses."""
        for task in self._queries:
            task.cancel()
