"""Where a group begins on a queue of which it has consumed nothing yet.

    StartFrom.FIRST             with the oldest message that is still there
    StartFrom.LAST              with what is sent from now on
    datetime(2026, 11, 1, ...)  with what was stored at that time or later; brokers round to
                                the nearest message, which may be an earlier one

As with Java's clients, brokers have the last word: to a group without an offset they say 0 for
a queue whose first message they still have at hand (nothing of it was deleted, and all of it
is in memory). Then the group begins with the first message, whatever was asked for. Those who
keep their offsets themselves (broadcasting, readers without a group) ask no broker.

Used by every consumer, on its event loop.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.errors import OptionError
from pyromq.protocol.names import RETRY_TOPIC_PREFIX
from pyromq.protocol.wire.bodies import ConsumeFromWhere, MessageQueue


class StartFrom(Enum):
    """One of the ends of a queue."""

    FIRST = "first"
    LAST = "last"


#: An end, or a time (without a time zone: local).
Start = StartFrom | datetime


def check_start(start: object) -> None:
    """Raise OptionError for what is neither an end nor a time."""
    if not isinstance(start, Start):
        raise OptionError(f"start_from={start!r}: StartFrom.FIRST, StartFrom.LAST or a datetime")


_ON_THE_WIRE = {
    StartFrom.FIRST: ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    StartFrom.LAST: ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


async def first_offset(access: QueueAccess, queue: MessageQueue, start: Start) -> int:
    """The offset at which a newcomer begins; raises what asking a broker raises.

    Messages that wait to be consumed again belong to the group already: of a retry topic,
    none is left out.
    """
    if start is StartFrom.FIRST or queue.topic.startswith(RETRY_TOPIC_PREFIX):
        return max(0, await access.min_offset(queue))
    if isinstance(start, datetime):
        return max(0, await access.offset_by_time(queue, int(start.timestamp() * 1000)))
    return await access.max_offset(queue)


def consume_from_where(start: Start) -> ConsumeFromWhere:
    """What a heartbeat says of it."""
    if isinstance(start, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return _ON_THE_WIRE[start]
