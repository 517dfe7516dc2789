"""JSON bodies of RocketMQ's requests, responses and configuration files.

One dataclass per Java class, with the same name. Attributes are snake_case, wire names those of
Java (see `body_codec` for the rules). `X.decode(bytes)` reads, `x.encode()` writes. `parse_json`
and `dump_json` handle JSON that has no class here.

`RegisterBrokerBody` also has a compressed form, which is zlib around these sections, each but the
count with its length in front:

    | bytes | content                                                      |
    | ----- | ------------------------------------------------------------ |
    | 4 + n | data version, JSON                                           |
    | 4     | number of topics                                             |
    | 4 + n | each topic: `name readQueueNums writeQueueNums perm filter`  |
    | 4 + n | filter servers, a JSON array                                 |

Integers are big endian. The form has no room for a topic's sysFlag and order flag: they are lost,
as in Java.

Pure. Used by servers, clients and admin tools.
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
    """The queues of a topic at one broker."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


@dataclass(slots=True)
class BrokerData(Body):
    """The addresses of one broker name by id: 0 is the master, others are replicas."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(default_factory=dict)


@body_class
class TopicRouteData(Body):
    """The route of a topic: its queues and brokers."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


@body_class
class ClusterInfo(Body):
    """All brokers and clusters that a NameServer knows."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, set[str]] = field(default_factory=dict)


@body_class
class TopicList(Body):
    """A list of topic names."""

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
        """Return the version after a change at this time (ms since the epoch)."""
        return DataVersion(timestamp, self.counter + 1)


class TopicFilterType(Enum):
    """Whether messages of a topic have one tag or several."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


@dataclass(slots=True)
class TopicConfig(Body):
    """The configuration of a topic at a broker."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False

    @classmethod
    def from_line(cls, line: str) -> TopicConfig:
        """Parse one line of a compressed registration. Raises `BodyError`."""
        words = line.split(" ")
        if len(words) != 5 or not words[0]:
            raise BodyError(f"topic {shorten(line)} is not five words")
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
        """Return the line for a compressed registration."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm}"
            f" {self.topic_filter_type.name}"
        )

    def line_size(self) -> int:
        """Return the bytes that the topic adds to a registration before compression."""
        return _LENGTH.size + len(self.to_line().encode())


@body_class
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; also the content of config/topics.json."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True)
class SubscriptionGroupConfig(Body):
    """The configuration of a consumer group at a broker."""

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
    """Consumer offsets: `topic@group` -> queue id -> offset."""

    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)


@body_class
class DelayOffsetSerializeWrapper(Body):
    """Progress of the delivery of delayed messages: delay level -> queue offset."""

    offset_table: dict[Int32, Int64] = field(default_factory=dict)


# Broker registration

#: Bytes of a decompressed registration, far above any real table of topics.
MAX_REGISTRATION = 64 * 1024 * 1024

#: Bytes of sections of a registration.
_MAX_DATA_VERSION = 4096
_MAX_FILTER_SERVERS = 1024 * 1024

_LENGTH = struct.Struct(">i")


class RegistrationTooLargeError(BodyError):
    """A registration that exceeds a limit of its reader; the message says which."""


@body_class
class RegisterBrokerBody(Body):
    """The topics that a broker registers with a NameServer."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decode(cls, data: bytes, *, compressed: bool = False) -> Self:
        """Decode a registration. Raises `BodyError`."""
        if not compressed:
            return cls.from_value(parse_json(data, standard_json=True))
        slices = cls.decode_compressed(data, MAX_REGISTRATION)
        while True:
            try:
                next(slices)
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
        """Decode a compressed registration, which may decompress to at most `max_size` bytes.

        Yields after every `slice_topics` topics. Raises `BodyError`.
        """
        sections = _Sections(_inflate(data, max_size))
        data_version = DataVersion.decode(sections.next_section(_MAX_DATA_VERSION))
        count = sections.next_length()
        if count > max_topics:
            raise RegistrationTooLargeError(f"{count} topics, limit {max_topics}")
        topics = {}
        for number in range(count):
            if number % slice_topics == slice_topics - 1:
                yield
            topic = TopicConfig.from_line(_utf8(sections.next_section()))
            topics[topic.topic_name] = topic
        filter_servers = cls.from_value(
            {
                "filterServerList": parse_json(
                    sections.next_section(_MAX_FILTER_SERVERS), standard_json=True
                )
            }
        ).filter_server_list
        return cls(TopicConfigSerializeWrapper(topics, data_version), filter_servers)

    def encode(self, *, standard_json: bool = False, compress: bool = False) -> bytes:
        """Encode a registration."""
        if not compress:
            # `super()` without arguments fails in a dataclass with slots.
            return Body.encode(self, standard_json=standard_json)
        wrapper = self.topic_config_serialize_wrapper
        topics = wrapper.topic_config_table.values()
        sections = [_section(wrapper.data_version.encode()), _LENGTH.pack(len(topics))]
        sections += (_section(topic.to_line().encode()) for topic in topics)
        sections.append(_section(dump_json(self.filter_server_list)))
        return zlib.compress(b"".join(sections), zlib.Z_BEST_COMPRESSION)


def _inflate(data: bytes, max_size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(data, max_size)
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody cannot be decompressed: {error}") from None
    if inflater.unconsumed_tail:
        raise RegistrationTooLargeError(f"decompresses to more than {max_size} bytes")
    return content


class _Sections:
    """Reads the length-prefixed sections of a decompressed registration."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def next_section(self, max_length: int = MAX_REGISTRATION) -> bytes:
        length = self.next_length()
        if length > max_length:
            raise RegistrationTooLargeError(f"section of {length} bytes, limit {max_length}")
        start, self._position = self._position, self._position + length
        if self._position > len(self._content):
            raise BodyError(f"RegisterBrokerBody ends inside a section of {length} bytes")
        return self._content[start : self._position]

    def next_length(self) -> int:
        if self._position + _LENGTH.size > len(self._content):
            raise BodyError(f"RegisterBrokerBody is truncated at byte {len(self._content)}")
        (length,) = _LENGTH.unpack_from(self._content, self._position)
        self._position += _LENGTH.size
        if length < 0:
            raise BodyError(f"RegisterBrokerBody has a section of {length} bytes")
        return int(length)


def _section(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def _utf8(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"RegisterBrokerBody has a topic that is not UTF-8: {error}") from None


# Clients


class ConsumeType(Enum):
    """Whether the application pulls (actively), or the client library does (passively)."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1


class MessageModel(Enum):
    """Whether each message goes to every member of a group, or to one."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(Enum):
    """Where a new group starts to consume."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@body_class
class SubscriptionData(Body):
    """A consumer group's subscription to one topic."""

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
    """The heartbeat that a client sends to each broker every 30 seconds."""

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
    """The client ids of the members of a consumer group."""

    consumer_id_list: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(Body):
    """One queue of a topic at one broker; sorts as in Java."""

    topic: str
    broker_name: str
    queue_id: Int32


#: An extField of LOCK_BATCH_MQ: release the locks when the connection closes. RocketMQ's brokers
#: ignore it.
LOCK_ENDS_WITH_CONNECTION: Final = "endsWithConnection"


@body_class
class LockBatchRequestBody(Body):
    """Queues that a group member wants to lock, to consume them in order."""

    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)


@body_class
class LockBatchResponseBody(Body):
    """Queues that the member locked."""

    lock_ok_mq_set: Annotated[set[MessageQueue], Wire("lockOKMQSet")] = field(default_factory=set)


@body_class
class UnlockBatchRequestBody(Body):
    """Queues that a group member unlocks."""

    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)
