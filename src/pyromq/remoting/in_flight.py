"""The requests of a connection that wait for their responses, and when they time out.

There is one timer for all requests with the same time-out, not one for each. Used by
`remoting.client`, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

#: Called with the future, the code and the time-out of a request that has timed out.
_OnOverdue = Callable[[asyncio.Future[Any], int, float], None]


class Requests(dict[int, asyncio.Future[Any]]):
    """The requests in flight of one kind, by opaque, with a timer for each time-out in use."""

    __slots__ = ("deadlines",)

    def __init__(self) -> None:
        super().__init__()
        self.deadlines: dict[float, Deadlines] = {}

    def deadlines_of(self, seconds: float, on_overdue: _OnOverdue) -> Deadlines:
        """Create the deadlines of a time-out."""
        deadlines = self.deadlines[seconds] = Deadlines(self, seconds, on_overdue)
        return deadlines


class Deadlines:
    """One timer for the requests with the same time-out, oldest first."""

    __slots__ = ("_entries", "_loop", "_on_overdue", "_requests", "_seconds", "_timer")

    def __init__(self, requests: Requests, seconds: float, on_overdue: _OnOverdue) -> None:
        self._requests = requests
        self._seconds = seconds
        self._on_overdue = on_overdue
        self._loop = asyncio.get_running_loop()
        self._entries: deque[tuple[float, int, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: float, opaque: int, code: int) -> None:
        """Add a request, which must be in flight. Its deadline is a time of the loop."""
        entries, requests = self._entries, self._requests
        while entries and entries[0][1] not in requests:
            entries.popleft()
        entries.append((deadline, opaque, code))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        entries, requests = self._entries, self._requests
        now = self._loop.time()
        while entries and (entries[0][0] <= now or entries[0][1] not in requests):
            _, opaque, code = entries.popleft()
            answer = requests.pop(opaque, None)
            if answer is not None:
                self._on_overdue(answer, code, self._seconds)
        if entries:
            self._timer = self._loop.call_at(entries[0][0], self._expire)
        else:
            del requests.deadlines[self._seconds]
