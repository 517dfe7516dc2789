"""Choose the queue and the broker that get a message.

A message goes to the queue the caller gives or its selector picks, else to the queue of its
ordering key, else round-robin over the topic's queues without brokers that failed or were slow
recently. A topic that does not exist yet goes to the brokers that create topics (those that serve
TBW102), and continues to do so until routes are due for a refresh, as in RocketMQ: the first broker
that creates the topic registers it at once, and would otherwise get all messages.

`Targets` belongs to one producer and runs on its event loop. `quick` is on the path of every send.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pyromq.client.errors import IllegalMessageError, NameServerError, TopicNotFoundError
from pyromq.client.message import Message
from pyromq.client.producer.pacing import BrokerFaults
from pyromq.client.producer.sending import Target
from pyromq.client.session.routes import TEMPLATE_TOPIC, TopicRoute
from pyromq.client.session.session import Session
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.names import REPLY_TOPIC_SUFFIX
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

#: Time limit of a route refresh before another attempt.
_REFRESH_SECONDS: Final = 0.5

#: Picks one of a topic's queues for a message.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Targets:
    """The writable queues of each topic, and which of them is next."""

    def __init__(
        self, session: Session, group_name: str, topic_queues: int, faults: BrokerFaults
    ) -> None:
        """Take the group name as servers know it, and the queue count of topics it creates."""
        self._session = session
        self._group_name = group_name
        self._topic_queues = topic_queues
        self._faults = faults
        self._plans: dict[str, Plan] = {}
        #: The expected routes of topics that did not exist yet.
        self._expected: dict[str, _Expected] = {}
        #: New topics whose expected route has failed: the template's may be old.
        self._doubted: set[str] = set()

    def quick(self, topic: str) -> Target | None:
        """Return the next queue if the topic's route is known and no broker is avoided."""
        plan = self._plans.get(topic)
        if plan is None or self._faults:
            return None
        route = self._session.routes.peek(plan.topic) or self._expected_route(plan.topic)
        return plan.next() if route is plan.route and route is not None else None

    async def choose(
        self, topic: str, fixed: MessageQueue | None, failed_broker: str | None = None
    ) -> Target:
        """Return the queue `fixed`, or the next one, if possible not on `failed_broker`."""
        plan = await self.plan(topic)
        if fixed is not None:
            return plan.target(fixed)
        now = time.monotonic()
        first = plan.next()
        target = first
        for _ in range(len(plan.targets)):
            broker = target.queue.broker_name
            if broker != failed_broker and not self._faults.is_avoided(broker, now):
                return target
            target = plan.next()
        # Every broker has failed or is slow: take any but the one that failed last.
        for _ in range(len(plan.targets)):
            if target.queue.broker_name != failed_broker:
                return target
            target = plan.next()
        return first

    async def select(self, message: Message, select: QueueSelector | None) -> MessageQueue:
        """Return the queue that `select` picks, or else the queue of the ordering key."""
        plan = await self.plan(message.topic)
        if select is None:
            return plan.queues[_queue_index(message.ordering_key, len(plan.queues))]
        queue = select(plan.queues, message)
        if queue not in plan.queues:
            raise IllegalMessageError(
                f"the selector picked {queue!r}, which is not one of the {len(plan.queues)} queues "
                f"of topic {message.topic!r}"
            )
        return queue

    async def queue_for_batch(
        self, messages: Sequence[Message], *, is_split: bool
    ) -> MessageQueue | None:
        """Return the one queue that all messages go to, or None if any queue will do.

        A batch that `is_split` over several requests needs one queue to stay in order.
        """
        keys = {message.ordering_key for message in messages} - {""}
        topic = messages[0].topic
        if not keys:
            if not is_split:
                return None
            target = await self.choose(topic, None)
            return MessageQueue(topic, target.queue.broker_name, target.queue.queue_id)
        queues = (await self.plan(topic)).queues
        indexes = {_queue_index(key, len(queues)) for key in keys}
        if len(indexes) > 1:
            raise IllegalMessageError(
                f"a batch has ordering keys of {len(indexes)} queues of topic {topic!r}: send one "
                "batch for each key"
            )
        return queues[indexes.pop()]

    async def plan(self, topic: str, *, fresh: bool = False) -> Plan:
        """Return the topic's queues, or its future queues if it does not exist yet."""
        # Reply topics belong to a cluster and have no namespace.
        name = topic if topic.endswith(REPLY_TOPIC_SUFFIX) else self._session.wrap(topic)
        route = await self._route(name, fresh=fresh)
        plan = self._plans.get(topic)
        if plan is None or plan.route is not route:
            targets = [
                Target(queue, address, self._group_name, self._topic_queues)
                for queue in route.write_queues
                if (address := route.master_of(queue.broker_name)) is not None
            ]
            if not targets and not fresh:
                # A master may be back since the route was cached.
                return await self.plan(topic, fresh=True)
            if not targets:
                if route.headless():
                    raise route.no_master(topic, *route.headless())
                raise TopicNotFoundError(topic, "none of its brokers is writable now")
            turn = plan.turn if plan is not None else random.randrange(len(targets))  # noqa: S311
            plan = self._plans[topic] = Plan(route, topic, name, targets, turn)
        return plan

    def doubt(self, topic: str) -> None:
        """Look the route up again at the next send: a send failed, another broker may lead now."""
        plan = self._plans.get(topic)
        if plan is not None:
            self._session.routes.doubt(plan.topic)
            if self._expected.pop(plan.topic, None) is not None:
                self._doubted.add(plan.topic)

    def forgive(self, address: str) -> None:
        """Stop avoiding the broker at `address`, which is reachable again."""
        for route in self._session.routes.known():
            for name, replicas in route.addresses.items():
                if address in replicas.values():
                    self._faults.forgive(name)

    async def _route(self, topic: str, *, fresh: bool) -> TopicRoute:
        routes = self._session.routes
        try:
            if fresh:
                try:
                    async with asyncio.timeout(_REFRESH_SECONDS):
                        return await routes.refresh(topic)
                except (NameServerError, TimeoutError):
                    # The known route may do for another attempt.
                    logger.debug("refreshing the route of topic %s failed", topic, exc_info=True)
            elif (expected := self._expected_route(topic)) is not None:
                return routes.peek(topic) or expected
            return await routes.get(topic)
        except TopicNotFoundError as error:
            try:
                if fresh or topic in self._doubted:
                    self._doubted.discard(topic)
                    template = await routes.refresh(TEMPLATE_TOPIC)
                else:
                    template = await routes.get(TEMPLATE_TOPIC)
            except TopicNotFoundError:
                raise error from None
            known = self._expected.get(topic)
            if known is None or known.template is not template:
                route = template.for_new_topic(topic, self._topic_queues)
            else:
                route = known.route
            until = time.monotonic() + self._session.settings.route_interval
            self._expected[topic] = _Expected(template, route, until)
            return route

    def _expected_route(self, topic: str) -> TopicRoute | None:
        """Return the route that a new topic will have, until it is time to look it up again."""
        expected = self._expected.get(topic)
        if expected is None or time.monotonic() >= expected.until:
            return None
        return expected.route


