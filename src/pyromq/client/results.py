"""Results of sends and transactions: plain values under RocketMQ's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from pyromq.client.message import HalfMessage
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import ResponseCode


class SendStatus(Enum):
    """Durability of a stored message. Every status means that the master has stored it."""

    SEND_OK = ResponseCode.SUCCESS
    #: Not fsynced in time, on a broker with SYNC_FLUSH.
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    #: Not replicated in time, on a broker with SYNC_MASTER.
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    #: No replica to replicate to, on a broker with SYNC_MASTER.
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


#: Statuses by the response codes after which a message is stored.
STATUS_BY_CODE = {int(status.value): status for status in SendStatus}


class TransactionState(Enum):
    """The outcome of a local transaction, under RocketMQ's names."""

    #: Deliver the message.
    COMMIT = "COMMIT_MESSAGE"
    #: Drop the message.
    ROLLBACK = "ROLLBACK_MESSAGE"
    #: Not known yet: the broker checks later.
    UNKNOWN = "UNKNOW"


class SendResult(NamedTuple):
    """The position of a stored message."""

    #: The id that the client assigned (property UNIQ_KEY).
    msg_id: str
    #: The id that encodes the message's broker and physical offset.
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    #: The transaction's id in the broker's checks; half messages only.
    transaction_id: str | None = None
    #: The broker's region.
    region_id: str = ""
    #: Whether the broker accepts message traces.
    trace_on: bool = True


class TransactionResult(NamedTuple):
    """The outcome of a transaction."""

    state: TransactionState
    #: The position of the stored half message.
    result: SendResult
    #: The exception that `execute` raised.
    error: Exception | None = None

    @property
    def msg_id(self) -> str:
        """Return the id of the message, which is also the transaction's."""
        return self.result.msg_id


#: Runs the local part of a transaction.
Execute = Callable[[HalfMessage], TransactionState | Awaitable[TransactionState | None] | None]
#: Finds out how a transaction ended.
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState | None] | None]
