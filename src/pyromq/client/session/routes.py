"""Which brokers serve a topic: asked of the NameServers, kept for a while.

`Routes` is shared by everything in one client, on its event loop. Only the first question for a
topic is waited for: a route that has become old is given as it is, while the NameServers are
asked again in the background, so one that hangs holds up no send and no pull. Callers that ask
for the same topic at the same time share one request.

NameServers share nothing among themselves, so the first that answers is believed, and kept until
it fails. One that does not know a topic may have started a moment ago: the others are asked, too,
and a route that was good until now is given up only when nobody knew it for so long that every
broker must have registered again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientStateError,
    NameServerError,
    TopicNotFoundError,
    reading_answer,
)
from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.message.sysflag import is_readable, is_writable
from pyromq.protocol.names import AUTO_CREATE_TOPIC
from pyromq.protocol.wire.bodies import BodyError, MessageQueue, TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader
from pyromq.remoting.client import RemotingClient, RemotingError

logger = logging.getLogger(__name__)

#: The topic whose route says which brokers create topics when they are first sent to.
TEMPLATE_TOPIC = AUTO_CREATE_TOPIC
MASTER_ID = 0
#: A topic that no NameServer knows any more is believed to be gone after so many seconds:
#: brokers register each 30 s, 60 s at most.
FORGOTTEN_AFTER = 90.0
#: More queues than any topic has: a route with more of them is a mistake or an attack.
_MAX_QUEUES = 65_536
_NUMBER = re.compile("[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers of one topic and the queues on them."""

    topic: str
    #: Queues that take messages, in order; a broker without a master has none. Of a topic with
    #: an order configuration they are those of the configuration, in its order, whether their
    #: brokers are there or not: so that keys keep their queues when a broker is lost.
    write_queues: tuple[MessageQueue, ...]
    #: Queues that can be read, in order.
    read_queues: tuple[MessageQueue, ...]
    #: Addresses by broker name, then by broker id (0 is the master).
    addresses: dict[str, dict[int, str]]
    #: The clusters that the brokers belong to.
    clusters: frozenset[str] = frozenset()

    @classmethod
    def from_body(cls, topic: str, body: TopicRouteData) -> TopicRoute:
        """The route that a NameServer's answer describes; raises BodyError."""
        if any(
            max(data.read_queue_nums, data.write_queue_nums) > _MAX_QUEUES
            for data in body.queue_datas
        ):
            raise BodyError(f"route of topic {topic!r} has more than {_MAX_QUEUES} queues")
        addresses = {broker.broker_name: dict(broker.broker_addrs) for broker in body.broker_datas}
        write_queues = sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in body.queue_datas
            if is_writable(data.perm) and MASTER_ID in addresses.get(data.broker_name, {})
            for queue_id in range(data.write_queue_nums)
        )
        if body.order_topic_conf:
            write_queues = _configured_queues(topic, body.order_topic_conf)
        read_queues = [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in body.queue_datas
            if is_readable(data.perm) and addresses.get(data.broker_name)
            for queue_id in range(data.read_queue_nums)
        ]
        clusters = frozenset(broker.cluster for broker in body.broker_datas)
        return cls(topic, tuple(write_queues), tuple(sorted(read_queues)), addresses, clusters)

    def for_new_topic(self, topic: str, queue_count: int) -> TopicRoute:
        """Where `topic` will be once a broker of this template's route has created it."""
        return replace(
            self,
            topic=topic,
            write_queues=_renamed(self.write_queues, topic, queue_count),
            read_queues=_renamed(self.read_queues, topic, queue_count),
        )

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """The address of that broker, or of another of its replicas when it has none."""
        replicas = self.addresses[broker_name]
        return replicas.get(broker_id) or replicas[min(replicas)]

    def master_of(self, broker_name: str) -> str | None:
        """The address of that broker's master, None when it is not there."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def masters(self) -> set[str]:
        """The addresses of all masters."""
        return {ids[MASTER_ID] for ids in self.addresses.values() if MASTER_ID in ids}


class Routes:
    """Routes by topic, as the NameServers `addresses` give them.

    A route is asked for again when it is older than `max_age` seconds; until a NameServer
    answers, the old one stays in use. `on_change` is told of each route that is new or another.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        addresses: Iterable[str],
        *,
        request_timeout: float = 3.0,
        max_age: float = 30.0,
        on_change: Callable[[TopicRoute], None] | None = None,
    ) -> None:
        self._on_change = on_change
        self._remoting = remoting
        self._addresses = list(addresses)
        # Clients that start together should not all ask the same NameServer.
        random.shuffle(self._addresses)
        self._request_timeout = request_timeout
        self._max_age = max_age
        self._known: dict[str, tuple[TopicRoute, float]] = {}
        #: When a NameServer last knew a topic.
        self._confirmed: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}

    async def get(self, topic: str) -> TopicRoute:
        """The route of `topic`; raises TopicNotFoundError or NameServerError if it is unknown."""
        return self.peek(topic) or await self.refresh(topic)

    def peek(self, topic: str) -> TopicRoute | None:
        """The route of `topic` if it is known; an old one is asked for again meanwhile."""
        known = self._known.get(topic)
        if known is None:
            return None
        route, asked_at = known
        if time.monotonic() - asked_at >= self._max_age and topic not in self._asking:
            self._ask_shared(topic).add_done_callback(lambda done: self._renewed(topic, done))
        return route

    async def refresh(self, topic: str) -> TopicRoute:
        """The route of `topic` as the NameServers know it now."""
        asking = self._asking.get(topic) or self._ask_shared(topic)
        try:
            # Shielded: one caller that gives up must not end the others' question.
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():
                raise ClientStateError(
                    f"this client was closed while it asked for the route of topic {topic!r}"
                ) from None
            raise

    def known(self) -> list[TopicRoute]:
        """The routes in use."""
        return [route for route, _ in self._known.values()]

    async def close(self) -> None:
        """Give up what is being asked."""
        asking = list(self._asking.values())
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # Helpers, in call order.

    def _ask_shared(self, topic: str) -> asyncio.Task[TopicRoute]:
        asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
        asking.add_done_callback(lambda done: self._asked(topic, done))
        return asking

    def _asked(self, topic: str, asking: asyncio.Task[TopicRoute]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # seen, also when every caller has given up

    def _renewed(self, topic: str, asking: asyncio.Task[TopicRoute]) -> None:
        """Nobody may have waited for it: what went wrong is told here."""
        error = None if asking.cancelled() else asking.exception()
        known = self._known.get(topic)
        if error is None:
            return
        if known is None:
            logger.warning("%s", error)
            return
        # Asked for again when it is old the next time, not with every send.
        self._known[topic] = (known[0], time.monotonic())
        logger.warning("route of %s is kept although it is old: %s", topic, error)

    async def _ask(self, topic: str) -> TopicRoute:
        failures: dict[str, Exception] = {}
        unknown: TopicNotFoundError | None = None
        for address in list(self._addresses):
            try:
                route = await self._ask_one(address, topic)
            except (RemotingError, BrokerError, AnswerError) as error:
                failures[address] = error
                # The next question begins with a NameServer that has not failed just now.
                self._addresses.remove(address)
                self._addresses.append(address)
            except TopicNotFoundError as error:
                unknown = error
            else:
                return self._take(route)
        if unknown is not None:
            return self._keep_or_forget(topic, unknown)
        raise NameServerError(f"tell the route of topic {topic!r}", failures)

    def _keep_or_forget(self, topic: str, unknown: TopicNotFoundError) -> TopicRoute:
        known = self._known.get(topic)
        now = time.monotonic()
        if known is None or now - self._confirmed[topic] >= FORGOTTEN_AFTER:
            self._known.pop(topic, None)
            self._confirmed.pop(topic, None)
            raise unknown
        logger.warning("%s: the route is kept for now, NameServers may have restarted", unknown)
        self._known[topic] = (known[0], now)
        return known[0]

    def _take(self, route: TopicRoute) -> TopicRoute:
        known = self._known.get(route.topic)
        if known is not None and known[0] == route:
            # The same object: what was derived from it stays valid.
            route = known[0]
        now = self._confirmed[route.topic] = time.monotonic()
        self._known[route.topic] = (route, now)
        if (known is None or known[0] is not route) and self._on_change is not None:
            self._on_change(route)
        return route

    async def _ask_one(self, address: str, topic: str) -> TopicRoute:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._remoting.request(
            address,
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=header.encode()),
            self._request_timeout,
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFoundError(topic, answer.remark or "the NameServer does not know it")
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(address, answer.code, answer.remark)
        with reading_answer(address):
            return TopicRoute.from_body(topic, TopicRouteData.decode(answer.body))


def _renamed(
    queues: Iterable[MessageQueue], topic: str, queue_count: int
) -> tuple[MessageQueue, ...]:
    return tuple(replace(queue, topic=topic) for queue in queues if queue.queue_id < queue_count)


def _configured_queues(topic: str, configuration: str) -> list[MessageQueue]:
    """The queues of an ordered topic: `broker:queues;broker:queues`, as its NameServers have it."""
    queues: list[MessageQueue] = []
    for part in filter(None, configuration.split(";")):
        broker_name, _, count = part.partition(":")
        if not (broker_name and _NUMBER.fullmatch(count)) or len(queues) + int(count) > _MAX_QUEUES:
            raise BodyError(
                f"order configuration of topic {topic!r}: {shorten(part)} is not a broker's name, "
                "a colon and a number of queues"
            )
        queues += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count))]
    return queues
