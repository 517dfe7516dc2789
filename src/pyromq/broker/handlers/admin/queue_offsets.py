"""Offsets and timestamps of a queue's messages.

GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and GET_EARLIEST_MSG_STORETIME. The admin
lane searches by time, because the messages may be on disk. For an unknown queue the response has
RocketMQ's numbers (offset 0, time -1), not an error: consumers ask about queues that are still
empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.acl import classification as access
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
    """The part of the store that these handlers use."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message; 0 for an unknown queue."""

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the offset of the oldest message; None for an unknown queue."""

    def time_search(self, topic: str, queue_id: int, timestamp: int) -> Callable[[], int]:
        """Return a search for the first message stored at or after a time (ms). Any thread."""

    def earliest_search(self, topic: str, queue_id: int) -> Callable[[], int | None]:
        """Return a search for the store time (ms) of the oldest message, or None. Any thread."""


class QueueOffsetHandlers:
    """Returns offsets and timestamps of queues."""

    def __init__(self, store: QueueStore, lane: Lane) -> None:
        self._store = store
        self._lane = lane

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.GET_MAX_OFFSET, access.QUEUE, self.max_offset),
            Route(RequestCode.GET_MIN_OFFSET, access.QUEUE, self.min_offset),
            Route(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                access.QUEUE,
                self.offset_by_time,
                is_query=True,
            ),
            Route(
                RequestCode.GET_EARLIEST_MSG_STORETIME,
                access.QUEUE,
                self.earliest_time,
                is_query=True,
            ),
        )

    def max_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MAX_OFFSET: return the offset of the next message."""
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return request.answer(ext_fields=GetMaxOffsetResponseHeader(offset).encode())

    def min_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MIN_OFFSET: return the offset of the oldest message."""
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.min_offset(header.topic, header.queue_id) or 0
        return request.answer(ext_fields=GetMinOffsetResponseHeader(offset).encode())

    async def offset_by_time(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP: return the offset of the message stored at a time."""
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        search = self._store.time_search(header.topic, header.queue_id, header.timestamp)
        offset = await self._lane.run(search)
        return request.answer(ext_fields=SearchOffsetResponseHeader(offset).encode())

    async def earliest_time(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME: return the store time of the oldest message."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(request.ext_fields)
        search = self._store.earliest_search(header.topic, header.queue_id)
        found = await self._lane.run(search)
        timestamp = -1 if found is None else found
        return request.answer(ext_fields=GetEarliestMsgStoretimeResponseHeader(timestamp).encode())
