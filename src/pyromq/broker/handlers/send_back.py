"""CONSUMER_SEND_MSG_BACK: retry a message that a consumer could not process.

The broker reads the message from the log by its physical offset and stores it again: in the group's
%RETRY% topic with a delay that grows with each retry, or in its %DLQ% topic after the last retry or
if the consumer abandons it (a negative delay level).

Checks, codes and their order are those of RocketMQ's SendMessageProcessor. Differences:

1. A retried message goes only to queues that its retry topic has. RocketMQ picks any of the group's
   retryQueueNums, which may have been raised since the topic was created; such messages are never
   consumed.
2. With SYNC_FLUSH the response waits for the fsync, although RocketMQ marks these messages
   WAIT=false: a consumer that gets SUCCESS forgets the message.
3. The store host of the new record is the current address of this broker, not the one at which the
   original was stored.
4. An uncommitted half message, which no consumer can have received, counts as not found. So does a
   message with a damaged body: the new record would vouch for it with a new checksum.

Runs on the loop; a lane reads messages that are no longer in memory.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Final

from pyromq.acl import classification as access
from pyromq.broker.inner_messages import InnerMessage
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Pool, Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.state.topics import TOPIC_UNIT_SUBSCRIPTION
from pyromq.protocol import names
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from pyromq.protocol.message.record import MessageRecord, RecordError, body_crc, decode_record
from pyromq.protocol.message.sysflag import is_consumable, is_writable
from pyromq.protocol.wire.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import ConsumerSendMsgBackRequestHeader
from pyromq.store.results import PutError

#: Clients from this version on (RocketMQ 3.4.9) set their own maximum of retries.
_VERSION_WITH_LIMIT: Final = 121
DEAD_LETTER_QUEUES: Final = 1
#: Delay level of the first retry; each further one is a level higher.
_FIRST_RETRY_LEVEL: Final = 3
_INT_MAX: Final = 0x7FFFFFFF


class SendBackHandlers:
    """Stores messages of consumers for a retry."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._role = parts.role
        self._store = parts.store
        self._writer = parts.writer
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._lane = parts.lanes.send
        self._announce, self._announced = parts.announce, parts.announced
        self._stats = parts.stats

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.CONSUMER_SEND_MSG_BACK, access.SEND_BACK, self.send_back, pool=Pool.SEND
            ),
        )

    def send_back(
        self,
        connection: ClientConnection,  # noqa: ARG002 - every handler has it
        request: RemotingCommand,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """CONSUMER_SEND_MSG_BACK: respond once the message is stored again."""
        header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        self._refuse_on_replica()
        group = self._check(header)
        if group.retry_queue_nums <= 0:
            # The group has retries disabled: drop the message.
            return request.answer()
        topics_before = self._topics.data_version
        retry_topic = self._retry_topic(header, group)
        if self._store.is_cold(header.offset):
            return self._send_cold_back(request, header, group, retry_topic, topics_before)
        data = self._store.read_record(header.offset)
        self._put_back(request, header, group, retry_topic, data)
        pending = self._announce() if self._topics.data_version is not topics_before else None
        return request.answer() if pending is None else self._when_registered(request, pending)

    async def _when_registered(
        self, request: RemotingCommand, registration: Awaitable[None]
    ) -> RemotingCommand:
        """Respond once the NameServers know the topic that was created for the message."""
        await registration
        return request.answer()

    async def _send_cold_back(
        self,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        retry_topic: TopicConfig,
        topics_before: DataVersion,
    ) -> RemotingCommand:
        data = await self._lane.run(lambda: self._store.fetch_record(header.offset))
        self._refuse_on_replica()
        self._put_back(request, header, group, retry_topic, data)
        await self._writer.stored()
        # Another topic may have changed meanwhile; an extra registration does no harm.
        if self._topics.data_version is not topics_before:
            await self._announced()
        return request.answer()

    def _refuse_on_replica(self) -> None:
        if self._role.is_replica:
            # Code and remark of RocketMQ. The consumer sends the message to its retry topic then.
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE: this broker is a replica"
            )

    def _check(self, header: ConsumerSendMsgBackRequestHeader) -> SubscriptionGroupConfig:
        group = self._groups.find(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group}",
            )
        if not is_writable(self._config.broker_permission):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden",
            )
        return group

    def _retry_topic(
        self, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroupConfig
    ) -> TopicConfig:
        topic = self._topic(
            names.retry_topic(header.group),
            group.retry_queue_nums,
            TOPIC_UNIT_SUBSCRIPTION if header.unit_mode else 0,
        )
        if not is_writable(topic.perm):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden",
            )
        return topic

    def _topic(self, name: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """Return the topic, created if missing. Raises RequestError if its name is too long."""
        fault = names.topic_fault(name)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist: {fault}")
        return self._topics.create_for_send_back(name, queue_nums, sys_flag=sys_flag)

    def _put_back(
        self,
        request: RemotingCommand,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        retry_topic: TopicConfig,
        data: bytes | None,
    ) -> None:
        """Store the message of a record again."""
        record = _received(data)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
            )
        original_topic = record.properties.get(RETRY_TOPIC, record.topic)
        limit = retry_limit(group, request.version, header.max_reconsume_times)
        if record.reconsume_times >= limit or header.delay_level < 0:
            topic = self._topic(names.dead_letter_topic(header.group), DEAD_LETTER_QUEUES)
            queue_id, level = 0, 0
        else:
            topic = retry_topic
            # Any queue that both the group and the topic have.
            queues = max(1, min(group.retry_queue_nums, topic.read_queue_nums))
            queue_id = random.randrange(queues)  # noqa: S311
            level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
        message = InnerMessage(
            topic.topic_name,
            queue_id,
            record.body,
            {
                **record.properties,
                RETRY_TOPIC: original_topic,
                ORIGIN_MESSAGE_ID: _original_id(record),
                WAIT: "false",
                DELAY: str(level),
            },
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            encode_host(*record.born_host),
            min(record.reconsume_times + 1, _INT_MAX),
        )
        try:
            self._writer.put(message)
        except PutError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{error.status.name}: {error.reason}"
            ) from error
        self._stats.sent_back(header.group, original_topic)
        if topic is not retry_topic:
            self._stats.sent_to_dlq(header.group, original_topic)


def retry_limit(group: SubscriptionGroupConfig, version: int, requested: int | None) -> int:
    """Return the maximum of retries: the client's own, or else the group's."""
    if requested is not None and version >= _VERSION_WITH_LIMIT:
        return requested
    return group.retry_max_times


def _received(data: bytes | None) -> MessageRecord | None:
    """Return the message of a record, or None if no consumer can have received it."""
    if data is None:
        return None
    try:
        record = decode_record(data)
    except RecordError:
        return None
    is_whole = body_crc(record.body) == record.body_crc
    return record if is_whole and is_consumable(record.sys_flag) else None


def _original_id(record: MessageRecord) -> str:
    """Return the id of the message before its first retry."""
    original = record.properties.get(ORIGIN_MESSAGE_ID, "")
    return original if original.strip() else record.message_id
