"""Find the offset at which a group starts on a queue that it has never consumed.

    StartFrom.FIRST             the oldest message
    StartFrom.LAST              messages sent from now on
    datetime(2026, 11, 1, ...)  messages stored at that time or later; brokers round to the
                                nearest message, which may be an earlier one

As with Java's clients, brokers have the last word: for a group without an offset they return 0 if
the queue still has its first message in memory. The group then starts with that message,
whatever was configured. Consumers that store their own offsets (broadcasting, readers without a
group) do not query the broker.

Used by the push and the lite pull consumer, on their event loop.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.errors import OptionError
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import ConsumeFromWhere, MessageQueue


class StartFrom(Enum):
    """An end of a queue: its oldest message, or messages sent from now on."""

    FIRST = "first"
    LAST = "last"


#: An end, or a time; a time without a time zone is local.
Start = StartFrom | datetime


def check_start(start: object) -> None:
    """Raise OptionError unless `start` is an end of a queue or a time."""
    if not isinstance(start, Start):
        raise OptionError(
            f"start_from={start!r}: expected StartFrom.FIRST, StartFrom.LAST or a datetime"
        )


_ON_THE_WIRE = {
    StartFrom.FIRST: ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    StartFrom.LAST: ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


async def first_offset(access: QueueAccess, queue: MessageQueue, start: Start) -> int:
    """Return the offset at which a group without one starts. Raises ClientError, RemotingError.

    A retry topic always starts with its oldest message: its messages belong to the group already.
    """
    if start is StartFrom.FIRST or queue.topic.startswith(RETRY_TOPIC_PREFIX):
        return max(0, await access.min_offset(queue))
    if isinstance(start, datetime):
        return max(0, await access.offset_by_time(queue, int(start.timestamp() * 1000)))
    return await access.max_offset(queue)


def consume_from_where(start: Start) -> ConsumeFromWhere:
    """Return the form for heartbeats."""
    if isinstance(start, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return _ON_THE_WIRE[start]
