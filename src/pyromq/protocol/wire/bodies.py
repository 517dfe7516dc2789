"""The JSON bodies of RocketMQ's requests, answers and configuration files.

One dataclass per Java class, named as there; attributes are snake_case, wire names exactly
Java's (see `body_codec` for the rules). `X.decode(bytes)` reads, `x.encode()` writes.
`parse_json` and `dump_json` are for JSON without a class here.

`RegisterBrokerBody` also has a compressed form, which is zlib around:

    | bytes | what                                                        |
    | ----- | ----------------------------------------------------------- |
    | 4     | length of the next part, big endian, as before every part    |
    | n     | data version, JSON                                           |
    | 4     | how many topics                                              |
    | 4 + n | each topic: `name readQueueNums writeQueueNums perm filter`  |
    | 4 + n | filter servers, a JSON array                                 |

It has no room for a topic's sysFlag and order flag: they are lost, as in Java.

Pure. Used by servers, clients and admin tools alike.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Final, Self, cast

from pyromq.protocol.java.fastjson import BodyError, dump_json, parse_json
from pyromq.protocol.java.wire_types import INT32, Int32, Int64, Wire, parse_integer, shorten
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.wire.body_codec import Body, body_class

__all__ = [
    "MASTER_ID",
    "Body",
    "BodyError",
    "BrokerData",
    "ClusterInfo",
    "ConsumeFromWhere",
    "ConsumeType",
    "ConsumerData",
    "ConsumerOffsetSerializeWrapper",
    "DataVersion",
    "DelayOffsetSerializeWrapper",
    "GetConsumerListByGroupResponseBody",
    "HeartbeatData",
    "KVTable",
    "LockBatchRequestBody",
    "LockBatchResponseBody",
    "MessageModel",
    "MessageQueue",
    "ProducerData",
    "QueueData",
    "RegisterBrokerBody",
    "RegistrationTooLargeError",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupWrapper",
    "TopicConfig",
    "TopicConfigSerializeWrapper",
    "TopicFilterType",
    "TopicList",
    "TopicRouteData",
    "UnlockBatchRequestBody",
    "dump_json",
    "parse_json",
]

MASTER_ID = 0


# Routes


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """The queues that one broker has for a topic."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


@dataclass(slots=True)
class BrokerData(Body):
    """The addresses of one broker name: the master's under id 0, replicas' above."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(default_factory=dict)


@body_class
class TopicRouteData(Body):
    """Where a topic lives."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


@body_class
class ClusterInfo(Body):
    """Every broker and cluster that a NameServer knows."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)


@body_class
class TopicList(Body):
    """Names of topics."""

    topic_list: set[str] = field(default_factory=set)
    broker_addr: str | None = None


@body_class
class KVTable(Body):
    """A flat table of strings."""

    table: dict[str, str] = field(default_factory=dict)


# Configuration tables


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """The version of a table: equal versions mean equal tables."""

    timestamp: Int64 = 0
    counter: Int64 = 0

    def next(self, timestamp: int) -> DataVersion:
        """The version after a change made at this time (milliseconds)."""
        return DataVersion(timestamp, self.counter + 1)


class TopicFilterType(Enum):
    """How many tags a message of a topic may have."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


@dataclass(slots=True)
class TopicConfig(Body):
    """A topic as its broker keeps it."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False

    @classmethod
    def from_line(cls, line: str) -> TopicConfig:
        """The topic of one line of a compressed registration. Raises `BodyError`."""
        words = line.split(" ")
        if len(words) != 5 or not words[0]:
            raise BodyError(f"topic {shorten(line)} has not the five words of a topic config")
        try:
            read_queue_nums, write_queue_nums, perm = (
                parse_integer(word, INT32) for word in words[1:4]
            )
            return cls(words[0], read_queue_nums, write_queue_nums, perm, TopicFilterType[words[4]])
        except KeyError:
            raise BodyError(f"topic {shorten(line)}: unknown topic filter type") from None
        except ValueError as error:
            raise BodyError(f"topic {shorten(line)}: {error}") from None

    def to_line(self) -> str:
        """The topic as one line of a compressed registration."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm}"
            f" {self.topic_filter_type.name}"
        )

    def line_size(self) -> int:
        """Bytes of the topic in a registration before that is compressed."""
        return _LENGTH.size + len(self.to_line().encode())


@body_class
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; also the content of config/topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class SubscriptionGroupConfig(Body):
    """A consumer group as its broker keeps it."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = MASTER_ID
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True


@body_class
class SubscriptionGroupWrapper(Body):
    """All consumer groups of a broker; also the content of config/subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@body_class
class ConsumerOffsetSerializeWrapper(Body):
    """Consumers' offsets: `topic@group` -> queue id -> offset."""

    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)


@body_class
class DelayOffsetSerializeWrapper(Body):
    """How far delayed messages are delivered: delay level -> queue offset."""

    offset_table: dict[Int32, Int64] = field(default_factory=dict)


# Registration of a broker

#: What a compressed registration may grow to: far above any real table of topics.
MAX_REGISTRATION = 64 * 1024 * 1024

#: Bytes of the parts of one, beside its topics.
_MAX_DATA_VERSION = 4096
_MAX_FILTER_SERVERS = 1024 * 1024

_LENGTH = struct.Struct(">i")


