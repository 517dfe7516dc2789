"""What sends come back with: plain values, named after RocketMQ's."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode


class SendStatus(Enum):
    """How safe a stored message is."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


#: Answers after which a message is stored.
STATUS_BY_CODE = {int(status.value): status for status in SendStatus}


class TransactionState(Enum):
    """How a local transaction ended, under RocketMQ's names."""

    #: Consumers shall get the message.
    COMMIT = "COMMIT_MESSAGE"
    #: Nobody shall get it.
    ROLLBACK = "ROLLBACK_MESSAGE"
    #: Not known yet: the broker asks later.
    UNKNOWN = "UNKNOW"


class SendResult(NamedTuple):
    """Where a message was stored."""

    #: The id that the client gave the message (its property UNIQ_KEY).
    msg_id: str
    #: The id under which its broker finds it.
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    #: Of a half message: by which its broker will ask for the transaction.
    transaction_id: str | None = None
    region_id: str = ""
    #: Whether the broker wants message traces.
    trace_on: bool = True
