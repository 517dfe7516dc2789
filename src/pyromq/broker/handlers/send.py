"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE.

The hot path takes a run of raw frames. What all messages to a queue have in common
(that the topic exists and may be sent to, the queue itself, the answer's constant
part) is looked up once and kept as a `_Target` until the topic changes. A message
without anything special goes from its header's dictionary straight to `store.put`, a
delayed one to the writer.

Everything else takes the slow path, `send_one`: first messages to a topic, retry
topics, properties that the broker must act on, batches inside SEND_MESSAGE_V2, numbers
that are none, refused messages. It decodes the typed header, makes RocketMQ's checks in
its order, and puts the same way.

A batch of more than MAX_BATCH_AT_ONCE messages is encoded in slices, a turn of the loop each,
one such batch at a time; what its connection sends meanwhile waits behind it.

Invariants
1. A frame is put at most once. The hot path leaves for the slow one only before its put.
2. What one connection sends is put in the order in which it came.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime
from typing import Final, NamedTuple

import orjson

from pyromq.base.memo import Memo
from pyromq.broker.handlers.send_back import DEAD_LETTER_QUEUES, retry_limit
from pyromq.broker.inner_messages import InnerMessage, delay_level
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Body, Pool, Route, Routes, SlowPath, fast
from pyromq.broker.services.flow_control import REJECT_REQUEST
from pyromq.broker.state.topics import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION
from pyromq.broker.transaction_messages import half_of, is_transactional
from pyromq.protocol import names
from pyromq.protocol.filter.tags import text_tags_codes
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.message.properties import (
    CLUSTER,
    DELAY,
    MAX_PROPERTIES,
    MSG_REGION,
    TRACE_ON,
    TRAN_MSG,
    WAIT,
    decode_properties,
    encode_properties,
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
from pyromq.protocol.wire.codes import PROTOCOL_VERSION, LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
    pack_prefix,
    split_frames,
)
from pyromq.protocol.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from pyromq.remoting.connection import Connection
from pyromq.store.flush import FlushOutcome
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.results import LargeBatchError, PutError, PutStatus

#: Bits of sysFlag that a plain message does not have.
_SPECIAL_FLAGS: Final = TRANSACTION_MASK | HOST_MASK
#: A batch of more messages would keep the loop for more than some 30 ms.
MAX_BATCH_AT_ONCE: Final = 8192
#: So many of its messages are encoded in one turn.
_BATCH_SLICE: Final = 512
_INT_MIN: Final = -0x80000000
_INT_MAX: Final = 0x7FFFFFFF
#: What makes a message take the slow path.
_HOT_ERRORS: Final = (
    PutError,
    RequestError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    struct.error,
)


SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2

#: Where an answer's template gets its numbers; words that no configuration can hold.
_ID_HOLE: Final = "\ue000id"
_OFFSET_HOLE: Final = "\ue000offset"
_OPAQUE_HOLE: Final = "\ue000opaque"
#: What follows the message id in an answer.
_ID_END: Final = b'","queueId"'


class _Target(NamedTuple):
    """A queue that may be sent to, and its answer with holes for offsets and opaque."""

    queue: ConsumeQueue
    answer: bytes


class _Fields(NamedTuple):
    """The names that a request's header fields have."""

    topic: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    batch: str


_V1: Final = _Fields(
    "topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch"
)
_V2: Final = _Fields("b", "e", "f", "g", "h", "i", "j", "m")


