"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues for one member of a group that consumes in order.

The methods are handlers of `broker.routes` and run on the event loop.
"""

from __future__ import annotations

from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from pyromq.protocol.frame import RemotingCommand


class LockHandlers:
    """Handlers of the locks of queues."""

    def __init__(self, locks: QueueLockTable) -> None:
        self._locks = locks

    def lock_queues(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """LOCK_BATCH_MQ: the queues of those asked for that are the client's now."""
        body = LockBatchRequestBody.decode(request.body)
        mine = self._locks.lock(body.consumer_group, body.mq_set, body.client_id)
        return request.answer(body=LockBatchResponseBody(mine).encode())

    def unlock_queues(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """UNLOCK_BATCH_MQ: the client's queues are free again."""
        body = UnlockBatchRequestBody.decode(request.body)
        self._locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return request.answer()
