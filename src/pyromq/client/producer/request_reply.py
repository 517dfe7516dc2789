"""Request and reply: a message that another message answers.

    reply = await producer.request(Message("questions", b"6 * 7"), timeout=3.0)

A consumer of the topic `questions` replies with a producer of its own:

    await producer.send(reply_to(message, b"42"))

The requester's id and a correlation id travel in the request's properties. The reply goes to a
broker of the request's cluster (SEND_REPLY_MESSAGE_V2 to the topic `cluster_REPLY_TOPIC`), which
pushes it to the requester over the connection of its heartbeats (PUSH_REPLY_MESSAGE_TO_CLIENT).
Before a request leaves, `Requests` therefore introduces the client to every broker of that topic;
Java's clients are known only to brokers they have sent to. Brokers do not store replies by
default. A late reply is dropped.

Runs on the producer's event loop; any thread may call `reply_to`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyromq.base.clock import now_ms
from pyromq.client.errors import ClientStateError, IllegalMessageError, TopicNotFoundError
from pyromq.client.message import ClientMessage, Message
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.session.routes import TopicRoute
from pyromq.client.session.session import Session
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import (
    ARRIVE_TIME,
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY,
    REPLY_TO_CLIENT,
    TTL,
    decode_properties,
    encode_properties,
)
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.protocol.message.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    STORE_HOST_V6,
)
from pyromq.protocol.names import reply_topic
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import ReplyMessageRequestHeader
from pyromq.remoting.address import AddressError, parse_address

logger = logging.getLogger(__name__)

#: Time limit of a request for introducing the client to a broker.
_INTRODUCTION_SECONDS = 1.0
#: Delay before the next introduction to a broker that did not answer.
_RETRY_SECONDS = 5.0
_NO_HOST = bytes(8)
_HOST_SIZE_V6 = 20


def reply_to(message: ReceivedMessage, body: bytes) -> Message:
    """Return a reply to a request, to be sent with any producer.

    Raises IllegalMessageError if `message` is not a request. Sending the reply raises BrokerError
    if the requester is gone or did not accept it.
    """
    if not isinstance(message, ReceivedMessage):
        raise IllegalMessageError(
            f"message={message!r:.100}: expected a ReceivedMessage, got {type(message).__name__}"
        )
    properties = message.all_properties
    missing = [
        name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not properties.get(name)
    ]
    if missing:
        raise IllegalMessageError(
            f"{message!r} is not a request and cannot be replied to: it has no property "
            f"{', '.join(missing)}"
        )
    reply = {
        MESSAGE_TYPE: REPLY,
        CORRELATION_ID: properties[CORRELATION_ID],
        REPLY_TO_CLIENT: properties[REPLY_TO_CLIENT],
    }
    if properties.get(TTL):
        reply[TTL] = properties[TTL]
    return ClientMessage(reply_topic(properties[CLUSTER]), body, system_properties=reply)


class Requests:
    """A producer's requests in flight, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        #: Route and masters that may get replies, by topic.
        self._repliers: dict[str, tuple[TopicRoute, set[str]]] = {}
        #: Time and task of the last introduction, by master.
        self._introductions: dict[str, tuple[float, asyncio.Task[None]]] = {}

    @contextmanager
    def expect(self) -> Iterator[tuple[str, asyncio.Future[ReceivedMessage]]]:
        """Yield a new correlation id and the future of its reply, valid within the block."""
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield correlation_id, reply
        finally:
            del self._waiting[correlation_id]
            reply.cancel()

    async def meet_repliers(self, session: Session, route: TopicRoute) -> None:
        """Introduce the client to every broker that may get a reply to a request for this topic.

        Waits at most one second for a broker, and not again for the next five.
        """
        known = self._repliers.get(route.topic)
        if known is None or known[0] is not route:
            known = route, await self._masters_of_replies(session, route)
            self._repliers[route.topic] = known
        strangers = [address for address in known[1] if not session.is_known_to(address)]
        if not strangers:
            return
        now = time.monotonic()
        introductions = []
        for address in strangers:
            begun, introduction = self._introductions.get(address, (-math.inf, None))
            if introduction is None or (introduction.done() and now - begun >= _RETRY_SECONDS):
                begun, introduction = now, asyncio.create_task(session.introduce(address))
                self._introductions[address] = begun, introduction
            if now - begun < _INTRODUCTION_SECONDS:
                introductions.append(introduction)
        if introductions:
            await asyncio.wait(introductions, timeout=_INTRODUCTION_SECONDS)

    async def _masters_of_replies(self, session: Session, route: TopicRoute) -> set[str]:
        masters = route.masters()
        for cluster in route.clusters:
            try:
                masters |= (await session.routes.get(reply_topic(cluster))).masters()
            except TopicNotFoundError:
                logger.info("cluster %s has no reply topic", cluster)
        return masters

    def take(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT: hand a reply to its waiting request."""
        message = _message_of(command)
        correlation_id = message.all_properties.get(CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None or reply.done():
            logger.warning(
                "reply from %s dropped: request %s is not in flight",
                address,
                correlation_id or "without id",
            )
        else:
            reply.set_result(message)
        return command.answer()

    def close(self) -> None:
        """Fail all requests in flight."""
        for _, introduction in self._introductions.values():
            introduction.cancel()
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(
                    ClientStateError("this client was closed before the reply arrived")
                )
                reply.exception()  # marks it as retrieved, even if no caller waits any more


def as_request(message: Message, correlation_id: str, client_id: str, timeout: float) -> Message:
    """Return a copy of a message with the properties that a replier needs."""
    if message.is_reply:
        raise IllegalMessageError("a reply cannot be sent as a request: use Producer.send")
    return ClientMessage.of(
        message,
        {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: client_id,
            TTL: str(int(timeout * 1000)),
        },
    )


def _message_of(command: RemotingCommand) -> ReceivedMessage:
    """Decode a pushed reply to a message as if it had been read from a queue."""
    header = ReplyMessageRequestHeader.decode(command.ext_fields)
    properties = {
        **decode_properties(header.properties or ""),
        ARRIVE_TIME: str(now_ms()),
    }
    born, stored = _host_of(header.born_host), _host_of(header.store_host)
    sys_flag = header.sys_flag & (COMPRESSED | COMPRESSION_MASK)
    if len(born) == _HOST_SIZE_V6:
        sys_flag |= BORN_HOST_V6
    if len(stored) == _HOST_SIZE_V6:
        sys_flag |= STORE_HOST_V6
    record = MessageRecord(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=command.body,
        properties=properties,
        flag=header.flag,
        sys_flag=sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=("", 0),
        store_timestamp=header.store_timestamp,
        store_host=("", 0),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body_crc=0,
        size=0,
        message_id="",
        raw_properties=encode_properties(properties),
    )
    queue = MessageQueue(header.topic, "", header.queue_id)
    (message,) = decode_messages(encode_record(record, born, stored), queue)
    return message


def _host_of(address: str) -> bytes:
    # Java prints an address without a host name as /address.
    try:
        return encode_host(*parse_address(address.rpartition("/")[2]))
    except (AddressError, ValueError):
        return _NO_HOST