class RegistrationTooLargeError(BodyError):
    """A registration above what its reader allows; says by how much."""


@body_class
class RegisterBrokerBody(Body):
    """What a broker tells a NameServer about its topics."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decode(cls, data: bytes, *, compressed: bool = False) -> Self:
        """The registration in this body. Raises `BodyError`."""
        if not compressed:
            return cls.from_value(parse_json(data, standard_json=True))
        steps = cls.decode_compressed(data, MAX_REGISTRATION)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(Self, end.value)

    @classmethod
    def decode_compressed(
        cls,
        data: bytes,
        max_size: int,
        max_topics: int = sys.maxsize,
        slice_topics: int = sys.maxsize,
    ) -> Generator[None, None, Self]:
        """The registration in a compressed body, which may be at most so large without its
        compression; yields after each `slice_topics` topics. Raises `BodyError`.
        """
        parts = _Parts(_inflate(data, max_size))
        data_version = DataVersion.decode(parts.next_part(_MAX_DATA_VERSION))
        count = parts.next_length()
        if count > max_topics:
            raise RegistrationTooLargeError(f"{count} topics, limit {max_topics}")
        topics = {}
        for number in range(count):
            if number % slice_topics == slice_topics - 1:
                yield
            topic = TopicConfig.from_line(_utf8(parts.next_part()))
            topics[topic.topic_name] = topic
        filter_servers = cls.from_value(
            {
                "filterServerList": parse_json(
                    parts.next_part(_MAX_FILTER_SERVERS), standard_json=True
                )
            }
        ).filter_server_list
        return cls(TopicConfigSerializeWrapper(topics, data_version), filter_servers)

    def encode(self, *, standard_json: bool = False, compress: bool = False) -> bytes:
        """The body of a registration request."""
        if not compress:
            # Spelled out: `super()` without arguments fails in a dataclass with slots.
            return Body.encode(self, standard_json=standard_json)
        wrapper = self.topic_config_serialize_wrapper
        pieces = [_part(wrapper.data_version.encode())]
        pieces.append(_LENGTH.pack(len(wrapper.topic_config_table)))
        pieces += (_part(topic.to_line().encode()) for topic in wrapper.topic_config_table.values())
        pieces.append(_part(dump_json(self.filter_server_list)))
        return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)


def _inflate(data: bytes, max_size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(data, max_size)
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody cannot be decompressed: {error}") from None
    if inflater.unconsumed_tail:
        raise RegistrationTooLargeError(f"decompresses to more than {max_size} bytes")
    return content


class _Parts:
    """The length-prefixed parts of a decompressed registration, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def next_part(self, max_length: int = MAX_REGISTRATION) -> bytes:
        length = self.next_length()
        if length > max_length:
            raise RegistrationTooLargeError(f"a part of {length} bytes, limit {max_length}")
        start, self._position = self._position, self._position + length
        if self._position > len(self._content):
            raise BodyError(f"RegisterBrokerBody ends within a part of {length} bytes")
        return self._content[start : self._position]

    def next_length(self) -> int:
        if self._position + _LENGTH.size > len(self._content):
            raise BodyError(f"RegisterBrokerBody ends at byte {len(self._content)}, too early")
        (length,) = _LENGTH.unpack_from(self._content, self._position)
        self._position += _LENGTH.size
        if length < 0:
            raise BodyError(f"RegisterBrokerBody has a part of {length} bytes")
        return int(length)


def _part(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def _utf8(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"RegisterBrokerBody has a topic that is not UTF-8: {error}") from None


# Clients


class ConsumeType(Enum):
    """Who drives the pulls of a consumer: the application, or its client library."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1


class MessageModel(Enum):
    """Whether each message goes to every member of a group or to one."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(Enum):
    """Where a new group begins to read."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@body_class
class SubscriptionData(Body):
    """What a consumer group wants of one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: set[str] = field(default_factory=set)
    code_set: set[Int32] = field(default_factory=set)
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@body_class
class ProducerData(Body):
    """A producer group in a client's heartbeat."""

    group_name: str


@body_class
class ConsumerData(Body):
    """A consumer group in a client's heartbeat."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@body_class
class HeartbeatData(Body):
    """What a client tells each broker every 30 seconds."""

    client_id: Annotated[str, Wire("clientID")]
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)


@body_class
class CheckClientRequestBody(Body):
    """CHECK_CLIENT_CONFIG: the subscription that a consumer is about to use."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None


@body_class
class GetConsumerListByGroupResponseBody(Body):
    """The client ids of a consumer group's members."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(Body):
    """One queue of a topic at one broker; ordered as Java orders it."""

    topic: str
    broker_name: str
    queue_id: Int32


#: A field in the header of LOCK_BATCH_MQ: the locks are to end with their connection. Brokers of
#: RocketMQ ignore it.
LOCK_ENDS_WITH_CONNECTION: Final = "endsWithConnection"


@body_class
class LockBatchRequestBody(Body):
    """Queues that a member of a group wants for itself, to consume in order."""

    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)


@body_class
class LockBatchResponseBody(Body):
    """Queues that the member got."""

    lock_ok_mq_set: Annotated[set[MessageQueue], Wire("lockOKMQSet")] = field(default_factory=set)


@body_class
class UnlockBatchRequestBody(Body):
    """Queues that a member of a group gives back."""

    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)
