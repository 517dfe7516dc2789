"""Send messages.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("orders", b"...", tags="new"))

A message goes to the queue you give or your selector picks, else to the queue of its ordering key,
else round-robin over the topic's queues without brokers that failed or were slow recently. A topic
that does not exist yet goes to the brokers that create topics (those that serve TBW102).

If a broker fails or answers that it cannot take the message now, the send is retried, on another
broker where there is one. A message may therefore be stored twice; consumers recognise it by its
unique key (`SendResult.msg_id`). A message with a fixed queue is retried on that queue only: order
comes first.

With `batching`, sends that are close in time share a request. At most `max_in_flight` messages
are in flight; further sends wait. A producer runs on the event loop that started it;
`Producer.sync` is for programs without one.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, ParamSpec, Unpack

from pyromq.client.arguments import check_callable, check_queue, check_seconds, refusal
from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    ClientError,
    OptionError,
    RequestTimeoutError,
    refusal_of,
)
from pyromq.client.hooks import Hooks, Sending
from pyromq.client.message import (
    MAX_BODY,
    Message,
    check_group,
    check_message,
    check_topic,
    plain_tags,
)
from pyromq.client.options import Settings
from pyromq.client.producer.accumulator import Accumulator
from pyromq.client.producer.options import ProducerOptions, ProducerSettings
from pyromq.client.producer.pacing import (
    MIN_AVOIDED_LATENCY_SECONDS,
    BrokerFaults,
    InFlightLimit,
)
from pyromq.client.producer.publishing import observed_methods
from pyromq.client.producer.request_reply import Requests, as_request
from pyromq.client.producer.sending import (
    Outgoing,
    QuickSend,
    Target,
    batches_of,
    quick_result,
)
from pyromq.client.producer.sync import SyncProducer
from pyromq.client.producer.targets import QueueSelector, Targets
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import STATUS_BY_CODE, SendResult, SendStatus
from pyromq.client.session.session import RUNNING, Client, Session
from pyromq.client.trace import TraceRole, message_trace
from pyromq.protocol.wire.bodies import HeartbeatData, MessageQueue, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RawFrame, frame_from
from pyromq.remoting.client import (
    ClientHandler,
    RemotingError,
    RemotingTimeoutError,
    SendAnswer,
)

_Arguments = ParamSpec("_Arguments")
#: Of an attempt: the results or the failure.
_Outcome = tuple[list[SendResult] | None, ClientError | RemotingError | None]

DEFAULT_GROUP = "PYROMQ_PRODUCER"
#: Creates a named tuple without the cost of its constructor.
_new_tuple: Final = tuple.__new__

#: Response codes after which another broker may take the message.
_RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)


class Producer(Client):
    """A producer in the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    Brokers see it as a member of `group`. See `ProducerOptions` for the options.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        own, common = ProducerSettings.split(options)
        settings = Settings.of(namesrv, common, ProducerOptions)
        self.group = group
        self.hooks = Hooks(settings.hooks)
        self._trace = message_trace(settings, group, TraceRole.PRODUCE, Producer)
        if self._trace is not None:
            self.hooks.add(self._trace)
        self._send_timeout = own.send_timeout
        self._retries = own.retries
        self._retry_unsafe = own.retry_unsafe
        self._compress_over = own.compress_over
        self._max_delay_level = own.max_delay_level
        self._avoids = own.avoid_slow_brokers
        self._faults = BrokerFaults()
        self._in_flight = InFlightLimit(own.max_in_flight)
        self._requests = Requests()
        self._session = Session(
            settings,
            self._describe,
            handlers=self._handlers(),
            on_return=lambda address: self._targets.forgive(address),
        )
        self._group_name = self._session.wrap(group)
        self._targets = Targets(self._session, self._group_name, own.topic_queues, self._faults)
        #: Requests are filled-in templates, unless a hook or a signature needs the whole command.
        self._is_plain = not self.hooks.send and not settings.access_key
        self._accumulator = (
            None
            if own.batching is None
            else Accumulator(own.batching, self._deliver, keeps_messages=not self._is_plain)
        )
        self._is_quick = self._is_plain and self._accumulator is None
        self._max_quick_body = min(self._compress_over - 1, MAX_BODY)
        if self.hooks.publish:
            vars(self).update(
                observed_methods(
                    self,
                    self.hooks,
                    group=group,
                    namespace=settings.namespace,
                    address_of=self._address_of,
                )
            )

    @classmethod
    def sync(
        cls: Callable[_Arguments, Producer], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> SyncProducer:
        """Return a producer for programs without an event loop, from the same arguments."""
        return SyncProducer(partial(cls, *args, **kwargs))

    # Lifecycle

    async def start(self) -> None:
        """Get ready to send. The first message opens the first connection. Idempotent."""
        self._session.start()
        if self._trace is not None:
            await self._trace.start()

    async def close(self) -> None:
        """Send waiting batches, wait for sends in flight, and leave the cluster. Idempotent."""
        if self._session.running:
            if self._accumulator is not None:
                await self._accumulator.flush()
            await self._in_flight.wait_idle(self._send_timeout * (1 + self._retries))
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
        """Store one message and return its position.

        `queue` fixes the queue, or `select` picks one. `timeout` is the time limit of one attempt
        in seconds, by default `send_timeout`.

        Raises IllegalMessageError, TopicNotFoundError, NameServerError, or the BrokerError or
        RemotingError of the last attempt. All of these are RocketMQErrors.
        """
        if not isinstance(message, Message):
            check_message(message)
        if queue is not None or select is not None or timeout is not None:
            check_send(queue, select, timeout)
        elif self._is_quick and (sent := self._send_quickly(message)) is not None:
            del message  # frees it early, which spares the garbage collector work
            # Awaited here: a coroutine in between would cost a tenth of the whole send.
            response: RawFrame | SendAnswer | RemotingError
            try:
                try:
                    response = await sent.answer
                except RemotingError as error:
                    response = error
                result = self._quick_result(sent, response)
                return result or await self._retry_quick(sent, response)
            finally:
                self._in_flight.release(1)
        accumulator = self._accumulator
        if accumulator is not None and queue is None and select is None:
            if self._session.state is RUNNING:
                accumulated = accumulator.add_plain(message, timeout)
                if accumulated is not None:
                    del message
                    return await accumulated
            if accumulator.takes(message):
                self._session.check_running()
                if message.ordering_key:
                    message.check()
                    queue = await self._targets.select(message, None)
                return await accumulator.add(message, queue, timeout)
        outgoing = Outgoing(message, self._compress_over, self._max_delay_level)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._targets.select(message, select)
        (result,) = await self._deliver(outgoing, queue, timeout)
        return result

    async def send_batch(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> list[SendResult]:
        """Store messages of one topic on one queue, in order, and return a result for each.

        A batch too large for one request is split, and stays in order on one queue. All ordering
        keys must belong to the same queue, unless `queue` is given.
        """
        if isinstance(messages, Message | ReceivedMessage | str) or not isinstance(
            messages, Iterable
        ):
            raise refusal("messages", messages, "expected a list of Message")
        check_send(queue, None, timeout)
        together = list(messages)
        batches = batches_of(together)
        if queue is None:
            queue = await self._targets.queue_for_batch(together, is_split=len(batches) > 1)
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
        """Store messages that `Outgoing.encoded` holds and return the result of the first.

        For callers that encode many messages at once, such as the Spark sink.
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
        """Send one message without waiting for a response; it may be lost unnoticed."""
        check_message(message)
        check_send(queue, select, None)
        self._session.check_running()
        outgoing = Outgoing(message, self._compress_over, self._max_delay_level)
        if queue is None and (select is not None or message.ordering_key):
            queue = await self._targets.select(message, select)
        target = await self._targets.choose(outgoing.topic, queue)
        sending = self._before_send(outgoing, target, is_oneway=True)
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
            self._after_send(sending, None, error)
            raise
        self._after_send(sending, None, None)

    async def request(
        self,
        message: Message,
        timeout: float = 3.0,  # noqa: ASYNC109 - travels in the request, too
        queue: MessageQueue | None = None,
        *,
        select: QueueSelector | None = None,
    ) -> ReceivedMessage:
        """Send a request and return its reply, which must arrive within `timeout` seconds.

        Raises RequestTimeoutError, or what `send` raises. See `reply_to` for the other side.
        """
        check_message(message)
        message.check(self._max_delay_level)
        message.wire_properties("")  # refuse bad properties before asking any server
        check_seconds("timeout", timeout)
        check_send(queue, select, None)
        self._session.check_running()
        is_stored = False
        try:
            with self._requests.expect() as (correlation_id, reply):
                request = as_request(message, correlation_id, self.client_id, timeout)
                async with asyncio.timeout(timeout) as limit:
                    route = (await self._targets.plan(message.topic)).route
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
        """Return the queues of `topic` that are writable now."""
        check_topic(topic)
        self._session.check_running()
        return list((await self._targets.plan(topic)).queues)

    # Plain messages, without the objects that retries and hooks need

    def _send_quickly(self, message: Message) -> QuickSend | None:
        """Send a plain message now; None if it is not plain, or if it would have to wait."""
        tags = plain_tags(message, self._max_quick_body)
        if tags is None or self._session.state is not RUNNING:
            return None
        topic, body = message.topic, message.body
        target = self._targets.quick(topic)  # its plan exists: the topic is legal
        if target is None:
            return None
        connection = self._session.remoting.ready(target.address)
        if connection is None or not self._in_flight.try_acquire(1):
            return None
        opaque = connection.next_opaque()
        frame, key = target.quick_frame(tags, opaque, body)
        answer = connection.send(opaque, frame, RequestCode.SEND_MESSAGE_V2, self._send_timeout)
        values = (answer, key, target, connection, connection.queued_at, topic, tags, body)
        return _new_tuple(QuickSend, values)

    def _quick_result(
        self, sent: QuickSend, response: RawFrame | SendAnswer | RemotingError
    ) -> SendResult | None:
        """Return the result of a plain message; None if the response is not plain."""
        if isinstance(response, RemotingError):
            return None
        if self._avoids:
            self._note_latency(sent.target, sent.connection.heard_at - sent.queued_at)
        return quick_result(sent.key, response, self._application_queue(sent.target.queue))

    async def _retry_quick(
        self, sent: QuickSend, response: RawFrame | SendAnswer | RemotingError
    ) -> SendResult:
        """Return the result of a plain message whose response is not plain."""
        outgoing = Outgoing.of(sent)
        if isinstance(response, RemotingError):
            outcome = self._failed(sent.target, response)
        else:
            outcome = self._read(outgoing, sent.target, response)
        (result,) = await self._continue(outgoing, None, None, sent.target, outcome)
        return result

    # One request and its retries

    async def _deliver(
        self,
        outgoing: Outgoing,
        fixed: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, not of the whole
    ) -> list[SendResult]:
        session = self._session
        if session.state is not RUNNING:
            session.check_running()
        in_flight = self._in_flight
        count = len(outgoing.keys)
        if not in_flight.try_acquire(count):
            await in_flight.acquire(count)
        try:
            targets = self._targets
            target = targets.quick(outgoing.topic) if fixed is None else None
            if target is None:
                target = await targets.choose(outgoing.topic, fixed)
            outcome = await self._attempt(outgoing, target, timeout)
            return await self._continue(outgoing, fixed, timeout, target, outcome)
        finally:
            in_flight.release(count)

    async def _continue(
        self,
        outgoing: Outgoing,
        fixed: MessageQueue | None,
        timeout: float | None,  # noqa: ASYNC109 - of one attempt, not of the whole
        target: Target,
        outcome: _Outcome,
    ) -> list[SendResult]:
        """Return or raise the outcome of the first attempt, or that of a retry."""
        targets = self._targets
        for attempt in itertools.count():
            is_last = attempt >= self._retries
            results, failure = outcome
            if results is not None and (
                is_last
                or results[0].status is SendStatus.SEND_OK
                or not self._retry_unsafe
                or fixed is not None
            ):
                return results
            if failure is not None and not _may_retry(failure):
                raise failure
            if failure is not None and is_last:
                targets.doubt(outgoing.topic)
                raise failure
            await targets.plan(outgoing.topic, fresh=True)
            target = await targets.choose(outgoing.topic, fixed, target.queue.broker_name)
            outcome = await self._attempt(outgoing, target, timeout)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        outgoing: Outgoing,
        target: Target,
        timeout: float | None,  # noqa: ASYNC109 - of this attempt
    ) -> _Outcome:
        """Send one request and return the results or the failure."""
        sending = None if self._is_plain else self._before_send(outgoing, target)
        begun = time.monotonic()
        try:
            response = await self._call(outgoing, target, timeout or self._send_timeout)
        except RemotingError as error:
            outcome = self._failed(target, error)
        except asyncio.CancelledError as error:
            if sending is not None:
                self._after_send(sending, None, error)
            raise
        else:
            if self._avoids:
                self._note_latency(target, time.monotonic() - begun)
            outcome = self._read(outgoing, target, response)
        if sending is not None:
            self._after_send(sending, *outcome)
        return outcome

    def _failed(self, target: Target, error: RemotingError) -> _Outcome:
        if self._avoids:
            self._faults.note_failure(target.queue.broker_name, time.monotonic())
        return None, error

    def _note_latency(self, target: Target, latency: float) -> None:
        if self._faults or latency >= MIN_AVOIDED_LATENCY_SECONDS:
            self._faults.note(target.queue.broker_name, latency, time.monotonic())

    def _read(
        self, outgoing: Outgoing, target: Target, response: RawFrame | SendAnswer
    ) -> _Outcome:
        """Decode a response."""
        queue = self._application_queue(target.queue)
        if isinstance(response, SendAnswer):
            return outgoing.results_of(response, queue), None
        header = response[1]
        code = header.get("code")
        status = STATUS_BY_CODE.get(code) if type(code) is int else None
        if status is None:
            return None, refusal_of(target.address, header)
        try:
            return outgoing.results(header.get("extFields") or {}, queue, status), None
        except ValueError as error:
            return None, AnswerError(target.address, error)

    async def _call(
        self,
        outgoing: Outgoing,
        target: Target,
        timeout: float,  # noqa: ASYNC109 - travels in the request, too
    ) -> RawFrame | SendAnswer:
        """Send a request and return its response; open the connection if necessary."""
        remoting = self._session.remoting
        if not self._is_plain:
            command = target.command(outgoing)
            return frame_from(await remoting.request(target.address, command, timeout))
        connection = remoting.ready(target.address)
        if connection is None:
            # The time to connect counts.
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
        return await connection.send(opaque, target.frame(outgoing, opaque), outgoing.code, timeout)

    def _before_send(
        self, outgoing: Outgoing, target: Target, *, is_oneway: bool = False
    ) -> Sending:
        """Call the hooks before a request leaves."""
        sending = Sending(
            self.group,
            self._session.settings.namespace,
            outgoing.messages,
            outgoing.keys,
            self._application_queue(target.queue),
            target.address,
            is_oneway=is_oneway,
            is_half=outgoing.is_half,
            body_size=len(outgoing.body),
            began=time.monotonic(),
        )
        self.hooks.before_send(sending)
        return sending

    def _after_send(
        self, sending: Sending, results: list[SendResult] | None, failure: BaseException | None
    ) -> None:
        """Call the hooks with a request's outcome."""
        sending.results = results or ()
        sending.result = results[0] if results else None
        sending.error = failure
        self.hooks.after_send(sending)

    def _application_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue under the application's topic name."""
        if not self._session.settings.namespace:
            return queue
        return MessageQueue(self._session.unwrap(queue.topic), queue.broker_name, queue.queue_id)

    def _address_of(self, broker_name: str) -> str:
        """Return the address of a broker, or an empty string if no route has it."""
        addresses = (route.master_of(broker_name) for route in self._session.routes.known())
        return next(filter(None, addresses), "")

    # Requests and heartbeats

    def _handlers(self) -> dict[int, ClientHandler]:
        """Return the handlers of requests that brokers send to a producer."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.take}

    def _describe(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, producer_data_set=[ProducerData(self._group_name)])


def check_send(
    queue: MessageQueue | None, select: QueueSelector | None, timeout: float | None
) -> None:
    """Raise OptionError for arguments of a send that are wrong or contradict each other."""
    if queue is not None:
        check_queue(queue)
        if select is not None:
            raise OptionError("queue and select are mutually exclusive: give one of them")
    if select is not None:
        check_callable("select", select)
    if timeout is not None:
        check_seconds("timeout", timeout)


def _may_retry(failure: ClientError | RemotingError) -> bool:
    return not isinstance(failure, ClientError) or (
        isinstance(failure, BrokerError) and failure.code in _RETRIED_CODES
    )
