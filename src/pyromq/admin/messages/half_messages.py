"""Half messages: transactions that are neither committed nor rolled back.

Halves are in RMQ_SYS_TRANS_HALF_TOPIC, the ends of transactions in RMQ_SYS_TRANS_OP_HALF_TOPIC. The
offsets of the group CID_RMQ_SYS_TRANS tell how far a broker has come in both. A half after that is
open unless an end names its queue offset. A broker that asks a producer stores the half again; the
copies of a transaction share the id that the producer made. After too many questions it goes to
TRANS_CHECK_MAX_TIME_TOPIC, from where `resume` puts it back. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.admin.errors import NotFoundError, UnknownTopicError
from pyromq.admin.groups.connections import all_brokers
from pyromq.admin.message_view import MessageView
from pyromq.admin.messages.messages import MAX_TIMESTAMP, FoundMessages, Messages
from pyromq.admin.partial import from_reachable
from pyromq.admin.queue_reader import QueueReader
from pyromq.admin.session import AdminSession, Area, read_header
from pyromq.base.clock import now_ms
from pyromq.protocol.message.message_id import decode_message_id, format_address
from pyromq.protocol.message.properties import (
    CHECK_TIMES,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
)
from pyromq.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
)
from pyromq.protocol.wire.headers_admin import ResumeCheckHalfMessageRequestHeader


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """An open transaction."""

    #: The topic and queue to which it will be delivered after a commit.
    topic: str
    queue_id: int
    producer_group: str
    #: How often the broker has asked the producer.
    checks: int
    #: Milliseconds since the producer sent it.
    age_ms: int
    message: MessageView


@dataclass(frozen=True, slots=True)
class FoundHalves:
    """Open transactions, oldest first."""

    messages: tuple[HalfMessage, ...]
    #: Whether these are all that match.
    complete: bool
    #: Why there may be more, a sentence; empty if the result is complete.
    reason: str = ""


class HalfMessages(Area):
    """Half messages of all brokers."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._reader = QueueReader(session)
        self._messages = Messages(session)

    async def find(
        self, *, topic: str | None = None, producer_group: str | None = None, limit: int = 64
    ) -> FoundHalves:
        """Return the oldest open transactions, at most `limit`.

        Brokers that fail make the result incomplete, unless all of them do.
        """
        brokers = await all_brokers(self._session)
        names = {address: name for name, address in brokers.items()}
        answers, failure = await from_reachable(
            self._session,
            "reading half messages",
            names,
            lambda address: self._open_halves(names[address], address),
        )
        found = [
            half
            for halves in answers.values()
            for half in halves
            if topic in (None, half.topic) and producer_group in (None, half.producer_group)
        ]
        found.sort(key=lambda each: -each.age_ms)
        reasons = [] if failure is None else [str(failure)]
        if len(found) > limit:
            reasons.append(f"{len(found)} transactions are open")
        return FoundHalves(tuple(found[:limit]), not reasons, "; ".join(reasons))

    async def abandoned(self, *, limit: int = 64) -> FoundMessages:
        """Return half messages that brokers gave up, whose producers never answered."""
        try:
            return await self._messages.by_time(
                TRANSACTION_GIVEN_UP_TOPIC, 0, MAX_TIMESTAMP, limit=limit
            )
        except UnknownTopicError:
            return FoundMessages((), complete=True)

    async def resume(self, offset_msg_id: str) -> None:
        """Have a broker ask about an abandoned half message again."""
        try:
            host, port, _ = decode_message_id(offset_msg_id)
        except ValueError as error:
            raise NotFoundError(str(error)) from None
        await self._session.ask(
            format_address(host, port),
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheckHalfMessageRequestHeader(offset_msg_id),
        )

    # Helpers, in call order

    async def _open_halves(self, name: str, address: str) -> list[HalfMessage]:
        ended: set[int] = set()
        queue = MessageQueue(TRANSACTION_OP_TOPIC, name, 0)
        for message in await self._rest(address, queue):
            # Brokers of 5.x write several offsets into one message.
            words = message.body.decode(errors="replace").split(",")
            ended.update(int(word) for word in words if word.isascii() and word.isdecimal())
        queue = MessageQueue(TRANSACTION_HALF_TOPIC, name, 0)
        halves = await self._rest(address, queue)
        if not halves:
            return []
        earlier = [offset for offset in ended if offset < halves[0].queue_offset]
        ended_ids = {
            message.msg_id
            for message in [*halves, *await self._halves_at(address, queue, earlier)]
            if message.queue_offset in ended or _number(message, PREPARED_QUEUE_OFFSET, -1) in ended
        }
        open_halves: dict[str, HalfMessage] = {}
        now = now_ms()
        for message in halves:
            if message.msg_id in ended_ids:
                continue
            # A copy that was put back replaces the older one.
            open_halves[message.msg_id] = HalfMessage(
                message.properties.get(REAL_TOPIC, ""),
                _number(message, REAL_QUEUE_ID, 0),
                message.properties.get(PRODUCER_GROUP, ""),
                _number(message, CHECK_TIMES, 0),
                max(0, now - message.born_timestamp),
                message,
            )
        return list(open_halves.values())

    async def _halves_at(
        self, address: str, queue: MessageQueue, offsets: list[int]
    ) -> list[MessageView]:
        """Return the halves at these offsets that still exist."""
        found: list[MessageView] = []
        for offset in offsets:
            found += await self._reader.by_entries(address, queue, offset, offset + 1)
        return found

    async def _rest(self, address: str, queue: MessageQueue) -> list[MessageView]:
        """Return the messages of a queue that the broker has not finished."""
        header = QueryConsumerOffsetRequestHeader(TRANSACTION_GROUP, queue.topic, queue.queue_id)
        answer = await self._session.ask(
            address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            header,
            accept=(ResponseCode.QUERY_NOT_FOUND,),
        )
        begin = 0
        if answer.code == ResponseCode.SUCCESS:
            begin = read_header(QueryConsumerOffsetResponseHeader, address, answer).offset
        begin = max(0, begin, await self._reader.min_offset(address, queue))
        end = await self._reader.max_offset(address, queue)
        if begin >= end:
            return []
        found: list[MessageView] = []
        try:
            async for pulled in self._reader.batches(address, queue, begin, end):
                found += pulled.messages
        except NotFoundError:
            # The first check of transactions creates the topic; its queue may exist before.
            return await self._reader.by_entries(address, queue, begin, end)
        return found


def _number(message: MessageView, name: str, default: int) -> int:
    text = message.properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
