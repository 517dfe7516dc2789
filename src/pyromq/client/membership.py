"""One consumer's place in its group: which queues are its own, as members come and go.

Brokers know a group's members by their heartbeats and tell them when that
changes (NOTIFY_CONSUMER_IDS_CHANGED). Each member then asks a broker for the
list and works out its own share (`rebalance`). Also each 20 s, since notes can
be lost and topics can grow. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from pyromq.client.errors import ClientError, reading_answer
from pyromq.client.rebalance import allocate_averagely
from pyromq.client.session import Session
from pyromq.protocol.bodies import GetConsumerListByGroupResponseBody, MessageQueue
from pyromq.protocol.codes import RequestCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import GetConsumerListByGroupRequestHeader
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

REBALANCE_SECONDS = 20.0


class Membership:
    """Keeps `assign` called with the queues of `topic` that belong to this member of `group`."""

    def __init__(
        self,
        session: Session,
        group: str,
        topic: str,
        assign: Callable[[Collection[MessageQueue]], Awaitable[None]],
    ) -> None:
        self._session = session
        self._group = group
        self._topic = topic
        self._assign = assign
        self._members_changed = asyncio.Event()
        self._rebalances: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Become a member and take the first share; raises ClientError or RemotingError."""
        await self._session.routes.get(self._topic)
        await self._session.beat()
        await self._rebalance()
        self._rebalances = asyncio.create_task(self._rebalance_forever())

    def members_changed(self) -> None:
        """A broker has said that members came or went."""
        self._members_changed.set()

    async def stop(self) -> None:
        """Take no further shares; leaving the group is the session's part."""
        if self._rebalances is not None:
            self._rebalances.cancel()
            await asyncio.gather(self._rebalances, return_exceptions=True)

    async def _rebalance_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REBALANCE_SECONDS):
                    await self._members_changed.wait()
            except TimeoutError:
                pass
            self._members_changed.clear()
            try:
                await self._rebalance()
            except (ClientError, RemotingError) as error:
                logger.warning(
                    "group %s: queues of %s stay as they are: %s", self._group, self._topic, error
                )

    async def _rebalance(self) -> None:
        route = await self._session.routes.get(self._topic)
        members = await self._members(sorted(route.masters()))
        if members:  # an empty list: the broker has just started and heard of nobody yet
            await self._assign(
                allocate_averagely(route.read_queues, members, self._session.client_id)
            )

    async def _members(self, addresses: list[str]) -> list[str]:
        """The group's members, as the first broker that answers knows them."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group)
        failure: ClientError | RemotingError = ClientError(
            f"topic {self._topic!r} has no broker that could name the members of {self._group!r}"
        )
        for address in addresses:
            command = RemotingCommand(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields=header.encode()
            )
            try:
                answer = await self._session.ask(address, command)
            except (ClientError, RemotingError) as error:
                failure = error
                continue
            with reading_answer(address):
                return GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list
        raise failure
