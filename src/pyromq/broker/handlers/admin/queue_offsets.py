"""Requests about what a queue holds: its ends, and the place of a time.

GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and GET_EARLIEST_MSG_STORETIME.
The methods are handlers of `broker.routes`. Queues that do not exist are answered with
RocketMQ's numbers (offset 0, time -1), not with errors: consumers ask about queues that are
still empty.
"""

from __future__ import annotations

from typing import Protocol

from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import (
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

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset that is stored; at most 0 for no queue."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset of the message stored at a time (milliseconds); 0 for no queue."""

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """When the first message was stored (milliseconds); -1 for none."""


class QueueOffsetHandlers:
    """Handlers about the ends of queues."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    def max_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MAX_OFFSET: the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return request.answer(ext_fields=GetMaxOffsetResponseHeader(offset).encode())

    def min_offset(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_MIN_OFFSET: the first offset that is still stored."""
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        offset = max(0, self._store.min_offset(header.topic, header.queue_id))
        return request.answer(ext_fields=GetMinOffsetResponseHeader(offset).encode())

    def offset_by_time(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP: the offset of what was stored at a time."""
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return request.answer(ext_fields=SearchOffsetResponseHeader(offset).encode())

    def earliest_time(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME: when the first message that is left was stored."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(request.ext_fields)
        timestamp = self._store.earliest_time(header.topic, header.queue_id)
        return request.answer(ext_fields=GetEarliestMsgStoretimeResponseHeader(timestamp).encode())
