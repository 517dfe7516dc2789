"""Everything that a consumer asks of one queue: messages, offsets, how far its group is.

Stateless but for which replica a broker suggested to read from, which brokers keep an offset of
the group, and which are pyromq's. The three consumers stand on this; so does everybody else who
wants messages without a group. Queues and topics have the application's names here, the namespace
is put on when a request leaves. On the consumer's event loop.

A group's first commit in a topic goes to its broker alone. Java's brokers handle commits in
several threads and make a table for the first one: of first ones that come together, each
makes its own table, and all but one are lost although they were answered. For the same reason
a pull there sets an offset only when that is its own: one that waits for a thread while the
messages before it are finished would take back what was committed meanwhile. pyromq's brokers
handle the requests of a connection in their order, and are known by the language in their
answers: there, each pull commits what was finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import orjson

from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import BrokerError, TopicNotFoundError, reading_answer, refusal_of
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.session.session import Session
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RemotingCommand, frame_from, pack_prefix
from pyromq.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyromq.remoting.client import RemotingError

logger = logging.getLogger(__name__)

#: The group that every broker has for readers that belong to none.
ANONYMOUS_GROUP = "TOOLS_CONSUMER"
#: How much later than asked the answer to a held pull may come: brokers look each 5 s.
_GRACE_SECONDS = 10.0
_MAX_OFFSET = (1 << 63) - 1
#: What pyromq's brokers have in their answers.
_LANGUAGE = LanguageCode.PYTHON.name
#: Of a pull: offset, messages at most, flags, offset to commit, milliseconds to wait.
_Numbers = tuple[int, int, int, int, int]


class PullStatus(Enum):
    """What a pull found."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS_BY_CODE = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
    """One pull's messages, and the offset from which to go on."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class QueueAccess:
    """Asks brokers about queues, for a group."""

    def __init__(self, session: Session, group: str | None) -> None:
        """`group` is the application's name; None for readers that belong to none."""
        self._session = session
        self._group = session.wrap(group) if group else ANONYMOUS_GROUP
        self._suggested: dict[MessageQueue, int] = {}
        self._templates: dict[tuple[MessageQueue, Subscription, int], bytes] = {}
        #: (broker, topic) where the group has an offset, and who sets the first one.
        self._with_offsets: set[tuple[str, str]] = set()
        self._first_commits: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Addresses of brokers that handle our requests in their order.
        self._in_order: set[str] = set()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        *,
        version: int = 0,
        max_messages: int = 32,
        wait: float = 0.0,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Messages of `queue` from `offset` on.

        When there is none yet, the broker waits up to `wait` seconds for one. A
        `commit_offset` is set by the way, by masters, if it is `offset` or the broker is
        pyromq's; the first one of a topic before it (see above).
        """
        broker_id = self._suggested.get(queue, 0)
        address = await self._address(queue, broker_id)
        sys_flag = PULL_SUBSCRIPTION
        if wait > 0:
            sys_flag |= PULL_SUSPEND
        if (
            commit_offset is not None
            and (commit_offset == offset or address in self._in_order)
            and broker_id == 0
            and (_place(queue) in self._with_offsets or await self._begin(queue, commit_offset))
        ):
            sys_flag |= PULL_COMMIT_OFFSET
        numbers = (offset, max_messages, sys_flag, commit_offset or 0, int(wait * 1000))
        seconds = self._session.request_timeout + (wait + _GRACE_SECONDS if wait > 0 else 0)
        try:
            frame = await self._pull(address, queue, subscription, version, numbers, seconds)
            return self._result(address, queue, frame)
        except (RemotingError, BrokerError):
            # A replica that cannot help: its master is asked next, whatever it suggested.
            self._suggested.pop(queue, None)
            raise

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read now."""
        route = await self._session.routes.get(self._session.wrap(topic))
        return [replace(queue, topic=topic) for queue in route.read_queues]

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        header = GetMinOffsetRequestHeader(self._session.wrap(queue.topic), queue.queue_id)
        address, answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header.encode())
        with reading_answer(address):
            return GetMinOffsetResponseHeader.decode(answer.ext_fields).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(self._session.wrap(queue.topic), queue.queue_id)
        address, answer = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header.encode())
        with reading_answer(address):
            return GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset

    async def offset_by_time(self, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message that was stored at or after a time (milliseconds)."""
        header = SearchOffsetRequestHeader(
            self._session.wrap(queue.topic), queue.queue_id, timestamp
        )
        address, answer = await self._ask(
            queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode()
        )
        with reading_answer(address):
            return SearchOffsetResponseHeader.decode(answer.ext_fields).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """When the oldest message that is still there was stored (milliseconds)."""
        header = GetEarliestMsgStoretimeRequestHeader(
            self._session.wrap(queue.topic), queue.queue_id
        )
        address, answer = await self._ask(
            queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header.encode()
        )
        with reading_answer(address):
            return GetEarliestMsgStoretimeResponseHeader.decode(answer.ext_fields).timestamp

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset from which the group goes on, None when it never consumed from `queue`."""
        header = QueryConsumerOffsetRequestHeader(
            self._group, self._session.wrap(queue.topic), queue.queue_id
        )
        try:
            address, answer = await self._ask(
                queue, RequestCode.QUERY_CONSUMER_OFFSET, header.encode()
            )
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        with reading_answer(address):
            offset = QueryConsumerOffsetResponseHeader.decode(answer.ext_fields).offset
        if offset > 0:  # brokers say 0 of queues that nobody has consumed, too
            self._with_offsets.add(_place(queue))
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on from `offset`, whatever happens to this consumer."""
        place = _place(queue)
        if place not in self._with_offsets:
            async with self._first_commits[place]:
                if place not in self._with_offsets:
                    await self._set_offset(queue, offset)
                    self._with_offsets.add(place)
                    return
        await self._set_offset(queue, offset)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not read any more: keep nothing of it."""
        self._suggested.pop(queue, None)
        for key in [key for key in self._templates if key[0] == queue]:
            del self._templates[key]

    # Helpers, in call order.

    async def _begin(self, queue: MessageQueue, offset: int) -> bool:
        """Commit for the first time; whoever cannot do that may read all the same."""
        try:
            await self.commit(queue, offset)
        except (RemotingError, BrokerError) as error:
            logger.warning("first offset %d of %s not committed: %s", offset, queue, error)
            return False
        return True

    async def _set_offset(self, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            self._group, self._session.wrap(queue.topic), queue.queue_id, offset
        )
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())

    async def _address(self, queue: MessageQueue, broker_id: int = 0) -> str:
        topic = self._session.wrap(queue.topic)
        routes = self._session.routes
        route = routes.peek(topic) or await routes.get(topic)
        if queue.broker_name not in route.addresses:
            route = await routes.refresh(topic)
        if queue.broker_name not in route.addresses:
            raise TopicNotFoundError(queue.topic, f"broker {queue.broker_name!r} is not known")
        return route.address_of(queue.broker_name, broker_id)

    async def _pull(
        self,
        address: str,
        queue: MessageQueue,
        subscription: Subscription,
        version: int,
        numbers: _Numbers,
        seconds: float,
    ) -> RawFrame:
        session = self._session
        connection = session.remoting.ready(address)
        if connection is None or session.settings.access_key:
            command = self._command(queue, subscription, version, numbers)
            return frame_from(await session.remoting.request(address, command, seconds))
        opaque = connection.next_opaque()
        request = self._template(queue, subscription, version) % (*numbers, opaque)
        length = len(request)
        frame = pack_prefix(4 + length, length) + request
        return await connection.call(opaque, frame, RequestCode.PULL_MESSAGE, seconds)

    async def _ask(
        self, queue: MessageQueue, code: RequestCode, ext_fields: dict[str, str]
    ) -> tuple[str, RemotingCommand]:
        self._session.check_running()
        address = await self._address(queue)
        return address, await self._session.ask(
            address, RemotingCommand(code, ext_fields=ext_fields)
        )

    def _command(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        version: int,
        numbers: _Numbers,
    ) -> RemotingCommand:
        offset, max_messages, sys_flag, commit_offset, suspend_ms = numbers
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=self._session.wrap(queue.topic),
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_millis=suspend_ms,
            subscription=subscription.expression,
            sub_version=version,
            expression_type=subscription.kind,
        )
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())

    def _template(self, queue: MessageQueue, subscription: Subscription, version: int) -> bytes:
        key = (queue, subscription, version)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._make_template(queue, subscription, version)
        return template

    def _make_template(
        self, queue: MessageQueue, subscription: Subscription, version: int
    ) -> bytes:
        fields = {
            "consumerGroup": self._group,
            "topic": self._session.wrap(queue.topic),
            "queueId": str(queue.queue_id),
            "subscription": subscription.expression,
            "subVersion": str(version),
            "expressionType": subscription.kind,
        }
        constant = orjson.dumps(fields)[:-1].replace(b"%", b"%%")
        return (
            b'{"code":%d,"extFields":' % RequestCode.PULL_MESSAGE
            + constant
            + b',"queueOffset":"%d","maxMsgNums":"%d","sysFlag":"%d","commitOffset":"%d",'
            b'"suspendTimeoutMillis":"%d"},"flag":0,"language":"'
            + _LANGUAGE.encode()
            + b'","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
            + str(PROTOCOL_VERSION).encode()
            + b"}"
        )

    def _result(self, address: str, queue: MessageQueue, frame: RawFrame) -> PullResult:
        _, header, body = frame
        code = header.get("code")
        status = _STATUS_BY_CODE.get(code) if type(code) is int else None
        if status is None:
            raise refusal_of(address, header)
        if header.get("language") == _LANGUAGE:
            self._in_order.add(address)
        else:
            self._in_order.discard(address)
        with reading_answer(address):
            try:
                fields = header["extFields"]
                suggested = int(fields["suggestWhichBrokerId"])
                following = int(fields["nextBeginOffset"])
                first, last = int(fields["minOffset"]), int(fields["maxOffset"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"no offsets in the answer to a pull: {error!r}") from error
            if not 0 <= following <= _MAX_OFFSET:
                raise ValueError(f"a pull cannot go on from {following}")
            messages = (
                decode_messages(body, queue, self._session.wrap(queue.topic))
                if status is PullStatus.FOUND
                else []
            )
        if suggested != self._suggested.get(queue, 0):
            self._suggested[queue] = suggested
        return PullResult(status, messages, following, first, last)


def _place(queue: MessageQueue) -> tuple[str, str]:
    return queue.broker_name, queue.topic
