"""Sending messages.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("orders", b"...", tags="new"))

Where a message goes: to the queue that is given, or that a selector picks, or that its
ordering key stands for; otherwise to the topic's queues in turn, leaving out brokers that
failed or were slow just now. A topic that does not exist is sent to the brokers that create
topics (those that serve TBW102).

When a broker fails, or answers that it cannot take the message now, the send is tried again
at another broker where there is one, so a message may be stored twice: consumers recognise
it by its unique key (`SendResult.msg_id`). A message with a queue of its own is tried again
at that queue only: order comes first.

With `batching`, sends that come close together share a request (`accumulator`). At most
`max_in_flight` messages are on their way; those who send more wait. On the event loop of
its owner; `Producer.sync` is for everyone without one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, Unpack

from pyromq.client.arguments import (
    LONG_MAX,
    check_callable,
    check_count,
    check_flag,
    check_queue,
    check_seconds,
    refusal,
)
from pyromq.client.client import Client
from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientError,
    IllegalMessageError,
    NameServerError,
    OptionError,
    RequestTimeoutError,
    TopicNotFoundError,
    refusal_of,
)
from pyromq.client.hooks import Hooks, Sending
from pyromq.client.message import (
    MAX_DELAY_LEVEL,
    Message,
    check_group,
    check_message,
    check_topic,
)
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.producer.accumulator import Accumulator, Batching
from pyromq.client.producer.faults import QUICK, BrokerFaults
from pyromq.client.producer.gate import Gate
from pyromq.client.producer.request_reply import Requests, as_request
from pyromq.client.producer.sending import Outgoing, Target, batches_of
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import STATUS_BY_CODE, SendResult, SendStatus
from pyromq.client.session.routes import TEMPLATE_TOPIC, TopicRoute
from pyromq.client.session.session import Session
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.names import REPLY_TOPIC_SUFFIX
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RawFrame, frame_from
from pyromq.remoting.client import ClientHandler, RemotingError, RemotingTimeoutError

if TYPE_CHECKING:
    from pyromq.client.sync import SyncProducer

_Arguments = ParamSpec("_Arguments")
logger = logging.getLogger(__name__)

DEFAULT_GROUP = "PYROMQ_PRODUCER"
#: How many queues a topic gets that a send creates, unless its broker says fewer.
DEFAULT_TOPIC_QUEUES = 4
#: Bodies from this size on are compressed, as in RocketMQ.
COMPRESS_OVER = 4096

#: How long another attempt waits for NameServers to tell the topic's brokers anew.
_FRESH_ROUTE_SECONDS = 0.5

#: Answers after which another broker may take the message.
_RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)

#: Picks one of a topic's queues for a message.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of producers; see `Producer`. Times are in seconds."""

    send_timeout: float
    retries: int
    retry_unsafe: bool
    batching: Batching | None
    compress_over: int
    topic_queues: int
    max_in_flight: int
    avoid_slow_brokers: bool
    max_delay_level: int


