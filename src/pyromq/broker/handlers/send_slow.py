"""Sends on the slow path: one request at a time, with every check of RocketMQ, in its order.

Serves everything that the hot path (`handlers.send`) leaves alone: the first message to a queue,
retry topics, transactional messages, properties the broker acts on, batches inside
SEND_MESSAGE_V2, unusual or malformed headers.

A batch of more than MAX_BATCH_AT_ONCE messages is encoded in slices, one per loop iteration. Only
one such batch is encoded at a time. Sends that arrive on its connection meanwhile queue up after
it, so that a connection's messages are stored in the order in which they arrived.

On the loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime
from typing import Final

from pyromq.base.memo import Memo
from pyromq.broker.handlers.send_back import DEAD_LETTER_QUEUES, retry_limit
from pyromq.broker.handlers.send_responses import SendResponses, SendTargets, code_after_wait
from pyromq.broker.inner_messages import InnerMessage, delay_level
from pyromq.broker.parts import BrokerParts
from pyromq.broker.state.topics import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION
from pyromq.broker.transaction_messages import half_of, is_transactional
from pyromq.protocol import names
from pyromq.protocol.message.properties import (
    CLUSTER,
    DELAY,
    RETRY_TOPIC,
    TRAN_MSG,
    WAIT,
    decode_properties,
    encode_properties,
    waits_for_store,
)
from pyromq.protocol.message.record import inner_count
from pyromq.protocol.message.sysflag import (
    HOST_MASK,
    MULTI_TAGS,
    TRANSACTION_MASK,
    is_consumable,
    is_writable,
)
from pyromq.protocol.wire.bodies import DataVersion, TopicConfig, TopicFilterType
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from pyromq.remoting.connection import Connection
from pyromq.store.results import LargeBatchError, PutError, PutStatus

#: Messages in a batch that is stored at once; more would block the loop for over 30 ms.
MAX_BATCH_AT_ONCE: Final = 8192
#: Messages of a larger batch that are encoded per loop iteration.
_BATCH_SLICE: Final = 512

#: Begins as RocketMQ's remark, which clients may look for.
_REPLICA: Final = "service not available now: this broker is a replica, send to its master"

SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


class SlowSends:
    """Checks and stores single send requests."""

    def __init__(self, parts: BrokerParts, responses: SendResponses, targets: SendTargets) -> None:
        self._config = parts.config
        self._role = parts.role
        self._store = parts.store
        self._writer = parts.writer
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._now = parts.clock
        self._announce = parts.announce
        self._responses = responses
        self._stats = parts.stats
        self._targets = targets
        #: Encoded properties that a batch adds to each of its messages, by the batch's own text.
        #: Raises ValueError for a batch that is not for the hot path.
        self.batch_properties: Memo[str, bytes] = Memo(self._make_hot_batch_properties)
        #: Held while a large batch is encoded, or a send that queued up after one is stored.
        self._large_batch = asyncio.Lock()
        #: Large batches per connection, and sends that queued up after them.
        self.queued: Counter[Connection] = Counter()

    def send_one(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Serve any send request, with every check.

        The first message to a topic is answered once the NameServers know the topic, so that the
        sender can consume it right away. With WAIT=false, the response waits for no fsync and no
        replica.
        """
        if connection in self.queued:
            return self._in_turn(connection, request)
        try:
            answer = self._send_now(connection, request)
        except LargeBatchError:
            return self._in_turn(connection, request)
        if not self._store.has_gate or _waits(request):
            return answer
        return self._answer_unwaited(connection, request, answer)

    def _answer_unwaited(
        self,
        connection: Connection,
        request: RemotingCommand,
        answer: RemotingCommand | Awaitable[RemotingCommand],
    ) -> Awaitable[None] | None:
        """Answer as soon as the message is in the log, ahead of the rest of its chunk."""
        self._store.seal()

        async def answer_later(pending: Awaitable[RemotingCommand]) -> None:
            respond(await pending)

        def respond(command: RemotingCommand) -> None:
            if not request.is_oneway:
                connection.send(command)

        if isinstance(answer, RemotingCommand):
            respond(answer)
            return None
        return answer_later(answer)

    def _in_turn(
        self, connection: Connection, request: RemotingCommand
    ) -> Awaitable[RemotingCommand | None]:
        """Store a large batch, or a send that queued up after one."""
        self.queued[connection] += 1

        async def send() -> RemotingCommand | None:
            try:
                async with self._large_batch:
                    try:
                        answer = self._send_now(connection, request)
                    except LargeBatchError:
                        answer = await self._send_in_slices(connection, request)
            finally:
                self.queued[connection] -= 1
                if not self.queued[connection]:
                    del self.queued[connection]
            if self._store.has_gate and not _waits(request):
                pending = self._answer_unwaited(connection, request, answer)
                if pending is not None:
                    await pending
                return None
            # Without yielding to the loop in between: the end of another connection's chunk would
            # take over this flush.
            outcome = await self._writer.stored()
            if not isinstance(answer, RemotingCommand):
                answer = await answer
            if answer.code == ResponseCode.SUCCESS:
                answer.code = code_after_wait(outcome)
            return answer

        return send()

    def _send_now(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Check and store at once. Raises LargeBatchError for a batch that must be sliced."""
        header = _header_of(request)
        topics_before = self._topics.data_version
        try:
            topic = self.check(connection, header)
            put = self._put_batch if header.batch else self._put_one
            return self._registered(put(connection, request, header, topic), topics_before)
        except LargeBatchError:
            raise
        except (PutError, RequestError) as error:
            return self._responses.refusal(request, error)

    async def _send_in_slices(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store a large batch, encoded over several loop iterations."""
        header = _header_of(request)
        born_host = connection.born_host
        topics_before = self._topics.data_version
        try:
            topic = self.check(connection, header)
            queue_id = queue_id_of(header, topic)
            encoder = self._store.encode_batch(
                self._store.tail(topic.topic_name, queue_id),
                request.body,
                self._make_batch_properties(header.properties or ""),
                born_host,
            )
            while encoder.encode(_BATCH_SLICE):  # noqa: ASYNC110 - work, not polling
                await asyncio.sleep(0)
            # Topic and settings may have changed meanwhile.
            topic = self.check(connection, header)
            sys_flag = _batch_flag(header, topic)
            queue = self._store.tail(topic.topic_name, queue_id)
            offset = queue.next_offset
            physicals = self._store.put_encoded(
                queue,
                encoder,
                sys_flag,
                header.born_timestamp,
                born_host,
                header.reconsume_times or 0,
            )
            return self._sent_later(request, queue_id, offset, physicals, topics_before)
        except (PutError, RequestError) as error:
            return self._responses.refusal(request, error)

    async def _sent_later(
        self,
        request: RemotingCommand,
        queue_id: int,
        offset: int,
        physicals: list[int],
        topics_before: DataVersion,
    ) -> RemotingCommand:
        """Build the response to a large batch, megabytes of message ids, in its own iteration."""
        await asyncio.sleep(0)
        answer = self._registered(
            self._responses.sent(request, queue_id, offset, physicals), topics_before
        )
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _registered(
        self, answer: RemotingCommand, topics_before: DataVersion
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Delay a response until the NameServers know the topic that its request created."""
        # A new topic, or the dead-letter topic that the message went to.
        if self._topics.data_version is topics_before:
            return answer
        pending = self._announce()
        return answer if pending is None else self._when_registered(answer, pending)

    async def _when_registered(
        self, answer: RemotingCommand, registration: Awaitable[None]
    ) -> RemotingCommand:
        await registration
        return answer

    def check(self, connection: Connection, header: SendHeader) -> TopicConfig:
        """Return the topic, created if allowed. Raises RequestError in RocketMQ's order.

        Replies pass the same checks. A replica refuses all of them, before it creates a topic.
        """
        config = self._config
        if self._role.is_replica:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, _REPLICA)
        if self._now() < config.start_accept_send_request_time_stamp:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "broker unable to service, until "
                + _local_time(config.start_accept_send_request_time_stamp),
            )
        if not is_writable(config.broker_permission) and self._topics.is_order_topic(header.topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] sending message is forbidden",
            )
        fault = names.topic_fault(header.topic)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        if header.topic in names.TOPICS_CLOSED_TO_SENDERS:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{header.topic}] is forbidden.",
            )
        topic = self._topics.get(header.topic) or self._create_topic(connection, header)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic} "
                f"Producer: {connection.remote_address}",
            )
        return topic

    def _create_topic(self, connection: Connection, header: SendHeader) -> TopicConfig:
        is_retry = header.topic.startswith(names.RETRY_TOPIC_PREFIX)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = TOPIC_UNIT_SUBSCRIPTION if is_retry else TOPIC_UNIT
        topic = self._topics.create_for_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            sys_flag=sys_flag,
            remote_address=connection.remote_address,
        )
        if topic is None and is_retry:
            topic = self._topics.create_for_send_back(header.topic, 1, sys_flag=sys_flag)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!",
            )
        return topic

    def _put_one(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
    ) -> RemotingCommand:
        topic_name = header.topic
        requested_queue_id = queue_id = queue_id_of(header, topic)
        properties = decode_properties(header.properties or "")
        if topic_name.startswith(names.RETRY_TOPIC_PREFIX) and self._is_dead(request, header):
            topic = self._topics.create_for_send_back(
                names.dead_letter_topic(topic_name[len(names.RETRY_TOPIC_PREFIX) :]),
                DEAD_LETTER_QUEUES,
            )
            topic_name, queue_id = topic.topic_name, 0
            properties.pop(DELAY, None)
        if delay_level(properties) <= 0:
            properties.pop(WAIT, None)  # only delayed messages keep it, as in RocketMQ
        properties[CLUSTER] = self._config.broker_cluster_name
        sys_flag = header.sys_flag & ~HOST_MASK
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= MULTI_TAGS
        message = InnerMessage(
            topic_name,
            queue_id,
            request.body,
            properties,
            header.flag,
            sys_flag,
            header.born_timestamp,
            connection.born_host,
            header.reconsume_times or 0,
        )
        queue, offset, physical = self._writer.put(self._half_if_transactional(message, header))
        if topic_name.startswith(names.DEAD_LETTER_TOPIC_PREFIX):
            group = topic_name[len(names.DEAD_LETTER_TOPIC_PREFIX) :]
            self._stats.sent_to_dlq(group, properties.get(RETRY_TOPIC, header.topic))
        if queue.topic == topic.topic_name:
            self._targets.add(topic, queue)
        elif queue.topic == names.SCHEDULE_TOPIC:
            self._targets.add(topic, self._store.tail(topic_name, queue_id))
        # As in RocketMQ: the requested queue, but the real offset, which is one of another queue
        # if the message is delayed or a dead letter.
        return self._responses.sent(request, requested_queue_id, offset, [physical])

    def _put_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
    ) -> RemotingCommand:
        sys_flag = _batch_flag(header, topic)
        properties = self._make_batch_properties(header.properties or "")
        if inner_count(request.body, MAX_BATCH_AT_ONCE + 1) > MAX_BATCH_AT_ONCE:
            raise LargeBatchError
        queue_id = queue_id_of(header, topic)
        queue = self._store.tail(topic.topic_name, queue_id)
        offset = queue.next_offset
        physicals = self._store.put_batch(
            queue,
            request.body,
            properties,
            sys_flag,
            header.born_timestamp,
            connection.born_host,
            header.reconsume_times or 0,
        )
        self._targets.add(topic, queue)
        return self._responses.sent(request, queue_id, offset, physicals)

    def _is_dead(self, request: RemotingCommand, header: SendHeader) -> bool:
        """Return whether a message to a retry topic has reached its maximum of retries."""
        group_name = header.topic[len(names.RETRY_TOPIC_PREFIX) :]
        group = self._groups.find(group_name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}",
            )
        limit = retry_limit(group, request.version, header.max_reconsume_times)
        return (header.reconsume_times or 0) >= limit

    def _half_if_transactional(self, message: InnerMessage, header: SendHeader) -> InnerMessage:
        """Return the half of a transactional message, and any other unchanged.

        Raises RequestError for a message that would be stored and could never be consumed.
        """
        if not is_transactional(message.properties):
            if not is_consumable(message.sys_flag):
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"sysFlag {header.sys_flag} marks a prepared or rolled back transaction, "
                    f"but the property {TRAN_MSG} is not true",
                )
            return message
        is_delayed = delay_level(message.properties) > 0
        if message.reconsume_times > 0 and (
            is_delayed or header.topic.startswith(names.RETRY_TOPIC_PREFIX)
        ):
            # Clients before 4.6.1 leave the mark on messages that they send back.
            message.sys_flag &= ~TRANSACTION_MASK
            return message
        if self._config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
            )
        return half_of(message)

    def _make_hot_batch_properties(self, text: str) -> bytes:
        """Return the same, or raise ValueError with WAIT=false, which `send_one` sees to."""
        if not waits_for_store(decode_properties(text)):
            raise ValueError("the batch does not wait for an fsync or a replica")
        return self._make_batch_properties(text)

    def _make_batch_properties(self, text: str) -> bytes:
        """Return the properties that a batch adds to its messages, with the cluster."""
        properties = decode_properties(text)
        properties[CLUSTER] = self._config.broker_cluster_name
        if delay_level(properties) > 0:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be delayed")
        return encode_properties(properties)


def _waits(request: RemotingCommand) -> bool:
    """Whether the sender wants to wait for an fsync and a replica, where the settings say so."""
    return waits_for_store(decode_properties(_header_of(request).properties or ""))


def _header_of(request: RemotingCommand) -> SendHeader:
    if request.code == RequestCode.SEND_MESSAGE:
        return SendMessageRequestHeader.decode(request.ext_fields)
    return SendMessageRequestHeaderV2.decode(request.ext_fields)


def _batch_flag(header: SendHeader, topic: TopicConfig) -> int:
    """Return the sysFlag of a batch's messages. Raises PutError if it is transactional."""
    if header.sys_flag & TRANSACTION_MASK:
        raise PutError(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be transactional")
    sys_flag = header.sys_flag & ~HOST_MASK
    if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
        sys_flag |= MULTI_TAGS
    return sys_flag


def queue_id_of(header: SendHeader, topic: TopicConfig) -> int:
    """Return the queue id of a message; a random one if it names none."""
    if header.queue_id >= 0:
        return header.queue_id
    return random.randrange(max(1, topic.write_queue_nums))  # noqa: S311 - no secret


def _local_time(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000)
    except (ValueError, OverflowError, OSError):  # out of the calendar's range
        return f"{milliseconds} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03d}"
