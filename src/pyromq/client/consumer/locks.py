"""Locks by which at most one member of a group consumes a queue.

The queue's broker keeps them: a lock that is not asked for again is free after 60 s. A member
asks each 20 s for all it has, and believes in a lock for 30 s after the last answer: long
before anybody else can have it. Used by the push consumer in order, and by `handover`, on the
consumer's event loop.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from pyromq.client.errors import ClientError, TopicNotFoundError, reading_answer
from pyromq.client.session.routes import MASTER_ID
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import (
    LOCK_ENDS_WITH_CONNECTION,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

RENEW_SECONDS = 20.0
VALID_SECONDS = 30.0
#: Brokers refuse requests that name too many.
_QUEUES_PER_REQUEST = 1000


class QueueLocks:
    """Asks brokers for the locks of one member."""

    def __init__(self, session: Session, group: str, *, end_with_connection: bool = False) -> None:
        """`end_with_connection`: brokers of pyromq need not keep them when this process dies."""
        self._session = session
        self._group = session.wrap(group)
        self._fields = {LOCK_ENDS_WITH_CONNECTION: "true"} if end_with_connection else {}

    async def lock(self, queue: MessageQueue) -> bool:
        """Whether the queue is ours; raises ClientError or RemotingError when nobody can tell."""
        return queue in await self._lock_at(await self._address(queue), [queue])

    async def renew(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Ours or not, for each queue of a broker that has answered."""
        outcomes: dict[MessageQueue, bool] = {}
        for address, some in await self._by_address(queues):
            try:
                locked = await self._lock_at(address, some)
            except (ClientError, RemotingError) as error:
                logger.warning("locks of %d queues not renewed: %s", len(some), error)
            else:
                outcomes.update((queue, queue in locked) for queue in some)
        return outcomes

    async def unlock(self, queues: Iterable[MessageQueue], owner: str | None = None) -> None:
        """Let others have them; a broker that cannot be told frees them by itself, later.

        `owner` is another member's id, on whose behalf they are unlocked if they are its own.
        """
        owner = owner or self._session.client_id
        for address, some in await self._by_address(queues):
            body = UnlockBatchRequestBody(self._group, owner, self._names(some))
            try:
                await self._session.ask(
                    address, RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body.encode())
                )
            except (ClientError, RemotingError) as error:
                logger.warning("%d queues not unlocked: %s", len(some), error)

    async def _address(self, queue: MessageQueue) -> str:
        route = await self._session.routes.get(self._session.wrap(queue.topic))
        address = route.addresses.get(queue.broker_name, {}).get(MASTER_ID)
        if address is None:
            raise TopicNotFoundError(queue.topic, f"broker {queue.broker_name!r} has no master")
        return address

    async def _by_address(
        self, queues: Iterable[MessageQueue]
    ) -> list[tuple[str, list[MessageQueue]]]:
        """Who is to be asked, and for which queues; thousands of them in several requests."""
        by_address: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            try:
                by_address[await self._address(queue)].append(queue)
            except ClientError as error:
                logger.warning("the lock of %s cannot be asked for: %s", queue, error)
        return [
            (address, some[start : start + _QUEUES_PER_REQUEST])
            for address, some in by_address.items()
            for start in range(0, len(some), _QUEUES_PER_REQUEST)
        ]

    async def _lock_at(self, address: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        body = LockBatchRequestBody(self._group, self._session.client_id, self._names(queues))
        answer = await self._session.ask(
            address,
            RemotingCommand(
                RequestCode.LOCK_BATCH_MQ, ext_fields=self._fields.copy(), body=body.encode()
            ),
        )
        with reading_answer(address):
            locked = LockBatchResponseBody.decode(answer.body).lock_ok_mq_set
        return {replace(queue, topic=self._session.unwrap(queue.topic)) for queue in locked}

    def _names(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        return {replace(queue, topic=self._session.wrap(queue.topic)) for queue in queues}
