"""Requests about how far a consumer group has come.

QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET. The methods are handlers of
`broker.routes` and run on the event loop.
"""

from __future__ import annotations

from typing import Protocol

from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.protocol.codes import ResponseCode
from pyromq.protocol.frame import RemotingCommand, RequestError
from pyromq.protocol.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyromq.protocol.names import group_fault, topic_fault


class OffsetStore(Protocol):
    """What these handlers ask the store."""

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset that is stored; at most 0 for a queue without messages."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message; 0 for a queue without messages."""

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a stored message is among the newest, which memory holds."""


class OffsetHandlers:
    """Handlers of committed offsets."""

    def __init__(self, offsets: ConsumerOffsetTable, store: OffsetStore) -> None:
        self._offsets = offsets
        self._store = store

    def query_consumer_offset(
        self,
        connection: ClientConnection,  # noqa: ARG002 - the signature of handlers
        request: RemotingCommand,
    ) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET: where the group goes on.

        A group that never committed begins at 0 in a queue that is young; in an old queue
        the answer is QUERY_NOT_FOUND, and the consumer decides by its own settings.
        """
        header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None or offset < 0:
            if not self._is_young(header.topic, header.queue_id):
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {header.consumer_group} has no offset in topic {header.topic} "
                    f"queue {header.queue_id}",
                )
            offset = 0
        return request.answer(ext_fields=QueryConsumerOffsetResponseHeader(offset).encode())

    def update_consumer_offset(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_CONSUMER_OFFSET: the group has come so far."""
        header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        # Names go into the table's keys and its file: illegal ones would be there for good.
        fault = topic_fault(header.topic) or group_fault(header.consumer_group)
        if fault is None and (header.queue_id < 0 or header.commit_offset < 0):
            fault = (
                f"queueId {header.queue_id} and commitOffset {header.commit_offset} "
                "must not be negative"
            )
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        self._offsets.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            remote_address=connection.remote_address,
        )
        return request.answer()

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its first message, and in memory; or never had any."""
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        return self._store.max_offset(topic, queue_id) <= 0 or self._store.is_in_memory(
            topic, queue_id, 0
        )
