"""Sending messages.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("orders", b"...", tags="new"))

A send goes to the next of the topic's queues in turn. When a broker fails or
answers that it cannot take the message now, the send is tried again at
another broker where there is one, so a message may be stored twice: consumers
recognise it by its unique key (`SendResult.msg_id`). A topic that does not
exist is sent to the brokers that create topics (those that serve TBW102).

One message is a batch of one: `send`, `send_batch` and `send_oneway` differ in
what they make of the answer only. On the event loop of its owner.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from pyromq.client.errors import (
    BrokerError,
    ClientError,
    IllegalMessageError,
    TopicNotFoundError,
    reading_answer,
)
from pyromq.client.message import MAX_BODY, Message, check_group, create_unique_key
from pyromq.client.routes import TEMPLATE_TOPIC, TopicRoute
from pyromq.client.session import Session
from pyromq.protocol.bodies import HeartbeatData, MessageQueue, ProducerData
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from pyromq.protocol.properties import UNIQ_KEY, WAIT, encode_properties
from pyromq.protocol.record import encode_inner_message
from pyromq.remoting.client import RemotingError

DEFAULT_GROUP = "PYROMQ_PRODUCER"
#: How many queues a topic gets that a send creates, unless its broker says fewer.
DEFAULT_TOPIC_QUEUES = 4

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


class SendStatus(Enum):
    """How safe a stored message is."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


_STATUS_BY_CODE = {int(status.value): status for status in SendStatus}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message was stored. Of a batch, the ids are joined by commas."""

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus


class Producer:
    """Sends messages to the cluster of the NameServers `namesrv` (`host:port[;host:port]`).

    `send_timeout` bounds one attempt, in seconds; `retries` is how many more follow a failed one.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout: float = 3.0,
        retries: int = 2,
        topic_queues: int = DEFAULT_TOPIC_QUEUES,
    ) -> None:
        check_group(group)
        self.group = group
        self._attempts = 1 + retries
        self._topic_queues = topic_queues
        self._turns: dict[str, itertools.count[int]] = {}
        self._session = Session(namesrv, self._describe, request_timeout=send_timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Make it ready to send; nothing is connected before the first message."""
        self._session.start()

    async def close(self) -> None:
        """Leave the cluster; what was sent oneway is still written."""
        await self._session.close(producer_group=self.group)

    async def send(self, message: Message, queue: MessageQueue | None = None) -> SendResult:
        """Store one message, on `queue` if given, and say where it is.

        Raises IllegalMessageError, TopicNotFoundError, NameServerError, BrokerError or
        RemotingError (the last attempt's).
        """
        return await self._deliver(_Delivery([message]), queue)

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None
    ) -> SendResult:
        """Store messages of one topic on one queue, one behind the other, in one request."""
        return await self._deliver(_Delivery(messages, as_batch=True), queue)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send one message and wait for nothing: whether it was stored is not known."""
        self._session.check_running()
        delivery = _Delivery([message])
        route = await self._route(delivery.topic)
        chosen = queue or self._choose(route, avoided_broker=None)
        await self._session.remoting.send_oneway(
            _address(route, chosen),
            delivery.command(self.group, chosen, self._topic_queues),
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that take messages now."""
        self._session.check_running()
        return list((await self._route(topic)).write_queues)

    async def _deliver(self, delivery: _Delivery, fixed_queue: MessageQueue | None) -> SendResult:
        self._session.check_running()
        failure: ClientError | RemotingError | None = None
        failed_broker: str | None = None
        for attempt in range(self._attempts):
            route = await self._route(delivery.topic, fresh=attempt > 0)
            queue = fixed_queue or self._choose(route, failed_broker)
            command = delivery.command(self.group, queue, self._topic_queues)
            address = _address(route, queue)
            try:
                answer = await self._session.remoting.request(
                    address, command, self._session.request_timeout
                )
            except RemotingError as error:
                failure = error
            else:
                status = _STATUS_BY_CODE.get(answer.code)
                if status is not None:
                    with reading_answer(address):
                        return delivery.result(status, answer, queue)
                failure = BrokerError(address, answer.code, answer.remark)
                if answer.code not in _RETRIED_CODES:
                    break
            failed_broker = queue.broker_name
        assert failure is not None
        raise failure

    async def _route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """The topic's route, or where a topic of this name would be created."""
        routes = self._session.routes
        try:
            route = await (routes.refresh(topic) if fresh else routes.get(topic))
        except TopicNotFoundError as error:
            try:
                template = await routes.get(TEMPLATE_TOPIC)
            except TopicNotFoundError:
                raise error from None
            route = template.for_new_topic(topic, self._topic_queues)
        if not route.write_queues:
            raise TopicNotFoundError(topic, "none of its brokers takes messages for it now")
        return route

    def _choose(self, route: TopicRoute, avoided_broker: str | None) -> MessageQueue:
        """The next queue in turn, at another broker than the one that has just failed."""
        queues = [
            queue for queue in route.write_queues if queue.broker_name != avoided_broker
        ] or route.write_queues
        turns = self._turns.get(route.topic)
        if turns is None:
            # Producers that start together should not all begin with the same queue.
            turns = itertools.count(random.randrange(len(queues)))  # noqa: S311
            self._turns[route.topic] = turns
        return queues[next(turns) % len(queues)]

    def _describe(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, producer_data_set=[ProducerData(self.group)])


class _Delivery:
    """One request's messages, checked, with their unique keys: the same at each attempt."""

    def __init__(self, messages: Sequence[Message], *, as_batch: bool = False) -> None:
        topics = {message.topic for message in messages}
        if len(topics) != 1:
            raise IllegalMessageError(
                f"a batch is for exactly one topic, not for {len(topics)}: {sorted(topics)}"
            )
        for message in messages:
            message.check()
        (self.topic,) = topics
        self._is_batch = as_batch
        self._keys = [create_unique_key() for _ in messages]
        properties = [
            message.wire_properties(key) for message, key in zip(messages, self._keys, strict=True)
        ]
        if as_batch:
            self._flag = 0
            self._properties = encode_properties({UNIQ_KEY: create_unique_key(), WAIT: "true"})
            self._body = b"".join(
                encode_inner_message(message.body, own, message.flag)
                for message, own in zip(messages, properties, strict=True)
            )
            if len(self._body) > MAX_BODY:
                raise IllegalMessageError(
                    f"batch for {self.topic!r} takes {len(self._body)} bytes, at most {MAX_BODY} "
                    "are possible: send fewer messages at a time"
                )
        else:
            (message,) = messages
            self._flag = message.flag
            (self._properties,) = properties
            self._body = message.body

    def command(self, group: str, queue: MessageQueue, topic_queues: int) -> RemotingCommand:
        header = SendMessageRequestHeaderV2(
            producer_group=group,
            topic=self.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=self._flag,
            properties=self._properties.decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=self._is_batch,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if self._is_batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand(code, ext_fields=header.encode(), body=self._body)

    def result(
        self, status: SendStatus, answer: RemotingCommand, queue: MessageQueue
    ) -> SendResult:
        header = SendMessageResponseHeader.decode(answer.ext_fields)
        return SendResult(
            msg_id=",".join(self._keys),
            offset_msg_id=header.msg_id,
            queue=MessageQueue(self.topic, queue.broker_name, header.queue_id),
            queue_offset=header.queue_offset,
            status=status,
        )


def _address(route: TopicRoute, queue: MessageQueue) -> str:
    if queue.broker_name not in route.addresses:
        raise TopicNotFoundError(queue.topic, f"broker {queue.broker_name!r} is not known for it")
    return route.address_of(queue.broker_name)