class SendHandlers:
    """Takes messages from producers."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._writer = parts.writer
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._now = parts.clock
        self._announce = parts.announce
        self._cluster_property = f"{CLUSTER}\x01{self._config.broker_cluster_name}".encode()
        self._joined_cluster_property = b"\x02" + self._cluster_property
        self._prefixes: Memo[int, bytes] = Memo(lambda length: pack_prefix(4 + length, length))
        self._targets: dict[str, dict[str, _Target]] = {}
        self._numbers: Memo[str, int] = Memo(lambda text: parse_integer(text, INT64))
        self._tags = text_tags_codes()
        self._batch_properties: Memo[str, bytes] = Memo(self._make_batch_properties)
        self._id_prefix = parts.store_host.hex().upper().encode()
        self._more_ids: Memo[int, bytes] = Memo(
            lambda count: (b"," + self._id_prefix + b"%016X") * count
        )
        #: Held by the large batch that is encoded now, and by what must wait for it.
        self._large_batch = asyncio.Lock()
        #: How many sends of a connection are large batches, or wait behind one.
        self._behind: Counter[Connection] = Counter()
        self._topics.add_listener(self._topic_changed)

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.SEND_MESSAGE,
                self.send_one,
                hot=fast(self.send),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
            Route(
                RequestCode.SEND_MESSAGE_V2,
                self.send_one,
                hot=fast(self.send_v2),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
            Route(
                RequestCode.SEND_BATCH_MESSAGE,
                self.send_one,
                hot=fast(self.send_batch),
                body=Body.MESSAGES,
                pool=Pool.SEND,
            ),
        )

    def send(
        self, slow: SlowPath, connection: Connection, frames: list[RawFrame], answers: list[bytes]
    ) -> None:
        """A run of SEND_MESSAGE."""
        self._send_run(slow, connection, frames, answers, _V1)

    def send_v2(
        self, slow: SlowPath, connection: Connection, frames: list[RawFrame], answers: list[bytes]
    ) -> None:
        """A run of SEND_MESSAGE_V2."""
        self._send_run(slow, connection, frames, answers, _V2)

    def _send_run(
        self,
        slow: SlowPath,
        connection: Connection,
        frames: list[RawFrame],
        answers: list[bytes],
        fields: _Fields,
    ) -> None:
        if self._behind and connection in self._behind:
            for frame in frames:
                slow(connection, frame, answers)
            return
        put = self._store.put
        targets, numbers = self._targets, self._numbers
        by_last_property, find_tags = self._tags.by_last_property, self._tags.find
        cluster, joined_cluster = self._cluster_property, self._joined_cluster_property
        prefixes = self._prefixes
        born_host = connection.born_host
        topic, queue_id, sys_flag_name, born, flag, properties_name, reconsume, batch = fields
        following = iter(frames)
        for frame in following:
            encoding, header, body = frame
            try:
                ext = header["extFields"]
                queue, template = targets[ext[topic]][ext[queue_id]]
                sys_flag = numbers[ext[sys_flag_name]]
                text = ext[properties_name].replace("\x02WAIT\x01true\x02", "\x02")
                # It stands last where there are no tags.
                text = text.removesuffix("\x02WAIT\x01true")
                if (
                    sys_flag & _SPECIAL_FLAGS
                    or not _INT_MIN <= header["opaque"] <= _INT_MAX
                    or "WAIT\x01" in text
                    or "TRAN_MSG\x01" in text
                    or "CLUSTER\x01" in text
                    or ext.get(batch, "false") != "false"
                ):
                    slow(connection, frame, answers)
                    if connection in self._behind:
                        for later in following:
                            slow(connection, later, answers)
                    continue
                times = numbers[ext[reconsume]] if reconsume in ext else 0
                if "DELAY\x01" in text:
                    message = InnerMessage(
                        ext[topic],
                        queue.queue_id,
                        body,
                        self._delayed_properties(ext[properties_name]),
                        numbers[ext[flag]],
                        sys_flag,
                        numbers[ext[born]],
                        born_host,
                        times,
                    )
                    _, offset, physical = self._writer.put(message)
                else:
                    tags_code = by_last_property.get(text.rpartition("\x02")[2])
                    if tags_code is None:
                        tags_code = find_tags(text)
                    offset = queue.next_offset
                    physical = put(
                        queue,
                        body,
                        text.encode(),
                        tags_code,
                        numbers[ext[flag]],
                        sys_flag,
                        numbers[ext[born]],
                        born_host,
                        times,
                        joined_cluster if text and text[-1] != "\x02" else cluster,
                    )
            except _HOT_ERRORS:
                slow(connection, frame, answers)
                continue
            if header.get("flag", 0) & FLAG_ONEWAY:
                continue
            if encoding:
                answer = self._sent(command_from(frame), queue.queue_id, offset, [physical])
                answers.append(answer.encode())
                continue
            answer_header = template % (physical, offset, header["opaque"])
            answers.append(prefixes[len(answer_header)])
            answers.append(answer_header)

    def _delayed_properties(self, text: str) -> dict[str, str]:
        """What a delayed message is put with; ValueError for one that is not delayed."""
        properties = decode_properties(text)
        if delay_level(properties) <= 0:
            raise ValueError("DELAY asks for no delay")
        properties[CLUSTER] = self._config.broker_cluster_name
        return properties

    def send_batch(
        self, slow: SlowPath, connection: Connection, frames: list[RawFrame], answers: list[bytes]
    ) -> None:
        """A run of SEND_BATCH_MESSAGE: each frame holds many messages for one queue."""
        numbers = self._numbers
        for frame in frames:
            encoding, header, body = frame
            try:
                ext = header["extFields"]
                queue, template = self._targets[ext["b"]][ext["e"]]
                sys_flag = numbers[ext["f"]]
                if (
                    encoding
                    or sys_flag & _SPECIAL_FLAGS
                    or not _INT_MIN <= header["opaque"] <= _INT_MAX
                    or ext["m"] != "true"
                    or connection in self._behind
                ):
                    slow(connection, frame, answers)
                    continue
                offset = queue.next_offset
                physicals = self._store.put_batch(
                    queue,
                    body,
                    self._batch_properties[ext["i"]],
                    sys_flag,
                    numbers[ext["g"]],
                    connection.born_host,
                    numbers[ext["j"]] if "j" in ext else 0,
                    MAX_BATCH_AT_ONCE,
                )
            except (PutError, RequestError, *_HOT_ERRORS):
                slow(connection, frame, answers)
                continue
            if header.get("flag", 0) & FLAG_ONEWAY:
                continue
            # The template's hole for one message id gets them all.
            first, *others = physicals
            answer_header = template % (first, offset, header["opaque"])
            if others:
                ids = self._more_ids[len(others)] % tuple(others)
                end = answer_header.index(_ID_END)
                answer_header = answer_header[:end] + ids + answer_header[end:]
            answers.append(self._prefixes[len(answer_header)])
            answers.append(answer_header)

    # The slow path

    def send_one(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Any send request, with every check; the handler behind the hot ones.

        The first message to a topic is answered when the NameServers know the topic, so
        that whoever sent it can consume it.
        """
        if connection in self._behind:
            return self._in_turn(connection, request)
        try:
            return self._send_now(connection, request)
        except LargeBatchError:
            return self._in_turn(connection, request)

    def _in_turn(
        self, connection: Connection, request: RemotingCommand
    ) -> Awaitable[RemotingCommand]:
        """Send a large batch, or what comes behind one of the same connection."""
        self._behind[connection] += 1

        async def send() -> RemotingCommand:
            try:
                async with self._large_batch:
                    try:
                        answer = self._send_now(connection, request)
                    except LargeBatchError:
                        answer = await self._send_in_slices(connection, request)
            finally:
                self._behind[connection] -= 1
                if not self._behind[connection]:
                    del self._behind[connection]
            # Before the loop turns: the end of another's chunk would count this as waited for.
            outcome = await self._writer.stored()
            if not isinstance(answer, RemotingCommand):
                answer = await answer
            if answer.code == ResponseCode.SUCCESS and outcome is not FlushOutcome.FLUSHED:
                answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
            return answer

        return send()

    def _send_now(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Check and put at once. Raises LargeBatchError for a batch that is to be sliced."""
        header = _header_of(request)
        topics_before = self._topics.data_version
        try:
            topic = self.check(connection, header)
            put = self._put_batch if header.batch else self._put_one
            return self._registered(put(connection, request, header, topic), topics_before)
        except LargeBatchError:
            raise
        except (PutError, RequestError) as error:
            return self._refusal(request, error)

    async def _send_in_slices(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Put a large batch, whose messages are encoded in several turns of the loop."""
        header = _header_of(request)
        born_host = connection.born_host
        topics_before = self._topics.data_version
        try:
            topic = self.check(connection, header)
            queue_id = queue_id_of(header, topic)
            encoder = self._store.encode_batch(
                self._store.queue(topic.topic_name, queue_id),
                request.body,
                self._batch_properties[header.properties or ""],
                born_host,
            )
            while encoder.encode(_BATCH_SLICE):  # noqa: ASYNC110 - this is work, not waiting
                await asyncio.sleep(0)
            # Topic and settings may have changed meanwhile.
            topic = self.check(connection, header)
            sys_flag = _batch_flag(header, topic)
            queue = self._store.queue(topic.topic_name, queue_id)
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
            return self._refusal(request, error)

    async def _sent_later(
        self,
        request: RemotingCommand,
        queue_id: int,
        offset: int,
        physicals: list[int],
        topics_before: DataVersion,
    ) -> RemotingCommand:
        """The answer to a large batch, which has megabytes of message ids, in a turn of its own."""
        await asyncio.sleep(0)
        answer = self._registered(self._sent(request, queue_id, offset, physicals), topics_before)
        return answer if isinstance(answer, RemotingCommand) else await answer

    def _registered(
        self, answer: RemotingCommand, topics_before: DataVersion
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Let an answer wait until the NameServers know a topic that was made for it."""
        # Its topic is new, or the dead-letter topic that it went to.
        if self._topics.data_version is topics_before:
            return answer
        pending = self._announce()
        return answer if pending is None else self._when_registered(answer, pending)

    def _refusal(self, request: RemotingCommand, error: PutError | RequestError) -> RemotingCommand:
        refused = self._refused(error) if isinstance(error, PutError) else error
        return request.answer(refused.code, refused.remark, self._answer_fields())

    async def _when_registered(
        self, answer: RemotingCommand, registration: Awaitable[None]
    ) -> RemotingCommand:
        await registration
        return answer

    def check(self, connection: Connection, header: SendHeader) -> TopicConfig:
        """RocketMQ's checks, in its order; the topic, made when it may be. Replies' too."""
        config = self._config
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
        asked_queue_id = queue_id = queue_id_of(header, topic)
        properties = decode_properties(header.properties or "")
        if topic_name.startswith(names.RETRY_TOPIC_PREFIX) and self._is_dead(request, header):
            topic = self._topics.create_for_send_back(
                names.dead_letter_topic(topic_name[len(names.RETRY_TOPIC_PREFIX) :]),
                DEAD_LETTER_QUEUES,
            )
            topic_name, queue_id = topic.topic_name, 0
            properties.pop(DELAY, None)
        if delay_level(properties) <= 0:
            properties.pop(WAIT, None)  # in RocketMQ only delayed messages keep it
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
        if queue.topic == topic.topic_name:
            self._remember(topic, queue)
        elif queue.topic == names.SCHEDULE_TOPIC:
            self._remember(topic, self._store.queue(topic_name, queue_id))
        # As in RocketMQ: the queue that was asked for, the offset where it really is, though
        # that is of another queue when the message waits for its time or is given up.
        return self._sent(request, asked_queue_id, offset, [physical])

    def _put_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
    ) -> RemotingCommand:
        sys_flag = _batch_flag(header, topic)
        properties = self._batch_properties[header.properties or ""]
        if inner_count(request.body, MAX_BATCH_AT_ONCE + 1) > MAX_BATCH_AT_ONCE:
            raise LargeBatchError
        queue_id = queue_id_of(header, topic)
        queue = self._store.queue(topic.topic_name, queue_id)
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
        self._remember(topic, queue)
        return self._sent(request, queue_id, offset, physicals)

    def _is_dead(self, request: RemotingCommand, header: SendHeader) -> bool:
        """Whether a message that is sent to its retry topic was retried often enough."""
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
        """The half of a transactional message; any other as it is.

        RequestError for one that would be stored and that nobody would ever get.
        """
        if not is_transactional(message.properties):
            if not is_consumable(message.sys_flag):
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"sysFlag {header.sys_flag} says that the message is prepared or rolled back "
                    f"as part of a transaction, but its property {TRAN_MSG} is not true",
                )
            return message
        is_delayed = delay_level(message.properties) > 0
        if message.reconsume_times > 0 and (
            is_delayed or header.topic.startswith(names.RETRY_TOPIC_PREFIX)
        ):
            # Clients before 4.6.1 leave the mark on what they send back.
            message.sys_flag &= ~TRANSACTION_MASK
            return message
        if self._config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
            )
        return half_of(message)

    # Answers

    def _sent(
        self, request: RemotingCommand, queue_id: int, offset: int, physicals: list[int]
    ) -> RemotingCommand:
        prefix = self._id_prefix.decode()
        ids = ",".join([f"{prefix}{physical:016X}" for physical in physicals])
        return request.answer(
            ext_fields={
                "msgId": ids,
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                **self._answer_fields(),
            }
        )

    def _answer_fields(self) -> dict[str, str]:
        return {
            MSG_REGION: self._config.region_id,
            TRACE_ON: "true" if self._config.trace_on else "false",
        }

    def _refused(self, error: PutError) -> RequestError:
        status = error.status
        if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            return RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._store.config.max_message_size}B, "
                f"msg properties length limit {MAX_PROPERTIES}B: {error.reason}",
            )
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error.reason}"
            )
        if status is PutStatus.NO_BUFFER:
            return RequestError(ResponseCode.SYSTEM_BUSY, REJECT_REQUEST)
        if status is PutStatus.CREATE_MAPEDFILE_FAILED:
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"create mapped file failed, server is busy or broken: {error.reason}",
            )
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{status.name}: {error.reason}")

    # What is remembered

    def _remember(self, topic: TopicConfig, queue: ConsumeQueue) -> None:
        """Let the next messages to this queue take the hot path."""
        if (
            topic.topic_name.startswith(names.RETRY_TOPIC_PREFIX)
            or topic.topic_filter_type is TopicFilterType.MULTI_TAG
        ):
            return
        self._targets.setdefault(topic.topic_name, {})[str(queue.queue_id)] = _Target(
            queue, self._answer_template(queue.queue_id)
        )

    def settings_changed(self) -> None:
        """Check every queue anew, and answer as the settings say now."""
        self._targets.clear()

    def _topic_changed(self, topic: str) -> None:
        self._targets.pop(topic, None)

    def _answer_template(self, queue_id: int) -> bytes:
        header = {
            "code": 0,
            "extFields": {
                "msgId": _ID_HOLE,
                "queueId": str(queue_id),
                "queueOffset": _OFFSET_HOLE,
                **self._answer_fields(),
            },
            "flag": FLAG_RESPONSE,
            "language": LanguageCode.PYTHON.name,
            "opaque": _OPAQUE_HOLE,
            "serializeTypeCurrentRPC": "JSON",
            "version": PROTOCOL_VERSION,
        }
        template = orjson.dumps(header).replace(b"%", b"%%")
        for hole, form in (
            (_ID_HOLE, self._id_prefix + b"%016X"),
            (_OFFSET_HOLE, b"%d"),
        ):
            template = template.replace(hole.encode(), form)
        return template.replace(b'"' + _OPAQUE_HOLE.encode() + b'"', b"%d")

    def _make_batch_properties(self, text: str) -> bytes:
        """What each message of a batch gets: the batch's own properties and the cluster."""
        properties = decode_properties(text)
        properties[CLUSTER] = self._config.broker_cluster_name
        if delay_level(properties) > 0:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be delayed")
        return encode_properties(properties)


def _header_of(request: RemotingCommand) -> SendHeader:
    if request.code == RequestCode.SEND_MESSAGE:
        return SendMessageRequestHeader.decode(request.ext_fields)
    return SendMessageRequestHeaderV2.decode(request.ext_fields)


def _batch_flag(header: SendHeader, topic: TopicConfig) -> int:
    """The sysFlag of a batch's messages. Raises PutError for one that no batch can have."""
    if header.sys_flag & TRANSACTION_MASK:
        raise PutError(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be transactional")
    sys_flag = header.sys_flag & ~HOST_MASK
    if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
        sys_flag |= MULTI_TAGS
    return sys_flag


def queue_id_of(header: SendHeader, topic: TopicConfig) -> int:
    """The queue that a message is for: any of its topic's, if it names none."""
    if header.queue_id >= 0:
        return header.queue_id
    return random.randrange(max(1, topic.write_queue_nums))  # noqa: S311 - any queue will do


def _local_time(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000)
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return f"{milliseconds} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03d}"


def answers_after_flush(answers: bytes, outcome: FlushOutcome) -> bytes:
    """What a chunk's answers say when its messages could not be flushed in time.

    As in RocketMQ the messages are in the log and will most likely be on the disk: the
    answers keep their fields and get the code FLUSH_DISK_TIMEOUT.
    """
    if outcome is FlushOutcome.FLUSHED:
        return answers
    frames, _, _ = split_frames(answers)
    commands = [command_from(frame) for frame in frames]
    for command in commands:
        if command.code == ResponseCode.SUCCESS and "msgId" in command.ext_fields:
            command.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return b"".join(command.encode() for command in commands)
