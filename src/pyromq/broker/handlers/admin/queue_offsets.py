"""Requests about what a queue holds: its ends, and the place of a time.

GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and GET_EARLIEST_MSG_STORETIME.
The methods are handlers of `broker.routes`; times are looked up on the admin lane, because the
messages that tell them may be on the disk. Queues that do not exist are answered with
RocketMQ's numbers (offset 0, time -1), not with errors: consumers ask about queues that are
still empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Lane
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)


class QueueStore(Protocol):
    """What these handlers ask the store."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message; 0 for no queue."""

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """The first offset that is stored; at most 0 for no queue."""

    def time_search(self, topic: str, queue_id: int, timestamp: int) -> Callable[[], int]:
        """What finds the offset of the message stored at a time (ms); 0 for no queue."""

    def earliest_search(self, topic: str, queue_id: int) -> Callable[[], int | None]:
        """What finds when the first message was stored (milliseconds); -1 for none."""


class QueueOffsetHandlers:
    """Handlers about the ends of queues."""

    def __init__(self, store: QueueStore, lane: Lane) -> None:
        self._store = store
        self._lane = lane

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_MAX_OFFSET, self.max_offset),
            Route(RequestCode.GET_MIN_OFFSET, self.min_offset),
            Route(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.offset_by_time, is_query=True),
            Route(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_time, is_query=True),
        )

    def max_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MAX_OFFSET: the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return request.answer(ext_fields=GetMaxOffsetResponseHeader(offset).encode())

    def min_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MIN_OFFSET: the first offset that is still stored."""
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.min_offset(header.topic, header.queue_id) or 0
        return request.answer(ext_fields=GetMinOffsetResponseHeader(offset).encode())

    async def offset_by_time(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP: the offset of what was stored at a time."""
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        search = self._store.time_search(header.topic, header.queue_id, header.timestamp)
        offset = await self._lane.run(search)
        return request.answer(ext_fields=SearchOffsetResponseHeader(offset).encode())

    async def earliest_time(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME: when the first message that is left was stored."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(request.ext_fields)
        search = self._store.earliest_search(header.topic, header.queue_id)
        found = await self._lane.run(search)
        timestamp = -1 if found is None else found
        return request.answer(ext_fields=GetEarliestMsgStoretimeResponseHeader(timestamp).encode())
