"""One consumer's place in its group: which queues are its own, as members come and go.

Brokers know a group's members by their heartbeats and tell them when that changes
(NOTIFY_CONSUMER_IDS_CHANGED). Each member then asks a broker for the list and works out its
own share (`rebalance`); also each 20 s, since notes can be lost and topics can grow, and
sooner while a topic does not exist yet. In broadcasting every member has all queues, and
nobody is asked.

`assign` is called with the whole share, of all topics, each time it was worked out; a topic
whose share cannot be worked out keeps the last one. Queues have the application's names
there. On the consumer's event loop; one rebalancing at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace

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

REBALANCE_SECONDS = 20.0
#: The first wait for a topic that does not exist; then twice as long each time.
MISSING_TOPIC_SECONDS = 1.0
#: How long a member that left is remembered: as long as brokers keep its locks.
_DEPARTED_SECONDS = 60.0


class Membership:
    """Keeps `assign` called with the queues of the topics that belong to this member.

    `group` and `topics` are the application's names.
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
        #: The group as the brokers of each topic knew it last, and when others were missing.
        self._seen: dict[str, set[str]] = {}
        self._departed: dict[str, float] = {}
        self._missing: set[str] = set()
        self._missing_wait = MISSING_TOPIC_SECONDS
        self._members_changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._rebalances: asyncio.Task[None] | None = None

    async def join(self, optional: Collection[str] = ()) -> None:
        """Become a member and take the first share; raises ClientError or RemotingError.

        Topics in `optional` need not exist yet: their queues come when they do.
        """
        for topic in sorted(self._topics):
            try:
                await self._session.routes.get(self._session.wrap(topic))
            except TopicNotFoundError as error:
                if topic not in optional:
                    raise
                logger.info("group %s waits for topic %s: %s", self._group, topic, error)
        await self._session.beat()
        await self._rebalance(is_first=True)
        self._rebalances = asyncio.create_task(self._rebalance_forever())

    def members_changed(self) -> None:
        """A broker has said that members came or went."""
        self._members_changed.set()

    def departed(self) -> set[str]:
        """The ids of members that left lately, properly or not."""
        oldest = time.monotonic() - _DEPARTED_SECONDS
        self._departed = {who: when for who, when in self._departed.items() if when > oldest}
        return set(self._departed)

    async def is_alone(self, topic: str) -> bool:
        """Ask whether the group has no other member; raises ClientError or RemotingError."""
        route = await self._session.routes.get(self._session.wrap(topic))
        members = await self._members(route)
        return members == [self._session.client_id]

    async def set_topics(self, topics: Iterable[str]) -> None:
        """Have a share in these topics from now on; failures are logged and tried again."""
        self._topics = set(topics)
        for topic in [topic for topic in self._shares if topic not in self._topics]:
            del self._shares[topic]
        for topic in sorted(self._topics):
            try:
                await self._session.routes.get(self._session.wrap(topic))
            except ClientError as error:
                logger.info("group %s waits for topic %s: %s", self._group, topic, error)
        await self._session.beat()
        await self._rebalance()
        self.members_changed()

    async def stop(self) -> None:
        """Take no further shares; leaving the group is the session's part."""
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
                # What was asked is the consumer's; shares are worked out as long as it lives.
                logger.exception("group %s: queues stay as they are", self._group)

    async def _rebalance(self, *, is_first: bool = False) -> None:
        async with self._one_at_a_time:
            for topic in sorted(self._topics):
                try:
                    share = await self._share(topic)
                except TopicNotFoundError as error:
                    # Queues that were ours stay so: a NameServer that was started just now
                    # knows no topic until the brokers have told it.
                    if topic not in self._missing:
                        logger.info("group %s: %s", self._group, error)
                    self._missing.add(topic)
                    continue
                except Exception as error:
                    # A strategy is the application's, it may raise anything.
                    if is_first:
                        raise
                    logger.warning(
                        "group %s: queues of %s stay as they are: %s", self._group, topic, error
                    )
                    continue
                else:
                    self._missing.discard(topic)
                if share is not None and topic in self._topics:
                    self._shares[topic] = share
            self._missing &= self._topics
            await self._assign([queue for share in self._shares.values() for queue in share])

    async def _share(self, topic: str) -> list[MessageQueue] | None:
        """The queues of a topic that are ours; None when that cannot be said now."""
        session = self._session
        route = await session.routes.get(session.wrap(topic))
        if self._is_broadcasting:
            return [replace(queue, topic=topic) for queue in route.read_queues]
        try:
            members = await self._members(route)
        except BrokerError as error:
            logger.debug("group %s: %s", self._group, error)
            members = []  # what Java's brokers answer for a group without members
        if session.client_id not in members:
            # A broker that was started just now has forgotten us; it is told, then asked again.
            await session.beat()
            members = await self._members(route)
        if not members:
            return None
        self._note(topic, set(members))
        possible = {replace(queue, topic=topic) for queue in route.read_queues}
        share = self._strategy(route.read_queues, members, session.client_id)
        # By either of its names: whoever lists queues in a program may leave out the namespace.
        named = [replace(queue, topic=session.unwrap(queue.topic)) for queue in share]
        return [queue for queue in named if queue in possible]

    def _note(self, topic: str, members: set[str]) -> None:
        for member in members:
            self._departed.pop(member, None)
        now = time.monotonic()
        for member in self._seen.get(topic, set()) - members:
            self._departed[member] = now
        self._seen[topic] = members

    async def _members(self, route: TopicRoute) -> list[str]:
        """The group's members, as the first broker that answers knows them."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._group_name)
        failure: ClientError | RemotingError = ClientError(
            f"topic {route.topic!r} has no broker that could name the members of {self._group!r}"
        )
        for address in sorted(route.masters()):
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