class Producer(Client):
    """Sends messages to the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    `send_timeout` bounds one attempt, in seconds; `retries` is how many more follow a failed
    one; `retry_unsafe` also tries again when a message was stored but not flushed or
    replicated in time. Bodies of `compress_over` bytes and more are compressed.
    `topic_queues` is how many queues a topic gets that a send creates. `max_delay_level` is for
    brokers whose messageDelayLevel has more levels than the default.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        send_timeout: float = 3.0,
        retries: int = 2,
        retry_unsafe: bool = False,
        batching: Batching | None = None,
        compress_over: int = COMPRESS_OVER,
        topic_queues: int = DEFAULT_TOPIC_QUEUES,
        max_in_flight: int = 16_384,
        avoid_slow_brokers: bool = True,
        max_delay_level: int = MAX_DELAY_LEVEL,
        **options: Unpack[ClientOptions],
    ) -> None:
        check_group(group)
        check_seconds("send_timeout", send_timeout)
        check_count("retries", retries, 0)
        check_flag("retry_unsafe", retry_unsafe)
        if batching is not None and not isinstance(batching, Batching):
            raise refusal("batching", batching, "a Batching or None is needed")
        check_count("compress_over", compress_over, most=LONG_MAX)
        check_count("topic_queues", topic_queues)
        check_count("max_in_flight", max_in_flight)
        check_count("max_delay_level", max_delay_level)
        check_flag("avoid_slow_brokers", avoid_slow_brokers)
        settings = Settings.of(namesrv, options, ProducerOptions)
        self.group = group
        self.hooks = Hooks(settings.hooks)
        self._trace = message_trace(settings, group, TraceRole.PRODUCE, Producer)
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._send_timeout = send_timeout
        self._retries = retries
        self._retry_unsafe = retry_unsafe
        self._compress_over = compress_over
        self._max_delay_level = max_delay_level
        self._topic_queues = topic_queues
        self._faults = BrokerFaults()
        self._avoids = avoid_slow_brokers
        self._plans: dict[str, _Plan] = {}
        #: Where topics will be that do not exist yet, by the route of the template.
        self._created: dict[str, tuple[TopicRoute, TopicRoute]] = {}
        self._gate = Gate(max_in_flight)
        self._requests = Requests()
        self._session = Session(
            settings, self._describe, handlers=self._handlers(), on_return=self._forgive
        )
        self._group_name = self._session.wrap(group)
        self._accumulator = None if batching is None else Accumulator(batching, self._deliver)
        #: Requests are built from a template unless somebody wants to see or sign them.
        self._is_plain = not self.hooks.send and not settings.access_key

    @classmethod
    def sync(
        cls: Callable[_Arguments, Producer], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> SyncProducer:
        """The same for programs without an event loop."""
        from pyromq.client.sync import SyncProducer

        return SyncProducer(partial(cls, *args, **kwargs))

    # Life

    async def start(self) -> None:
        """Make it ready to send; nothing is connected before the first message."""
        self._session.start()
        if self._trace is not None:
            await self._trace.start()

    async def close(self) -> None:
        """Send what waits to be batched, let what is under way end, leave the cluster."""
        if self._session.running:
            if self._accumulator is not None:
                await self._accumulator.flush()
            await self._gate.wait_empty(self._send_timeout * (1 + self._retries))
        self._requests.close()
        if self._trace is not None:
            await self._trace.close()
        await self._session.close(producer_group=self._group_name)

    # Sending

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> SendResult:
        """Store one message, on `queue` or on what `select` picks if given, and say where.

        Raises IllegalMessageError, TopicNotFoundError, NameServerError, BrokerError or
        RemotingError (the last attempt's); all of them are RocketMQError.
        """
        check_message(message)
        if queue is not None or select is not None or timeout is not None:
            check_send(queue, select, timeout)
        if (
            self._accumulator is not None
            and queue is None
            and select is None
            and self._accumulator.takes(message)
        ):
            self._session.check_running()
            if message.ordering_key:
                message.check()
                queue = await self._select(message, None)
            return await self._accumulator.add(message, queue, timeout)
        outgoing = Outgoing(message, self._compress_over, self._max_delay_level)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._select(message, select)
        (result,) = await self._deliver(outgoing, queue, timeout)
        return result

    async def send_batch(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> list[SendResult]:
        """Store messages of one topic, one behind the other; a result for each of them.

        What is too large for one request is split, and stays in order on one queue. Ordering
        keys must stand for the same queue, unless it is given.
        """
        if isinstance(messages, Message | ReceivedMessage | str) or not isinstance(
            messages, Iterable
        ):
            raise refusal("messages", messages, "a list of Message is needed")
        check_send(queue, None, timeout)
        together = list(messages)
        batches = batches_of(together)
        if queue is None:
            queue = await self._queue_for_all(together, is_split=len(batches) > 1)
        results = []
        for batch in batches:
            results += await self._deliver(batch, queue, timeout)
        return results

    async def send_encoded(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> SendResult:
        """Store what `Outgoing.encoded` has made; the result of its first message.

        For those who encode many messages at once, as the Spark sink does.
        """
        check_send(queue, None, timeout)
        (result,) = await self._deliver(outgoing, queue, timeout)
        return result

    async def send_oneway(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> None:
        """Send one message and wait for nothing: whether it was stored is not known."""
        check_message(message)
        check_send(queue, select, None)
        self._session.check_running()
        outgoing = Outgoing(message, self._compress_over, self._max_delay_level)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._select(message, select)
        target = await self._target(outgoing.topic, queue, None)
        sending = self._begin(outgoing, target, is_oneway=True)
        remoting = self._session.remoting
        try:
            if self._is_plain:
                connection = remoting.ready(target.address) or await remoting.connect(
                    target.address
                )
                connection.write(target.frame(outgoing, connection.next_opaque(), FLAG_ONEWAY))
            else:
                await remoting.send_oneway(target.address, target.command(outgoing, is_oneway=True))
        except BaseException as error:
            self._end(sending, None, error)
            raise
        self._end(sending, None, None)

    async def request(
        self,
        message: Message,
        timeout: float = 3.0,  # noqa: ASYNC109 - it is told to who replies
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for its reply (see `request_reply`), at most `timeout` seconds.

        Raises RequestTimeoutError, or what `send` raises.
        """
        check_message(message)
        message.check(self._max_delay_level)
        message.wire_properties("")  # refused before anybody is asked
        check_seconds("timeout", timeout)
        check_send(queue, select, None)
        self._session.check_running()
        is_stored = False
        try:
            with self._requests.expect() as (correlation_id, reply):
                request = as_request(message, correlation_id, self.client_id, timeout)
                async with asyncio.timeout(timeout) as limit:
                    route = (await self._plan(message.topic)).route
                    await self._requests.meet_repliers(self._session, route)
                    await self.send(request, queue, select=select, timeout=timeout)
                    is_stored = True
                    return await reply
        except TimeoutError:
            if not limit.expired():
                raise
            problem = "stored, but not replied to" if is_stored else "not stored"
            raise RequestTimeoutError(message.topic, timeout, problem) from None

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that take messages now."""
        check_topic(topic)
        self._session.check_running()
        return list((await self._plan(topic)).queues)

    # One request, as often as needed

    async def _deliver(
        self,
        outgoing: Outgoing,
        fixed: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> list[SendResult]:
        session = self._session
        if not session.running:
            session.check_running()
        gate = self._gate
        count = len(outgoing.keys)
        if not gate.enter(count):
            await gate.wait(count)
        try:
            target = self._quick_target(outgoing.topic) if fixed is None else None
            if target is None:
                target = await self._target(outgoing.topic, fixed, None)
            for attempt in itertools.count():
                is_last = attempt >= self._retries
                results, failure = await self._attempt(outgoing, target, timeout)
                if results is not None and (
                    is_last
                    or results[0].status is SendStatus.SEND_OK
                    or not self._retry_unsafe
                    or fixed is not None
                ):
                    return results
                if failure is not None and (is_last or not _may_retry(failure)):
                    raise failure
                await self._plan(outgoing.topic, fresh=True)
                target = await self._target(outgoing.topic, fixed, target.queue.broker_name)
        finally:
            gate.leave(count)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        outgoing: Outgoing,
        target: Target,
        timeout: float | None,  # noqa: ASYNC109 - of this attempt
    ) -> tuple[list[SendResult] | None, ClientError | RemotingError | None]:
        sending = None if self._is_plain else self._begin(outgoing, target)
        queue, address = target.queue, target.address
        results: list[SendResult] | None = None
        failure: ClientError | RemotingError | None = None
        begun = time.monotonic()
        try:
            connection = self._session.remoting.ready(address) if self._is_plain else None
            if connection is None:
                header = (await self._ask(outgoing, target, timeout or self._send_timeout))[1]
            else:
                opaque = connection.next_opaque()
                frame = target.frame(outgoing, opaque)
                header = (
                    await connection.call(
                        opaque, frame, outgoing.code, timeout or self._send_timeout
                    )
                )[1]
        except RemotingError as error:
            failure = error
            if self._avoids:
                self._faults.note_failure(queue.broker_name, time.monotonic())
        except asyncio.CancelledError as error:
            if sending is not None:
                self._end(sending, None, error)
            raise
        else:
            if self._avoids:
                now = time.monotonic()
                if self._faults or now - begun >= QUICK:
                    self._faults.note(queue.broker_name, now - begun, now)
            code = header.get("code")
            status = STATUS_BY_CODE.get(code) if type(code) is int else None
            if status is None:
                failure = refusal_of(address, header)
            else:
                try:
                    fields = header.get("extFields") or {}
                    results = outgoing.results(fields, self._name(queue), status)
                except ValueError as error:
                    failure = AnswerError(address, error)
        if sending is not None:
            self._end(sending, results, failure)
        return results, failure

    async def _ask(self, outgoing: Outgoing, target: Target, timeout: float) -> RawFrame:  # noqa: ASYNC109
        """Ask for somebody who looks at requests, or over a connection that is not there yet."""
        remoting = self._session.remoting
        if not self._is_plain:
            command = target.command(outgoing)
            return frame_from(await remoting.request(target.address, command, timeout))
        # Connecting counts, too.
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                connection = await remoting.connect(target.address)
        except TimeoutError:
            raise RemotingTimeoutError(
                target.address, f"no connection to {target.address} within {timeout:g} s"
            ) from None
        timeout = max(0.001, timeout - (time.monotonic() - began))
        opaque = connection.next_opaque()
        return await connection.call(opaque, target.frame(outgoing, opaque), outgoing.code, timeout)

    def _begin(self, outgoing: Outgoing, target: Target, *, is_oneway: bool = False) -> Sending:
        sending = Sending(
            self.group,
            self._session.settings.namespace,
            outgoing.messages,
            outgoing.keys,
            self._name(target.queue),
            target.address,
            is_oneway=is_oneway,
            is_half=outgoing.is_half,
            body_size=len(outgoing.body),
            began=time.monotonic(),
        )
        self.hooks.before_send(sending)
        return sending

    def _end(
        self, sending: Sending, results: list[SendResult] | None, failure: BaseException | None
    ) -> None:
        sending.results = results or ()
        sending.result = results[0] if results else None
        sending.error = failure
        self.hooks.after_send(sending)

    # Which queue

    async def _select(self, message: Message, select: QueueSelector | None) -> MessageQueue:
        plan = await self._plan(message.topic)
        if select is None:
            return plan.queues[_place(message.ordering_key, len(plan.queues))]
        queue = select(plan.queues, message)
        if queue not in plan.queues:
            raise IllegalMessageError(
                f"the selector picked {queue!r}, which is none of the {len(plan.queues)} queues "
                f"of topic {message.topic!r}"
            )
        return queue

    async def _queue_for_all(
        self, messages: Sequence[Message], *, is_split: bool
    ) -> MessageQueue | None:
        """The queue of messages that stay together; None when any will do."""
        keys = {message.ordering_key for message in messages} - {""}
        topic = messages[0].topic
        if not keys:
            if not is_split:
                return None
            target = await self._next_target(topic, None)
            return MessageQueue(topic, target.queue.broker_name, target.queue.queue_id)
        queues = (await self._plan(topic)).queues
        places = {_place(key, len(queues)) for key in keys}
        if len(places) > 1:
            raise IllegalMessageError(
                f"a batch has ordering keys of {len(places)} queues of topic {topic!r}: send one "
                "batch for each key"
            )
        return queues[places.pop()]

    def _quick_target(self, topic: str) -> Target | None:
        """The next queue in turn, if the topic's route is known and all brokers are well."""
        plan = self._plans.get(topic)
        if plan is None or self._faults:
            return None
        route = self._session.routes.peek(plan.topic)
        return plan.next() if route is plan.route and route is not None else None

    async def _target(
        self, topic: str, fixed: MessageQueue | None, failed_broker: str | None
    ) -> Target:
        if fixed is None:
            return await self._next_target(topic, failed_broker)
        plan = await self._plan(topic)
        return plan.target(fixed)

    async def _next_target(self, topic: str, failed_broker: str | None) -> Target:
        plan = await self._plan(topic)
        now = time.monotonic()
        first = plan.next()
        target = first
        for _ in range(len(plan.targets)):
            broker = target.queue.broker_name
            if broker != failed_broker and not self._faults.is_avoided(broker, now):
                return target
            target = plan.next()
        # All of them have failed or are slow: another one than the last at least.
        for _ in range(len(plan.targets)):
            if target.queue.broker_name != failed_broker:
                return target
            target = plan.next()
        return first

    async def _plan(self, topic: str, *, fresh: bool = False) -> _Plan:
        """The topic's queues, or where they would be if the topic were created."""
        # Replies belong to a cluster, not to a namespace.
        name = topic if topic.endswith(REPLY_TOPIC_SUFFIX) else self._session.wrap(topic)
        route = await self._route(name, fresh=fresh)
        plan = self._plans.get(topic)
        if plan is None or plan.route is not route:
            targets = [
                Target(queue, address, self._group_name, self._topic_queues)
                for queue in route.write_queues
                if (address := route.master_of(queue.broker_name)) is not None
            ]
            if not targets:
                raise TopicNotFoundError(topic, "none of its brokers takes messages for it now")
            turn = plan.turn if plan is not None else random.randrange(len(targets))  # noqa: S311
            plan = self._plans[topic] = _Plan(route, topic, name, targets, turn)
        return plan

    async def _route(self, topic: str, *, fresh: bool) -> TopicRoute:
        routes = self._session.routes
        try:
            if fresh:
                try:
                    async with asyncio.timeout(_FRESH_ROUTE_SECONDS):
                        return await routes.refresh(topic)
                except (NameServerError, TimeoutError):
                    # What is known may be good for another attempt.
                    logger.debug("route of %s could not be refreshed", topic, exc_info=True)
            return await routes.get(topic)
        except TopicNotFoundError as error:
            try:
                template = await routes.get(TEMPLATE_TOPIC)
            except TopicNotFoundError:
                raise error from None
            known = self._created.get(topic)
            if known is None or known[0] is not template:
                route = template.for_new_topic(topic, self._topic_queues)
                known = self._created[topic] = (template, route)
            return known[1]

    def _name(self, queue: MessageQueue) -> MessageQueue:
        """A queue as the application knows it."""
        if not self._session.settings.namespace:
            return queue
        return MessageQueue(self._session.unwrap(queue.topic), queue.broker_name, queue.queue_id)

    def _handlers(self) -> dict[int, ClientHandler]:
        """What brokers may ask of this producer."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.take}

    def _forgive(self, address: str) -> None:
        """A broker that could not be reached is back: it need not be left out any more."""
        for route in self._session.routes.known():
            for name, replicas in route.addresses.items():
                if address in replicas.values():
                    self._faults.forgive(name)

    def _describe(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, producer_data_set=[ProducerData(self._group_name)])


class _Plan:
    """A topic's queues that take messages, in turn."""

    __slots__ = ("_by_queue", "queues", "route", "targets", "topic", "turn")

    def __init__(
        self, route: TopicRoute, name: str, topic: str, targets: list[Target], turn: int
    ) -> None:
        self.route = route
        self.topic = topic
        self.targets = targets
        self.turn = turn
        #: Under the application's names. Those of an ordered topic may be without a target now.
        self.queues = tuple(
            MessageQueue(name, queue.broker_name, queue.queue_id) for queue in route.write_queues
        )
        self._by_queue = {
            MessageQueue(name, target.queue.broker_name, target.queue.queue_id): target
            for target in targets
        }

    def next(self) -> Target:
        turn = self.turn = self.turn + 1
        targets = self.targets
        return targets[turn % len(targets)]

    def target(self, queue: MessageQueue) -> Target:
        found = self._by_queue.get(queue)
        if found is None and queue in self.queues:
            raise TopicNotFoundError(
                queue.topic,
                f"broker {queue.broker_name!r} cannot be reached, and in an ordered topic no other "
                "takes its messages",
            )
        if found is None:
            raise TopicNotFoundError(
                queue.topic,
                f"queue {queue.queue_id} of broker {queue.broker_name!r} is not among the "
                f"{len(self.queues)} that take messages now",
            )
        return found


def check_send(
    queue: MessageQueue | None, select: QueueSelector | None, timeout: float | None
) -> None:
    """Refuse what says in no possible way where a message goes, or how long that may take."""
    if queue is not None:
        check_queue(queue)
        if select is not None:
            raise OptionError("queue and select: give one of them, each says where it goes")
    if select is not None:
        check_callable("select", select)
    if timeout is not None:
        check_seconds("timeout", timeout)


def _place(ordering_key: str, count: int) -> int:
    """Which of `count` queues a key stands for: as Java's SelectMessageQueueByHash."""
    return abs(java_hash(ordering_key)) % count


def _may_retry(failure: ClientError | RemotingError) -> bool:
    return not isinstance(failure, ClientError) or (
        isinstance(failure, BrokerError) and failure.code in _RETRIED_CODES
    )
