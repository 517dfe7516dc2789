"""Lock queues at their brokers, so that at most one member of a group consumes each of them.

A broker frees a lock that was not renewed for 60 s. A member renews all its locks every 20 s and
trusts a lock for 30 s after the last successful request, well before anyone else can get it.

Used by orderly push consumers and by `handover`, on the consumer's event loop.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pyromq.client.errors import ClientError, NameServerError, reading_answer
from pyromq.client.session.routes import TopicRoute
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

RENEW_SECONDS: Final = 20.0
#: The same while a broker does not renew them.
RETRY_SECONDS: Final = 3.0
VALID_SECONDS: Final = 30.0
#: Brokers refuse requests that name more queues than they allow.
_MAX_QUEUES_PER_REQUEST: Final = 1000


class QueueLocks:
    """Requests the locks of one member."""

    def __init__(self, session: Session, group: str, *, end_with_connection: bool = False) -> None:
        """Prepare requests; with `end_with_connection`, pyromq's brokers unlock on disconnect."""
        self._session = session
        self._group = session.wrap(group)
        self._fields = {LOCK_ENDS_WITH_CONNECTION: "true"} if end_with_connection else {}

    async def lock(self, queue: MessageQueue) -> bool:
        """Return whether the queue is ours. Raises ClientError or RemotingError."""
        route = await self._route(queue.topic, {queue.broker_name})
        address = route.master_of(queue.broker_name)
        if address is None:
            raise route.no_master(queue.topic, queue.broker_name)
        return queue in await self._lock_at(address, [queue])

    async def renew(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Lock or renew queues; return which are ours, leaving out brokers that did not respond."""
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
        """Unlock queues; a broker that cannot be reached frees them itself, later.

        `owner` is the id of another member, to unlock its queues on its behalf.
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

    async def _route(self, topic: str, broker_names: Iterable[str]) -> TopicRoute:
        """Return a route with the masters of these brokers, if the NameServers know them."""
        routes, name = self._session.routes, self._session.wrap(topic)
        route = await routes.get(name)
        if any(route.master_of(broker_name) is None for broker_name in broker_names):
            try:
                route = await routes.refresh(name)
            except NameServerError as error:
                logger.debug("route of topic %s not refreshed: %s", topic, error)
        return route

    async def _by_address(
        self, queues: Iterable[MessageQueue]
    ) -> list[tuple[str, list[MessageQueue]]]:
        """Group queues by master, split into requests of limited size."""
        by_address: dict[str, list[MessageQueue]] = defaultdict(list)
        by_topic: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_topic[queue.topic].append(queue)
        for topic, of_topic in by_topic.items():
            try:
                route = await self._route(topic, {queue.broker_name for queue in of_topic})
            except ClientError as error:
                logger.warning("cannot lock or unlock %d queues: %s", len(of_topic), error)
                continue
            stranded: list[MessageQueue] = []
            for queue in of_topic:
                address = route.master_of(queue.broker_name)
                (stranded if address is None else by_address[address]).append(queue)
            if stranded:
                missing = route.no_master(topic, *{queue.broker_name for queue in stranded})
                logger.warning("cannot lock or unlock %d queues: %s", len(stranded), missing)
        return [
            (address, some[start : start + _MAX_QUEUES_PER_REQUEST])
            for address, some in by_address.items()
            for start in range(0, len(some), _MAX_QUEUES_PER_REQUEST)
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
