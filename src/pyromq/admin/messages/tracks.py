"""Finds out who consumed a message: by the groups' offsets (tracks), and by traces.

A track is derived from the offset of each group that consumes the topic. Traces are messages of
their own, which clients send if their traces are on. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pyromq.admin.errors import AdminError, UnknownGroupError
from pyromq.admin.groups.connections import Connections, ConsumerConnections
from pyromq.admin.groups.groups import Groups
from pyromq.admin.message_view import MessageView
from pyromq.admin.session import AdminSession
from pyromq.protocol.message.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    TransactionEnded,
    decode_trace,
)
from pyromq.protocol.wire.bodies import ConsumeType
from pyromq.protocol.wire.bodies_admin import GroupList
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers_admin import QueryTopicConsumeByWhoRequestHeader


class TrackType(Enum):
    """What became of a message in a group, under RocketMQ's names."""

    CONSUMED = 0
    CONSUMED_BUT_FILTERED = 1
    #: The group pulls: its offsets do not tell.
    PULL = 2
    NOT_CONSUME_YET = 3
    NOT_ONLINE = 4
    UNKNOWN = 5


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What became of a message in one group."""

    group: str
    type: TrackType
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One traced event of a message."""

    #: Pub, SubBefore, SubAfter or EndTransaction.
    type: str
    group: str
    client_host: str
    #: Milliseconds since the epoch; 0 if an old client did not report it.
    timestamp: int
    cost_ms: int
    succeeded: bool
    topic: str = ""
    #: Earlier deliveries that failed; of SubBefore.
    retries: int = 0
    #: Of EndTransaction.
    state: str = ""


async def track(session: AdminSession, message: MessageView) -> list[MessageTrack]:
    """Return the track of a message in each group that consumes its topic."""
    masters = await session.masters_of_topic(message.topic)
    header = QueryTopicConsumeByWhoRequestHeader(message.topic)
    answers = await session.on_each(
        f"reading the groups of topic {message.topic!r}",
        masters.values(),
        lambda address: session.fetch(
            GroupList, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header
        ),
    )
    names = {address: name for name, address in masters.items()}
    broker_name = message.broker_name or names.get(message.store_host, "")
    groups = sorted({group for answer in answers.values() for group in answer.group_list})
    return [await _track(session, message, broker_name, group) for group in groups]


async def _track(
    session: AdminSession, message: MessageView, broker_name: str, group: str
) -> MessageTrack:
    try:
        found = await Connections(session).find_consumers(group)
        if found is None:
            problem = f"CODE:206 DESC:the consumer group[{group}] not online"
            return MessageTrack(group, TrackType.NOT_ONLINE, problem)
        if found.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return MessageTrack(group, TrackType.PULL)
        progress = await Groups(session).progress(group, message.topic)
    except UnknownGroupError:
        return MessageTrack(group, TrackType.NOT_CONSUME_YET)
    except AdminError as error:
        return MessageTrack(group, TrackType.UNKNOWN, str(error))
    reached = any(
        each.queue.broker_name == broker_name
        and each.queue.queue_id == message.queue_id
        and each.consumer_offset > message.queue_offset
        for each in progress.queues
    )
    if not reached:
        return MessageTrack(group, TrackType.NOT_CONSUME_YET)
    if _is_filtered(found, message):
        return MessageTrack(group, TrackType.CONSUMED_BUT_FILTERED)
    return MessageTrack(group, TrackType.CONSUMED)


def _is_filtered(found: ConsumerConnections, message: MessageView) -> bool:
    subscription = found.subscription(message.topic)
    return (
        subscription is not None
        and bool(subscription.tags)
        and message.tags not in subscription.tags
        and "*" not in subscription.tags
    )


def events(msg_id: str, messages: Iterable[MessageView]) -> list[TraceEvent]:
    """Return the events of a message in trace messages, in their order."""
    found = []
    for message in messages:
        host = message.born_host.rpartition(":")[0]
        for record in decode_trace(message.body):
            if record.msg_id != msg_id:
                continue
            match record:
                case Published():
                    found.append(
                        TraceEvent(
                            "Pub",
                            record.group,
                            host,
                            record.time,
                            record.cost,
                            record.success,
                            record.topic,
                        )
                    )
                case ConsumeBegun():
                    found.append(
                        TraceEvent(
                            "SubBefore",
                            record.group,
                            host,
                            record.time,
                            0,
                            succeeded=True,
                            retries=record.retries,
                        )
                    )
                case ConsumeEnded():
                    found.append(
                        TraceEvent(
                            "SubAfter",
                            record.group,
                            host,
                            record.time,
                            record.cost,
                            record.success,
                        )
                    )
                case TransactionEnded():
                    found.append(
                        TraceEvent(
                            "EndTransaction",
                            record.group,
                            host,
                            record.time,
                            0,
                            succeeded=True,
                            topic=record.topic,
                            state=record.state,
                        )
                    )
    return found
