"""Requests that move groups' offsets, or ask where they should be.

INVOKE_BROKER_TO_RESET_OFFSET, CLONE_GROUP_OFFSET and QUERY_CORRECTION_OFFSET. A reset is
carried out by the clients of the group: the broker works out the offsets, tells every
member (RESET_CONSUMER_CLIENT_OFFSET), and they commit them.

Better than RocketMQ: cloning without a topic clones all topics of the group, not one
without a name; asking for correction offsets with groups to leave out does not delete the
offsets of those groups; a queue that no group has a valid offset of is left out of that
answer, where RocketMQ fails.

The methods are handlers of `broker.routes` and run on the loop, which others get back after a
few groups or queues; the places of a time are looked for, and offsets of many queues encoded, on
the admin lane.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pyromq.broker.handlers.admin.clients import refuse_old_client
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.names import group_fault
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    MessageQueueForC,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)

logger = logging.getLogger(__name__)

#: The timestamp that stands for the end of a queue.
_TO_THE_END: Final = -1
#: What is answered for a queue where the compared group is behind all others.
_NO_CORRECTION: Final = (1 << 63) - 1
#: Groups or queues that are looked at in one turn of the loop.
_ITEMS_AT_ONCE: Final = 256


class OffsetAdminHandlers:
    """Resets, clones and compares offsets of groups."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._topics = parts.tables.topics
        self._consumers = parts.tables.consumers
        self._offsets = parts.tables.offsets
        self._lane = parts.lanes.admin
        self._groups = parts.tables.groups

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset),
            Route(RequestCode.CLONE_GROUP_OFFSET, self.clone_offsets),
            Route(RequestCode.QUERY_CORRECTION_OFFSET, self.correction_offsets),
        )

    async def reset_offset(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """INVOKE_BROKER_TO_RESET_OFFSET: let a group go on at a time, its members online."""
        header = ResetOffsetRequestHeader.decode(request.ext_fields)
        table = await self._offsets_at(header)
        group = self._consumers.find(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        logger.info(
            "%s resets offsets of group %s in topic %s to the time %d",
            connection.remote_address,
            header.group,
            header.topic,
            header.timestamp,
        )
        plain, as_list = await self._lane.run(lambda: (_plain(table), _as_list(table)))
        fields = ResetOffsetRequestHeader(
            header.topic, header.group, header.timestamp, is_force=False
        ).encode()
        for_c = request.language is LanguageCode.CPP
        for member in group.members.values():
            refuse_old_client(member)
        for member in group.members.values():
            if not member.connection.closed:
                is_c = for_c or member.language is LanguageCode.CPP
                member.connection.send(
                    RemotingCommand(
                        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                        ext_fields=fields,
                        body=as_list if is_c else plain,
                        flag=FLAG_ONEWAY,
                    )
                )
        return request.answer(body=plain)

    async def clone_offsets(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """CLONE_GROUP_OFFSET: one group begins where another one is."""
        header = CloneGroupOffsetRequestHeader.decode(request.ext_fields)
        # Names go into the table's keys and its file: an illegal one would be there for good.
        fault = group_fault(header.dest_group)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        topic = (header.topic or "").strip()
        topics = [topic] if topic else self._offsets.topics_of(header.src_group)
        for number, each in enumerate(topics, 1):
            await _let_others_go(number)
            if self._topics.get(each) is None:
                logger.warning("offsets of topic %s not cloned: there is no such topic", each)
            elif not header.offline and self._is_left_out(header.src_group, each):
                logger.warning(
                    "offsets of topic %s not cloned: group %s does not subscribe to it",
                    each,
                    header.src_group,
                )
            else:
                fault = self._offsets.room_fault(
                    header.dest_group, each, is_known=header.dest_group in self._groups
                )
                if fault is not None:
                    raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
                self._offsets.clone(header.src_group, header.dest_group, each)
        return request.answer()

    async def correction_offsets(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """QUERY_CORRECTION_OFFSET: where the group that is farthest behind is, by queue."""
        header = QueryCorrectionOffsetHeader.decode(request.ext_fields)
        topic = header.topic
        left_out = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        number = 0
        for group in self._offsets.groups_of(topic) - left_out:
            for queue_id, offset in self._offsets.queues(group, topic).items():
                number += 1
                await _let_others_go(number)
                minimum = self._store.min_offset(topic, queue_id)
                if minimum is None or offset >= minimum:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues(header.compare_group, topic).items():
            if queue_id in least and least[queue_id] > offset:
                least[queue_id] = _NO_CORRECTION
        return request.answer(body=QueryCorrectionOffsetBody(least).encode())

    async def _offsets_at(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        """Where the group goes on in each queue."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        reached_in = []
        for queue_id in range(topic.write_queue_nums):
            await _let_others_go(queue_id)
            reached = self._offsets.query(header.group, header.topic, queue_id)
            if reached is None:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            reached_in.append(reached)
        queue_ids = range(len(reached_in))
        found: list[int] = []
        if header.timestamp == _TO_THE_END:
            for queue_id in queue_ids:
                await _let_others_go(queue_id)
                found.append(self._store.max_offset(header.topic, queue_id))
        else:
            searches = []
            for queue_id in queue_ids:
                await _let_others_go(queue_id)
                searches.append(self._store.time_search(header.topic, queue_id, header.timestamp))
            found = await self._lane.run(lambda: [search() for search in searches])
        table = {}
        for queue_id, reached, offset in zip(queue_ids, reached_in, found, strict=True):
            offset = max(0, offset)
            queue = MessageQueue(header.topic, self._config.broker_name, queue_id)
            table[queue] = offset if header.is_force else min(offset, reached)
        return table

    def _is_left_out(self, group: str, topic: str) -> bool:
        """Whether a group is online and does not subscribe to a topic."""
        members = self._consumers.find(group)
        return (
            members is not None
            and bool(members.subscriptions)
            and (topic not in members.subscriptions)
        )


async def _let_others_go(number: int) -> None:
    if number % _ITEMS_AT_ONCE == 0:
        await asyncio.sleep(0)


def _plain(table: dict[MessageQueue, int]) -> bytes:
    return ResetOffsetBody(table).encode()


def _as_list(table: dict[MessageQueue, int]) -> bytes:
    """The offsets as clients in C++ can read them."""
    return ResetOffsetBodyForC(
        [
            MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in table.items()
        ]
    ).encode()
