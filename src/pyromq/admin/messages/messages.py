"""Messages: find them by id, key, offset and time; see who consumed them; send and redeliver them.

A broker returns a limited number of messages for a key, and its index may lag behind its log. A
result therefore says whether it is complete, and if not, why (`FoundMessages`). Runs on the event
loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import AdminError, NotFoundError
from pyromq.admin.message_view import MessageView
from pyromq.admin.messages import sending, tracks
from pyromq.admin.messages.sending import SendLatency
from pyromq.admin.messages.tracks import MessageTrack, TraceEvent
from pyromq.admin.queue_reader import EVERYTHING, Pulled, QueueReader, decoded
from pyromq.admin.session import AdminSession, Area, read_body, read_header
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.message import Message
from pyromq.client.results import SendResult
from pyromq.protocol.message.message_id import decode_message_id, format_address
from pyromq.protocol.message.sysflag import is_readable, is_writable
from pyromq.protocol.names import TRACE_TOPIC
from pyromq.protocol.wire.bodies import MessageQueue, SubscriptionData
from pyromq.protocol.wire.bodies_admin import QueryConsumeQueueResponseBody
from pyromq.protocol.wire.bodies_consumer import ConsumeMessageDirectlyResult, DirectResult
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from pyromq.protocol.wire.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    QueryConsumeQueueRequestHeader,
)

#: Messages that brokers return for a key (their setting maxMsgsNumBatch).
KEY_BATCH: Final = 64
#: Requests that a broker forwards to a client take longer.
_SLOW_FACTOR: Final = 3
MAX_TIMESTAMP: Final = (1 << 63) - 1
#: The index knows times to the second.
_INDEX_GRAIN_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The messages of a query, oldest first."""

    messages: tuple[MessageView, ...]
    #: Whether these are all messages that match.
    complete: bool
    #: Why there may be more, a sentence; empty if the result is complete.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DirectConsumption:
    """How a consumer handled a message that was handed to it."""

    result: DirectResult
    order: bool
    auto_commit: bool
    remark: str | None
    spent_ms: int


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of a consume queue."""

    index: int
    physical_offset: int
    size: int
    #: The hash of the message's tags; for delayed messages the time of delivery.
    tags_code: int
    #: Whether the group's filter accepts the message.
    is_accepted: bool
    extension: str | None
    bit_map: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """Entries of a consume queue, and the filter of a group."""

    min_index: int
    max_index: int
    #: The subscription of the group, if one was given that is online.
    subscription: SubscriptionData | None
    filter_data: str | None
    entries: tuple[QueueEntry, ...]


class Messages(Area):
    """Messages of the cluster."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._reader = QueueReader(session)

    # Finding

    async def by_id(self, offset_msg_id: str) -> MessageView:
        """Return the message with an offset message id; raises NotFoundError."""
        try:
            host, port, offset = decode_message_id(offset_msg_id)
        except ValueError as error:
            raise NotFoundError(
                f"{error}; use the unique key and the topic for an id that a producer made"
            ) from None
        address = format_address(host, port)
        answer = await self._session.ask(
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(offset),
            accept=(ResponseCode.SYSTEM_ERROR,),
        )
        if answer.code != ResponseCode.SUCCESS:
            raise NotFoundError(
                f"{address} has no message with the id {offset_msg_id}: {answer.remark}"
            )
        (message,) = decoded(address, answer.body)
        return message

    async def by_unique_key(self, topic: str, msg_id: str) -> FoundMessages:
        """Return the copies of a message by the id that its producer made."""
        return await self._by_key(
            topic,
            msg_id,
            lambda message: message.msg_id == msg_id,
            limit=KEY_BATCH,
        )

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int = MAX_TIMESTAMP,
        limit: int = KEY_BATCH,
    ) -> FoundMessages:
        """Return messages by a key, stored between two times (ms since the epoch).

        The newest `limit` messages are returned.
        """
        return await self._by_key(
            topic,
            key,
            lambda message: message.topic == topic and message.has_key(key),
            begin=begin,
            end=end,
            limit=limit,
        )

    async def by_offset(
        self, topic: str, broker_name: str, queue_id: int, offset: int
    ) -> MessageView:
        """Return the message at an offset of a queue; raises NotFoundError."""
        queue = MessageQueue(topic, broker_name, queue_id)
        address = await self._address_of(queue)
        pulled = await self._reader.pull(address, queue, offset, 1)
        if not pulled.messages:
            raise NotFoundError(
                f"queue {queue_id} of {topic} at {broker_name} has no message at offset {offset}: "
                f"it has {pulled.min_offset} to {pulled.max_offset - 1}"
            )
        return pulled.messages[0]

    async def by_time(
        self,
        topic: str,
        begin: int,
        end: int,
        *,
        limit: int = KEY_BATCH,
        subscription: str | Subscription = EVERYTHING,
        broker_name: str | None = None,
        queue_id: int | None = None,
    ) -> FoundMessages:
        """Return the first `limit` messages stored between two times (ms, both included).

        Brokers that fail make the result incomplete, unless all of them do.
        """
        wanted = Subscription.of(subscription)
        queues = [
            each
            for each in await self.queues(topic)
            if broker_name in (None, each[0].broker_name) and queue_id in (None, each[0].queue_id)
        ]

        async def read(queue: MessageQueue, address: str) -> list[MessageView]:
            found: list[MessageView] = []
            # Brokers return any of several messages with the same time, or the nearest one.
            first = await self._reader.offset_by_time(address, queue, max(0, begin - 1))
            last = await self._reader.max_offset(address, queue)
            async for pulled in self._reader.batches(address, queue, max(0, first), last, wanted):
                for message in pulled.messages:
                    if message.store_timestamp > end or len(found) > limit:
                        return found
                    if message.store_timestamp >= begin:
                        found.append(message)
            return found

        outcomes = await asyncio.gather(
            *(read(queue, address) for queue, address in queues), return_exceptions=True
        )
        merged: list[MessageView] = []
        failures: dict[str, AdminError] = {}
        for (_, address), outcome in zip(queues, outcomes, strict=True):
            if isinstance(outcome, AdminError):
                failures[address] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                merged += outcome
        if failures and set(failures) == {address for _, address in queues}:
            raise next(iter(failures.values()))
        merged.sort(key=lambda each: (each.store_timestamp, each.broker_name, each.physical_offset))
        reasons = [str(error) for error in failures.values()]
        if len(merged) > limit:
            reasons.append(
                f"there are more than {limit} messages; continue from the time of the last one"
            )
        return FoundMessages(tuple(merged[:limit]), not reasons, "; ".join(reasons))

    # Reading queues

    async def queues(self, topic: str) -> list[tuple[MessageQueue, str]]:
        """Return the readable queues of a topic with the addresses to read them at."""
        route = await self._session.route(topic)
        addresses = {
            data.broker_name: data.broker_addrs[min(data.broker_addrs)]
            for data in route.broker_datas
            if data.broker_addrs
        }
        return sorted(
            (MessageQueue(topic, data.broker_name, queue_id), addresses[data.broker_name])
            for data in route.queue_datas
            if is_readable(data.perm) and data.broker_name in addresses
            for queue_id in range(data.read_queue_nums)
        )

    async def bounds(
        self, queue: MessageQueue, begin: int | None = None, end: int | None = None
    ) -> tuple[int, int]:
        """Return the first offset of a queue and the one after its last message.

        With times, the offsets that the broker finds for these, as mqadmin uses them.
        """
        address = await self._address_of(queue)
        return (
            await self._reader.min_offset(address, queue)
            if begin is None
            else await self._reader.offset_by_time(address, queue, begin),
            await self._reader.max_offset(address, queue)
            if end is None
            else await self._reader.offset_by_time(address, queue, end),
        )

    async def read(
        self,
        queue: MessageQueue,
        begin: int,
        end: int,
        *,
        subscription: str | Subscription = EVERYTHING,
    ) -> AsyncIterator[MessageView]:
        """Iterate over the messages of a queue from one offset up to, without, another."""
        address = await self._address_of(queue)
        wanted = Subscription.of(subscription)
        async for pulled in self._reader.batches(address, queue, begin, end, wanted):
            for message in pulled.messages:
                yield message

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        *,
        subscription: str | Subscription = EVERYTHING,
        group: str | None = None,
    ) -> Pulled:
        """Pull messages of a queue once, in the name of the tools' group or of `group`."""
        address = await self._address_of(queue)
        wanted = Subscription.of(subscription)
        if group is None:
            return await self._reader.pull(address, queue, offset, max_messages, wanted)
        return await self._reader.pull(address, queue, offset, max_messages, wanted, group)

    async def queue_entries(
        self,
        topic: str,
        queue_id: int,
        index: int,
        count: int = 10,
        *,
        broker: str | None = None,
        group: str | None = None,
    ) -> QueueEntries:
        """Return entries of a consume queue at a broker (an address; by default the first).

        `group` adds its subscription, and whether that accepts each message.
        """
        if broker is None:
            masters = await self._session.masters_of_topic(topic)
            if not masters:
                raise NotFoundError(f"topic {topic!r} has no broker at present")
            broker = next(iter(masters.values()))
        header = QueryConsumeQueueRequestHeader(topic, queue_id, index, count, group)
        answer = await self._session.ask(broker, RequestCode.QUERY_CONSUME_QUEUE, header)
        if not answer.body:
            raise NotFoundError(f"{broker}: {answer.remark or 'no such entry'}")
        body = read_body(QueryConsumeQueueResponseBody, broker, answer)
        return QueueEntries(
            body.min_queue_index,
            body.max_queue_index,
            body.subscription_data,
            body.filter_data,
            tuple(
                QueueEntry(
                    number,
                    each.physic_offset,
                    each.physic_size,
                    each.tags_code,
                    each.eval,
                    each.extend_data_json,
                    each.bit_map,
                    each.msg,
                )
                for number, each in enumerate(body.queue_data, index)
            ),
        )

    # Redelivering

    async def consume_directly(
        self, group: str, client_id: str, offset_msg_id: str
    ) -> DirectConsumption:
        """Have one member of a group handle a message now; its offset does not change."""
        try:
            host, port, _ = decode_message_id(offset_msg_id)
        except ValueError as error:
            raise NotFoundError(str(error)) from None
        address = format_address(host, port)
        header = ConsumeMessageDirectlyResultRequestHeader(group, client_id, offset_msg_id)
        answer = await self._session.ask(
            address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            request_timeout=_SLOW_FACTOR * self._session.settings.request_timeout,
        )
        body = read_body(ConsumeMessageDirectlyResult, address, answer)
        return DirectConsumption(
            body.consume_result, body.order, body.auto_commit, body.remark, body.spent_time_mills
        )

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str = "",
        keys: str = "",
        broker_name: str | None = None,
        queue_id: int | None = None,
        trace: bool = False,
    ) -> SendResult:
        """Send a message: to any queue, to one of a broker, or to a given one."""
        if queue_id is not None and broker_name is None:
            raise AdminError("give the name of a broker together with a queue id")
        queue = None
        if broker_name is not None:
            if queue_id is None:
                queue_id = await self._any_queue(topic, broker_name)
            queue = MessageQueue(topic, broker_name, queue_id)
        message = Message(topic, body, tags=tags, keys=keys)
        return await sending.send(self._session, message, queue, trace=trace)

    async def send_again(self, offset_msg_id: str, *, unit_name: str = "") -> SendResult:
        """Send a copy of a message to its topic again, as a client of a unit if one is named."""
        message = await self.by_id(offset_msg_id)
        return await sending.send_copy(self._session, message, unit_name)

    async def check_latency(
        self, topic: str, *, amount: int = 100, size: int = 128
    ) -> AsyncIterator[SendLatency]:
        """Send messages to one queue of a topic after the other, and measure each."""
        async for each in sending.check_latency(self._session, topic, amount, size):
            yield each

    # Who consumed it

    async def track(self, message: MessageView) -> list[MessageTrack]:
        """Return for each group that consumes the topic whether it has consumed a message."""
        return await tracks.track(self._session, message)

    async def trace(self, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceEvent]:
        """Return the traced events of a message, by the id that its producer made."""
        found = await self.by_key(trace_topic, msg_id)
        return tracks.events(msg_id, found.messages)

    # Helpers, in call order

    async def _by_key(
        self,
        topic: str,
        key: str,
        is_match: Callable[[MessageView], bool],
        *,
        begin: int = 0,
        end: int = MAX_TIMESTAMP,
        limit: int,
    ) -> FoundMessages:
        masters = await self._session.masters_of_topic(topic)
        found: dict[str, MessageView] = {}
        reasons = []
        for name, address in masters.items():
            try:
                messages, reason = await self._by_key_at(
                    name, address, topic, key, is_match, begin, end, limit
                )
            except AdminError as error:
                if len(masters) == 1:
                    raise
                reasons.append(str(error))
            else:
                found |= {each.offset_msg_id: each for each in messages}
                if reason:
                    reasons.append(reason)
        newest = sorted(found.values(), key=lambda each: (each.store_timestamp, each.broker_name))
        if len(newest) > limit:
            newest = newest[-limit:]
            reasons.append(f"only the newest {limit} messages are shown")
        return FoundMessages(tuple(newest), complete=not reasons, reason="; ".join(reasons))

    async def _by_key_at(
        self,
        name: str,
        address: str,
        topic: str,
        key: str,
        is_match: Callable[[MessageView], bool],
        begin: int,
        end: int,
        limit: int,
    ) -> tuple[list[MessageView], str]:
        """Return the newest matches at a broker, and why there may be more.

        A broker returns the newest messages of a time range, so older ones are found by ending the
        range at the oldest one that is known.
        """
        found: dict[str, MessageView] = {}
        seen: set[str] = set()
        while True:
            # Without Java's mark of a unique key, which brokers and clients sign differently; it
            # only lowers the limit.
            header = QueryMessageRequestHeader(topic, key, KEY_BATCH, begin, end)
            answer = await self._session.ask(
                address, RequestCode.QUERY_MESSAGE, header, accept=(ResponseCode.QUERY_NOT_FOUND,)
            )
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return list(found.values()), ""
            read_header(QueryMessageResponseHeader, address, answer)
            batch = decoded(address, answer.body, name)
            is_new = not seen.issuperset(each.offset_msg_id for each in batch)
            seen.update(each.offset_msg_id for each in batch)
            found |= {each.offset_msg_id: each for each in batch if is_match(each)}
            if len(batch) < KEY_BATCH:
                return list(found.values()), ""
            if len(found) >= limit:
                return list(found.values()), f"{name} may have more messages with this key"
            end = min(each.store_timestamp for each in batch) + _INDEX_GRAIN_MS
            if not is_new:
                return (
                    list(found.values()),
                    f"{name} has more index entries for this key in one second than it returns",
                )

    async def _any_queue(self, topic: str, broker_name: str) -> int:
        route = await self._session.route(topic)
        for data in route.queue_datas:
            if data.broker_name == broker_name and is_writable(data.perm) and data.write_queue_nums:
                return random.randrange(data.write_queue_nums)  # noqa: S311 - any one will do
        raise NotFoundError(f"topic {topic!r} has no writable queue at broker {broker_name!r}")

    async def _address_of(self, queue: MessageQueue) -> str:
        masters = await self._session.masters_of_topic(queue.topic)
        if queue.broker_name not in masters:
            raise NotFoundError(
                f"topic {queue.topic!r} is not at broker {queue.broker_name!r}: it is at "
                f"{', '.join(masters) or 'none'}"
            )
        return masters[queue.broker_name]
