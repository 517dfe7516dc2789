"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: lock queues for one member of an ordered consumer group.

A request names at most `maxQueuesPerLockRequest` queues. A large one is decoded and encoded on a
lane, and its queues are locked a few thousand at a time, so that it does not delay others.

Handlers run on the loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterator
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.sizes import KIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.routes import Body, Route, Routes
from pyromq.broker.services.flow_control import Lane
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.protocol.wire.bodies import (
    LOCK_ENDS_WITH_CONNECTION,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError

#: A request above this size (about 700 queues) is decoded on a lane.
_LARGE_REQUEST: Final = 64 * KIB
#: Queues of a large request that are locked or unlocked per loop iteration.
_MAX_QUEUES_PER_ITERATION: Final = 2000
#: Characters of each name in a request, kept in memory as long as its locks.
MAX_LOCK_NAME_LENGTH: Final = 1024


class LockHandlers:
    """Locks and unlocks queues."""

    def __init__(self, config: BrokerConfig, locks: QueueLockTable, lane: Lane) -> None:
        self._config = config
        self._locks = locks
        self._lane = lane

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.LOCK_BATCH_MQ, access.LOCKS, self.lock_queues, body=Body.CLIENT_DATA),
            Route(
                RequestCode.UNLOCK_BATCH_MQ, access.LOCKS, self.unlock_queues, body=Body.CLIENT_DATA
            ),
        )

    def lock_queues(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """LOCK_BATCH_MQ: return the requested queues that the client now holds."""
        ends_with = connection if LOCK_ENDS_WITH_CONNECTION in request.ext_fields else None
        if len(request.body) > _LARGE_REQUEST:
            return self._lock_many(ends_with, request)
        body = LockBatchRequestBody.decode(request.body)
        self._check(body)
        mine = self._locks.lock(body.consumer_group, body.mq_set, body.client_id, ends_with)
        return request.answer(body=LockBatchResponseBody(mine).encode())

    def unlock_queues(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """UNLOCK_BATCH_MQ: release queues of the client."""
        if len(request.body) > _LARGE_REQUEST:
            return self._unlock_many(request)
        body = UnlockBatchRequestBody.decode(request.body)
        self._check(body)
        self._locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return request.answer()

    async def _lock_many(
        self, ends_with: ClientConnection | None, request: RemotingCommand
    ) -> RemotingCommand:
        body = await self._lane.run(lambda: LockBatchRequestBody.decode(request.body))
        self._check(body)
        mine: set[MessageQueue] = set()
        for each in _slices(body.mq_set):
            mine |= self._locks.lock(body.consumer_group, each, body.client_id, ends_with)
            await asyncio.sleep(0)
        answer = LockBatchResponseBody(mine)
        return request.answer(body=await self._lane.run(answer.encode))

    async def _unlock_many(self, request: RemotingCommand) -> RemotingCommand:
        body = await self._lane.run(lambda: UnlockBatchRequestBody.decode(request.body))
        self._check(body)
        for each in _slices(body.mq_set):
            self._locks.unlock(body.consumer_group, each, body.client_id)
            await asyncio.sleep(0)
        return request.answer()

    def _check(self, body: LockBatchRequestBody | UnlockBatchRequestBody) -> None:
        """Raise RequestError for a request above the limits."""
        limit = self._config.max_queues_per_lock_request
        longest = max(
            (max(len(queue.topic), len(queue.broker_name)) for queue in body.mq_set), default=0
        )
        if len(body.mq_set) > limit:
            fault = (
                f"the request names {len(body.mq_set)} queues, limit {limit} "
                "(maxQueuesPerLockRequest)"
            )
        elif max(len(body.consumer_group), len(body.client_id), longest) > MAX_LOCK_NAME_LENGTH:
            fault = f"a name has more than {MAX_LOCK_NAME_LENGTH} characters"
        else:
            return
        raise RequestError(ResponseCode.SYSTEM_ERROR, fault)


def _slices(queues: set[MessageQueue]) -> Iterator[list[MessageQueue]]:
    rest = iter(queues)
    while some := list(itertools.islice(rest, _MAX_QUEUES_PER_ITERATION)):
        yield some
