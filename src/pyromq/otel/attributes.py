"""Attributes of spans, named by OpenTelemetry's semantic conventions for messaging.

The names are written out: the package `opentelemetry-semantic-conventions` has them in a module
that may change with any release. `pyromq.` starts the names that the conventions do not have.

Called by `spans`, on the client's event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from opentelemetry.util.types import AttributeValue

from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.results import SendResult
from pyromq.protocol.message.properties import CORRELATION_ID, KEY_SEPARATOR
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.remoting.address import AddressError, parse_address

Attributes = dict[str, AttributeValue]

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
NAMESPACE: Final = "messaging.rocketmq.namespace"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
PRODUCER_GROUP: Final = "pyromq.producer.group"
QUEUE_OFFSET: Final = "pyromq.message.queue_offset"
RECONSUME_TIMES: Final = "pyromq.message.reconsume_times"
TRANSACTION_STATE: Final = "pyromq.transaction.state"

_ROCKETMQ: Final = "rocketmq"


class OperationType(Enum):
    """The kinds of operations that the conventions know."""

    CREATE = "create"
    SEND = "send"
    RECEIVE = "receive"
    PROCESS = "process"
    SETTLE = "settle"


def of_operation(name: str, kind: OperationType, topic: str, namespace: str) -> Attributes:
    """Return the attributes of every span, which samplers see."""
    found: Attributes = {
        SYSTEM: _ROCKETMQ,
        OPERATION_NAME: name,
        OPERATION_TYPE: kind.value,
        DESTINATION: topic,
    }
    if namespace:
        found[NAMESPACE] = namespace
    return found


def of_message(message: Message | ReceivedMessage, *, is_half: bool = False) -> Attributes:
    """Return what a message tells about itself."""
    found: Attributes = {}
    delay = 0
    if isinstance(message, ReceivedMessage):
        found[BODY_SIZE] = message.body_size
        found[MESSAGE_ID] = message.msg_id
        found[QUEUE_OFFSET] = message.queue_offset
        if message.reconsume_times:
            found[RECONSUME_TIMES] = message.reconsume_times
        correlation_id = message.all_properties.get(CORRELATION_ID)
        if correlation_id:
            found[CONVERSATION_ID] = correlation_id
    else:
        found[BODY_SIZE] = len(message.body)
        delay = message.delay_level
        if delay:
            found[DELAY_LEVEL] = delay
    found[MESSAGE_TYPE] = _type_of(is_half, bool(delay), bool(message.ordering_key))
    keys = message.keys
    if keys:
        found[KEYS] = keys.split(KEY_SEPARATOR) if isinstance(keys, str) else [*keys]
    if message.tags:
        found[TAG] = str(message.tags)
    if message.ordering_key:
        found[MESSAGE_GROUP] = message.ordering_key
    return found


def _type_of(is_half: bool, is_delayed: bool, is_ordered: bool) -> str:
    if is_half:
        return "transaction"
    if is_delayed:
        return "delay"
    return "fifo" if is_ordered else "normal"


def of_consumer(group: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> Attributes:
    """Return the attributes of messages that a group's member got."""
    found: Attributes = {CONSUMER_GROUP: group, PARTITION: str(queue.queue_id)}
    if len(messages) == 1:
        return found | of_message(messages[0])
    return found | {BATCH_COUNT: len(messages)}


def of_results(results: Sequence[SendResult], address: str) -> Attributes:
    """Return where messages were stored."""
    found = of_address(address)
    if results:
        found[PARTITION] = str(results[0].queue.queue_id)
    if len(results) == 1:
        found[MESSAGE_ID] = results[0].msg_id
        found[QUEUE_OFFSET] = results[0].queue_offset
    return found


def of_address(address: str) -> Attributes:
    """Return the attributes of a broker's `host:port`; none if it is not known."""
    try:
        host, port = parse_address(address)
    except AddressError:
        return {}
    return {SERVER_ADDRESS: host, SERVER_PORT: port}