class _Expected(NamedTuple):
    """The route that a new topic will have, derived from the template's."""

    template: TopicRoute
    route: TopicRoute
    #: Time of the next lookup.
    until: float


class Plan:
    """A topic's writable queues under one route, in round-robin order."""

    __slots__ = ("_by_queue", "queues", "route", "targets", "topic", "turn")

    def __init__(
        self, route: TopicRoute, name: str, topic: str, targets: list[Target], turn: int
    ) -> None:
        """Take the topic's name as the application knows it, and as servers do."""
        self.route = route
        self.topic = topic
        self.targets = targets
        self.turn = turn
        #: Under the application's names. A queue of an ordered topic may have no target now.
        self.queues = tuple(
            MessageQueue(name, queue.broker_name, queue.queue_id) for queue in route.write_queues
        )
        self._by_queue = {
            MessageQueue(name, target.queue.broker_name, target.queue.queue_id): target
            for target in targets
        }

    def next(self) -> Target:
        """Return the next target in turn."""
        turn = self.turn = self.turn + 1
        targets = self.targets
        return targets[turn % len(targets)]

    def target(self, queue: MessageQueue) -> Target:
        """Return the target of `queue`; raises TopicNotFoundError."""
        found = self._by_queue.get(queue)
        if found is None and queue.broker_name in self.route.headless():
            raise self.route.no_master(queue.topic, queue.broker_name)
        if found is None and queue in self.queues:
            raise TopicNotFoundError(
                queue.topic,
                f"broker {queue.broker_name!r} is unreachable, and no other broker may take "
                "messages of an ordered topic in its place",
            )
        if found is None:
            raise TopicNotFoundError(
                queue.topic,
                f"queue {queue.queue_id} of broker {queue.broker_name!r} is not among the "
                f"{len(self.queues)} writable queues",
            )
        return found


def _queue_index(ordering_key: str, queue_count: int) -> int:
    """Return a key's queue, as Java's SelectMessageQueueByHash does."""
    return abs(java_hash(ordering_key)) % queue_count
