"""Keep a consumer's share of the queues up to date while members join and leave its group.

Brokers learn a group's members from heartbeats and notify them of changes
(NOTIFY_CONSUMER_IDS_CHANGED). Each member then queries a broker for the list and computes its own
share (`rebalance`). It also rebalances every 20 s, because notifications can be lost and topics
can grow, and sooner while a topic does not exist yet. In broadcasting every member takes all
queues without a query.

After each rebalance, `assign` is called with the whole share across all topics. A topic whose
share cannot be computed keeps its previous one. Queues carry the application's names. Runs on the
consumer's event loop, one rebalance at a time. Used by the push and the lite pull consumer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from pyromq.client.consumer.rebalance import Strategy, allocate_averagely
from pyromq.client.errors import BrokerError, ClientError, TopicNotFoundError, reading_answer
from pyromq.client.session.routes import TopicRoute
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import GetConsumerListByGroupResponseBody, MessageQueue
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import GetConsumerListByGroupRequestHeader
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

REBALANCE_SECONDS: Final = 20.0
#: First delay before looking for a missing topic again; it doubles each time.
MISSING_TOPIC_SECONDS: Final = 1.0
#: How long to remember a member that left: brokers keep its locks for this long.
_DEPARTED_SECONDS: Final = 60.0


class Membership:
    """A member of a group.

    `assign` receives the member's share. `group` and `topics` are the application's names.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        topics: Iterable[str],
        assign: Callable[[Collection[MessageQueue]], Awaitable[None]],
        *,
        strategy: Strategy = allocate_averagely,
        is_broadcasting: bool = False,
    ) -> None:
        self._session = session
        self._group = group
        self._group_name = session.wrap(group)
        self._topics = set(topics)
        self._assign = assign
        self._strategy = strategy
        self._is_broadcasting = is_broadcasting
        self._shares: dict[str, list[MessageQueue]] = {}
        #: The members by topic, as its brokers listed them last.
        self._seen: dict[str, set[str]] = {}
        #: When each member was found missing.
        self._departed: dict[str, float] = {}
        self._missing: set[str] = set()
        self._missing_wait = MISSING_TOPIC_SECONDS
        self._members_changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._rebalances: asyncio.Task[None] | None = None

    async def join(self, optional: Collection[str] = ()) -> None:
        """Join the group and take the first share. Raises ClientError or RemotingError.

        Topics in `optional` need not exist yet; their queues are taken once they do.
        """
        for topic in sorted(self._topics):
            try:
                await self._session.routes.get(self._session.wrap(topic))
            except TopicNotFoundError as error:
                if topic not in optional:
                    raise
                logger.info("group %s is waiting for topic %s: %s", self._group, topic, error)
        await self._session.beat()
        await self._rebalance(is_first=True)
        self._rebalances = asyncio.create_task(self._rebalance_forever())

    def members_changed(self) -> None:
        """Rebalance soon: a broker notified us that members joined or left."""
        self._members_changed.set()

    def departed(self) -> set[str]:
        """Return the ids of members that left recently, cleanly or not."""
        oldest = time.monotonic() - _DEPARTED_SECONDS
        self._departed = {
            member: since for member, since in self._departed.items() if since > oldest
        }
        return set(self._departed)

    async def is_alone(self, topic: str) -> bool:
        """Return whether the group has no other member. Raises ClientError or RemotingError."""
        route = await self._session.routes.get(self._session.wrap(topic))
        members = await self._members(route)
        return members == [self._session.client_id]

    async def set_topics(self, topics: Iterable[str]) -> None:
        """Replace the topics and rebalance. Failures are logged and retried."""
        self._topics = set(topics)
        for topic in [topic for topic in self._shares if topic not in self._topics]:
            del self._shares[topic]
        for topic in sorted(self._topics):
            try:
                await self._session.routes.get(self._session.wrap(topic))
            except ClientError as error:
                logger.info("group %s is waiting for topic %s: %s", self._group, topic, error)
        await self._session.beat()
        await self._rebalance()
        self.members_changed()

    async def stop(self) -> None:
        """Stop rebalancing. Closing the session leaves the group."""
        if self._rebalances is not None:
            self._rebalances.cancel()
            await asyncio.gather(self._rebalances, return_exceptions=True)

    async def _rebalance_forever(self) -> None:
        while True:
            wait = REBALANCE_SECONDS
            if self._missing:
                wait = min(wait, self._missing_wait)
                self._missing_wait *= 2
            else:
                self._missing_wait = MISSING_TOPIC_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._members_changed.wait()
            except TimeoutError:
                pass
            self._members_changed.clear()
            try:
                await self._rebalance()
            except Exception:
                # Whatever the consumer's callback raised: keep rebalancing.
                logger.exception("rebalance of group %s failed, queues unchanged", self._group)

    async def _rebalance(self, *, is_first: bool = False) -> None:
        async with self._one_at_a_time:
            for topic in sorted(self._topics):
                try:
                    share = await self._share(topic)
                except TopicNotFoundError as error:
                    # Keep our queues: a NameServer that has just started knows no topic until the
                    # brokers register.
                    if topic not in self._missing:
                        logger.info("group %s: %s", self._group, error)
                    self._missing.add(topic)
                    continue
                except Exception as error:
                    # The strategy is the application's code and may raise anything.
                    if is_first:
                        raise
                    logger.warning(
                        "rebalance of group %s failed, queues of topic %s unchanged: %s",
                        self._group,
                        topic,
                        error,
                    )
                    continue
                else:
                    self._missing.discard(topic)
                if share is not None and topic in self._topics:
                    self._shares[topic] = share
            self._missing &= self._topics
            await self._assign([queue for share in self._shares.values() for queue in share])

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """Return our queues of a topic, or None if the members are unknown."""
        session = self._session
        route = await session.routes.get(session.wrap(topic))
        if self._is_broadcasting:
            return [replace(queue, topic=topic) for queue in route.read_queues]
        try:
            members = await self._members(route)
        except BrokerError as error:
            logger.debug("group %s: %s", self._group, error)
            members = []  # Java's brokers respond with an error for a group without members
        if session.client_id not in members:
            # A restarted broker has forgotten us: introduce ourselves, then query again.
            await session.beat()
            members = await self._members(route)
        if not members:
            return None
        self._note_members(topic, set(members))
        existing = {replace(queue, topic=topic) for queue in route.read_queues}
        share = self._strategy(route.read_queues, members, session.client_id)
        # Accept names with or without the namespace: a strategy may list queues literally.
        named = [replace(queue, topic=session.unwrap(queue.topic)) for queue in share]
        return [queue for queue in named if queue in existing]

    def _note_members(self, topic: str, members: set[str]) -> None:
        for member in members:
            self._departed.pop(member, None)
        now = time.monotonic()
        for member in self._seen.get(topic, set()) - members:
            self._departed[member] = now
        self._seen[topic] = members

    async def _members(self, route: TopicRoute) -> list[str]:
        """Return the group's members from the first broker that responds.

        Masters are asked first. Replicas know the members too: consumers send heartbeats to all.
        """
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group_name)
        failure: ClientError | RemotingError = ClientError(
            f"topic {route.topic!r} has no broker that could list the members of {self._group!r}"
        )
        for address in route.everyone():
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
