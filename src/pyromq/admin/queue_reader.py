"""Reads queues for the admin API: offsets, pulls, and ranges of messages.

Requests go to an address that the caller chose, and in the name of RocketMQ's group for tools,
which every broker has. Nothing is committed. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import Enum
from typing import Final, NamedTuple

from pyromq.admin.errors import UnreadableAnswerError
from pyromq.admin.message_view import MessageView, views
from pyromq.admin.session import AdminSession, read_body, read_header
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import QueryConsumeQueueResponseBody
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from pyromq.protocol.wire.headers_admin import QueryConsumeQueueRequestHeader

#: Messages of one pull; brokers with default settings return no more.
PULL_BATCH: Final = 32
EVERYTHING: Final = Subscription.tags("*")
#: Queue entries of one request, and messages that are viewed at a time.
_ENTRIES: Final = 256
_CONCURRENT_VIEWS: Final = 16


class PullStatus(Enum):
    """Outcome of a pull, under RocketMQ's names."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUSES: Final = {int(status.value): status for status in PullStatus}


class Pulled(NamedTuple):
    """The messages of one pull, and the offset to pull from next."""

    status: PullStatus
    messages: list[MessageView]
    next_offset: int
    min_offset: int
    max_offset: int


class RawPulled(NamedTuple):
    """The records of one pull, and the offset to pull from next."""

    status: PullStatus
    body: bytes
    next_offset: int
    min_offset: int
    max_offset: int


def decoded(address: str, body: bytes, broker_name: str = "") -> list[MessageView]:
    """Return the messages of a response's body; raises UnreadableAnswerError."""
    try:
        return views(body, broker_name)
    except ValueError as error:
        raise UnreadableAnswerError(address, error) from error


class QueueReader:
    """Reads queues at given addresses."""

    def __init__(self, session: AdminSession) -> None:
        self._session = session

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id)
        answer = await self._session.ask(address, RequestCode.GET_MIN_OFFSET, header)
        return read_header(GetMinOffsetResponseHeader, address, answer).offset

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)
        answer = await self._session.ask(address, RequestCode.GET_MAX_OFFSET, header)
        return read_header(GetMaxOffsetResponseHeader, address, answer).offset

    async def offset_by_time(self, address: str, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message stored at or after a time."""
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamp)
        answer = await self._session.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return read_header(SearchOffsetResponseHeader, address, answer).offset

    async def pull(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        max_messages: int = PULL_BATCH,
        subscription: Subscription = EVERYTHING,
        group: str = ANONYMOUS_GROUP,
    ) -> Pulled:
        """Pull messages from `offset` on; a broker that has none answers at once."""
        raw = await self.pull_raw(address, queue, offset, max_messages, subscription, group)
        messages = decoded(address, raw.body, queue.broker_name)
        # Brokers compare hashes of tags.
        if wanted := subscription.wanted_tags():
            messages = [message for message in messages if message.tags in wanted]
        return Pulled(raw.status, messages, raw.next_offset, raw.min_offset, raw.max_offset)

    async def pull_raw(
        self,
        address: str,
        queue: MessageQueue,
        offset: int,
        max_messages: int = PULL_BATCH,
        subscription: Subscription = EVERYTHING,
        group: str = ANONYMOUS_GROUP,
    ) -> RawPulled:
        """Pull messages and leave their records undecoded."""
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=subscription.expression,
            expression_type=subscription.kind,
        )
        answer = await self._session.ask(
            address, RequestCode.PULL_MESSAGE, header, accept=_STATUSES
        )
        status = _STATUSES[answer.code]
        found = read_header(PullMessageResponseHeader, address, answer)
        return RawPulled(
            status,
            answer.body if status is PullStatus.FOUND else b"",
            found.next_begin_offset,
            found.min_offset,
            found.max_offset,
        )

    async def batches(
        self,
        address: str,
        queue: MessageQueue,
        begin: int,
        end: int,
        subscription: Subscription = EVERYTHING,
    ) -> AsyncIterator[Pulled]:
        """Pull everything from `begin` up to, and without, `end`.

        Ends early at the end of the queue. Offsets that were deleted meanwhile are skipped.
        """
        offset = begin
        while offset < end:
            pulled = await self.pull(address, queue, offset, subscription=subscription)
            if pulled.status is PullStatus.NO_NEW_MSG:
                return
            if pulled.next_offset <= offset:
                # An offset past the end; any other answer moves on.
                return
            offset = pulled.next_offset
            messages = [each for each in pulled.messages if each.queue_offset < end]
            yield pulled._replace(messages=messages)

    async def by_entries(
        self, address: str, queue: MessageQueue, begin: int, end: int
    ) -> list[MessageView]:
        """Read a range by its queue entries, which also works for a topic without a configuration.

        Each message costs a request.
        """
        found: list[MessageView] = []
        room = asyncio.Semaphore(_CONCURRENT_VIEWS)

        async def view_at(physical_offset: int) -> list[MessageView]:
            async with room:
                answer = await self._session.ask(
                    address,
                    RequestCode.VIEW_MESSAGE_BY_ID,
                    ViewMessageRequestHeader(physical_offset),
                    accept=(ResponseCode.SYSTEM_ERROR,),
                )
            if answer.code != ResponseCode.SUCCESS:
                return []  # it was deleted meanwhile
            return decoded(address, answer.body, queue.broker_name)

        while begin < end:
            count = min(_ENTRIES, end - begin)
            header = QueryConsumeQueueRequestHeader(queue.topic, queue.queue_id, begin, count)
            answer = await self._session.ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
            # An empty answer: the offset does not exist any more.
            entries = read_body(QueryConsumeQueueResponseBody, address, answer).queue_data
            if not entries:
                break
            viewed = await asyncio.gather(*(view_at(each.physic_offset) for each in entries))
            found += [message for messages in viewed for message in messages]
            begin += len(entries)
        return found
