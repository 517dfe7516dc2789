"""Look up the brokers of a topic at the NameServers, and cache them.

A client has one `Routes`, on its event loop. Callers wait only for the first lookup of a topic: an
old route is returned as it is and refreshed in the background, so a NameServer that hangs delays no
send and no pull. Concurrent lookups of a topic share one request.

NameServers share no state. The client uses the first one that answers, until it fails. A
NameServer that does not know a topic may just have started, so the others are asked as well, and a
cached route is dropped only after no NameServer has known it for so long that every broker must
have registered again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace

from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientStateError,
    NameServerError,
    NoMasterError,
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

#: The topic whose route lists the brokers that create topics on the first send.
TEMPLATE_TOPIC = AUTO_CREATE_TOPIC
MASTER_ID = 0
#: Seconds after which a route unknown to every NameServer is dropped. Brokers register every 30 s,
#: at the latest every 60 s.
FORGOTTEN_AFTER = 90.0
#: More queues than any topic has: a larger route is a bug or an attack.
_MAX_QUEUES = 65_536
_NUMBER = re.compile("[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers of one topic and the queues on them."""

    topic: str
    #: Writable queues, sorted; a broker without a master has none. For a topic with an order
    #: configuration: the configured queues in that order, whether their brokers are reachable or
    #: not, so that ordering keys keep their queues when a broker is lost.
    write_queues: tuple[MessageQueue, ...]
    #: Readable queues, sorted.
    read_queues: tuple[MessageQueue, ...]
    #: Addresses by broker name and broker id (0 is the master).
    addresses: dict[str, dict[int, str]]
    #: The brokers' clusters.
    clusters: frozenset[str] = frozenset()

    @classmethod
    def from_body(cls, topic: str, body: TopicRouteData) -> TopicRoute:
        """Convert a NameServer's response; raises BodyError."""
        if any(
            max(data.read_queue_nums, data.write_queue_nums) > _MAX_QUEUES
            for data in body.queue_datas
        ):
            raise BodyError(f"route of topic {topic!r} has more than {_MAX_QUEUES} queues")
        addresses = {
            broker.broker_name: dict(broker.broker_addrs)
            for broker in body.broker_datas
            if broker.broker_addrs
        }
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
            if is_readable(data.perm) and data.broker_name in addresses
            for queue_id in range(data.read_queue_nums)
        ]
        clusters = frozenset(broker.cluster for broker in body.broker_datas)
        return cls(topic, tuple(write_queues), tuple(sorted(read_queues)), addresses, clusters)

    def for_new_topic(self, topic: str, queue_count: int) -> TopicRoute:
        """Return the route that `topic` will have once brokers create it from this template."""
        return replace(
            self,
            topic=topic,
            write_queues=_renamed(self.write_queues, topic, queue_count),
            read_queues=_renamed(self.read_queues, topic, queue_count),
        )

    def place_of(
        self, broker_name: str, broker_id: int = MASTER_ID, away: Container[str] = ()
    ) -> tuple[str, int]:
        """Return the address and the id to read from, as Java's client chooses them.

        That is the broker with this id; for a replica that is missing, the one with the next id;
        else the lowest id. A broker at an address in `away` is used only if there is no other.
        """
        known = ids = self.addresses[broker_name]
        if away:
            ids = {key: address for key, address in known.items() if address not in away} or known
        if broker_id not in ids:
            following = broker_id + 1
            broker_id = following if broker_id and following in ids else min(ids)
        return ids[broker_id], broker_id

    def master_of(self, broker_name: str) -> str | None:
        """Return the address of a broker's master, or None."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def no_master(self, topic: str, *broker_names: str) -> NoMasterError:
        """Return the error about brokers without a master, under the application's topic name."""
        return NoMasterError(topic, {name: self.addresses.get(name, {}) for name in broker_names})

    def headless(self) -> list[str]:
        """Return the names of brokers without a master: only replicas are left of them."""
        return [name for name, ids in self.addresses.items() if MASTER_ID not in ids]

    def masters(self) -> set[str]:
        """Return the addresses of all masters."""
        return {ids[MASTER_ID] for ids in self.addresses.values() if MASTER_ID in ids}

    def everyone(self) -> list[str]:
        """Return all addresses, those of masters first."""
        return [
            address
            for _, address in sorted(
                (broker_id != MASTER_ID, address)
                for ids in self.addresses.values()
                for broker_id, address in ids.items()
            )
        ]


class Routes:
    """The cached routes of a client, from the NameServers at `addresses`.

    A route older than `max_age` seconds is refreshed on its next use and stays in use meanwhile.
    `on_change` is called with every new or changed route.
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
        # Spread clients that start together over the NameServers.
        random.shuffle(self._addresses)
        self._request_timeout = request_timeout
        self._max_age = max_age
        self._known: dict[str, tuple[TopicRoute, float]] = {}
        #: Time at which a NameServer last knew a topic.
        self._confirmed: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}

    async def get(self, topic: str) -> TopicRoute:
        """Return the route of `topic`; raises TopicNotFoundError or NameServerError."""
        return self.peek(topic) or await self.refresh(topic)

    def peek(self, topic: str) -> TopicRoute | None:
        """Return the cached route of `topic` or None, and start a refresh if it is old."""
        known = self._known.get(topic)
        if known is None:
            return None
        route, asked_at = known
        if time.monotonic() - asked_at >= self._max_age and topic not in self._asking:
            self._ask_shared(topic).add_done_callback(lambda done: self._renewed(topic, done))
        return route

    async def refresh(self, topic: str) -> TopicRoute:
        """Look up the route of `topic` at the NameServers and return it."""
        asking = self._asking.get(topic) or self._ask_shared(topic)
        try:
            # Shielded: a cancelled caller must not cancel the lookup of the others.
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():
                raise ClientStateError(
                    f"this client was closed while it looked up the route of topic {topic!r}"
                ) from None
            raise

    def doubt(self, topic: str) -> None:
        """Refresh the route of `topic` on its next use: a broker of it failed."""
        if (known := self._known.get(topic)) is not None:
            self._known[topic] = (known[0], -math.inf)

    def known(self) -> list[TopicRoute]:
        """Return all cached routes."""
        return [route for route, _ in self._known.values()]

    async def close(self) -> None:
        """Cancel the lookups in flight."""
        asking = list(self._asking.values())
        for question in asking:
            question.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # Helpers, in call order

    def _ask_shared(self, topic: str) -> asyncio.Task[TopicRoute]:
        asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
        asking.add_done_callback(lambda done: self._asked(topic, done))
        return asking

    def _asked(self, topic: str, asking: asyncio.Task[TopicRoute]) -> None:
        del self._asking[topic]
        if not asking.cancelled():
            asking.exception()  # marks it as retrieved, even if no caller waits any more

    def _renewed(self, topic: str, asking: asyncio.Task[TopicRoute]) -> None:
        """Log the failure of a background refresh, which no caller waits for."""
        error = None if asking.cancelled() else asking.exception()
        known = self._known.get(topic)
        if error is None:
            return
        if known is None:
            logger.warning("%s", error)
            return
        # Retry after another `max_age`, not on every send.
        self._known[topic] = (known[0], time.monotonic())
        logger.warning("refreshing the route of topic %s failed, keeping it: %s", topic, error)

    async def _ask(self, topic: str) -> TopicRoute:
        failures: dict[str, Exception] = {}
        unknown: TopicNotFoundError | None = None
        for address in list(self._addresses):
            try:
                route = await self._ask_one(address, topic)
            except (RemotingError, BrokerError, AnswerError) as error:
                failures[address] = error
                # Start the next lookup with another NameServer.
                self._addresses.remove(address)
                self._addresses.append(address)
            except TopicNotFoundError as error:
                unknown = error
            else:
                return self._take(route)
        if unknown is not None:
            return self._keep_or_forget(topic, unknown)
        raise NameServerError(f"return the route of topic {topic!r}", failures)

    def _keep_or_forget(self, topic: str, unknown: TopicNotFoundError) -> TopicRoute:
        known = self._known.get(topic)
        now = time.monotonic()
        if known is None or now - self._confirmed[topic] >= FORGOTTEN_AFTER:
            self._known.pop(topic, None)
            self._confirmed.pop(topic, None)
            raise unknown
        logger.warning("%s; keeping the route for now, NameServers may have restarted", unknown)
        self._known[topic] = (known[0], now)
        return known[0]

    def _take(self, route: TopicRoute) -> TopicRoute:
        known = self._known.get(route.topic)
        if known is not None and known[0] == route:
            # Keep the object: derived data is valid for this very object.
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
            raise TopicNotFoundError(topic, answer.remark or f"NameServer {address} has no route")
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(address, answer.code, answer.remark)
        with reading_answer(address):
            return TopicRoute.from_body(topic, TopicRouteData.decode(answer.body))


def _renamed(
    queues: Iterable[MessageQueue], topic: str, queue_count: int
) -> tuple[MessageQueue, ...]:
    return tuple(replace(queue, topic=topic) for queue in queues if queue.queue_id < queue_count)


def _configured_queues(topic: str, configuration: str) -> list[MessageQueue]:
    """Parse the order configuration of a topic: `broker:queues;broker:queues`."""
    queues: list[MessageQueue] = []
    for entry in filter(None, configuration.split(";")):
        broker_name, _, count = entry.partition(":")
        if not (broker_name and _NUMBER.fullmatch(count)) or len(queues) + int(count) > _MAX_QUEUES:
            raise BodyError(
                f"order configuration of topic {topic!r}: expected broker:queues, "
                f"got {shorten(entry)}"
            )
        queues += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count))]
    return queues
