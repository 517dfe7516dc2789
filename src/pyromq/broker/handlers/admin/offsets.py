"""Admin requests about offsets of groups: reset, clone, correct.

INVOKE_BROKER_TO_RESET_OFFSET, CLONE_GROUP_OFFSET and QUERY_CORRECTION_OFFSET.
The clients of a group apply a reset: the broker works out the offsets and notifies every member
(RESET_CONSUMER_CLIENT_OFFSET), and the members commit them.

Different from RocketMQ: a clone without a topic clones all topics of the group instead of one
without a name. A request for correction offsets does not delete the offsets of the groups that it
excludes. Its response omits queues for which no group has a valid offset; RocketMQ fails.

Handlers run on the loop and yield after a few groups or queues. The admin lane searches by
timestamp and encodes the offsets of many queues.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pyromq.acl import classification as access
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

#: The timestamp that means the end of a queue.
_TO_THE_END: Final = -1
#: The offset returned for a queue in which the compared group lags behind all others.
_NO_CORRECTION: Final = (1 << 63) - 1
#: Groups or queues per loop iteration.
_MAX_ITEMS_PER_ITERATION: Final = 256


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
            Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, access.ADMIN, self.reset_offset),
            Route(RequestCode.CLONE_GROUP_OFFSET, access.ADMIN, self.clone_offsets),
            Route(RequestCode.QUERY_CORRECTION_OFFSET, access.ADMIN, self.correction_offsets),
        )

    async def reset_offset(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """INVOKE_BROKER_TO_RESET_OFFSET: move a group, whose members are online, to a time."""
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
            "%s resets group %s in topic %s to timestamp %d",
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
        """CLONE_GROUP_OFFSET: copy the offsets of one group to another."""
        header = CloneGroupOffsetRequestHeader.decode(request.ext_fields)
        # The name becomes a key of the table and its file: an illegal one would stay for good.
        fault = group_fault(header.dest_group)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        topic = (header.topic or "").strip()
        topics = [topic] if topic else self._offsets.topics_of(header.src_group)
        for number, each in enumerate(topics, 1):
            await _yield_to_loop(number)
            if self._topics.get(each) is None:
                logger.warning("offsets of topic %s not cloned: no such topic", each)
            elif not header.offline and self._does_not_subscribe(header.src_group, each):
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
        """QUERY_CORRECTION_OFFSET: return the lowest offset of all groups, by queue."""
        header = QueryCorrectionOffsetHeader.decode(request.ext_fields)
        topic = header.topic
        excluded = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        number = 0
        for group in self._offsets.groups_of(topic) - excluded:
            for queue_id, offset in self._offsets.queues(group, topic).items():
                number += 1
                await _yield_to_loop(number)
                minimum = self._store.min_offset(topic, queue_id)
                if minimum is None or offset >= minimum:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues(header.compare_group, topic).items():
            if queue_id in least and least[queue_id] > offset:
                least[queue_id] = _NO_CORRECTION
        return request.answer(body=QueryCorrectionOffsetBody(least).encode())

    async def _offsets_at(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        """Return the offset of each queue at which the group will resume."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        reached_in = []
        for queue_id in range(topic.write_queue_nums):
            await _yield_to_loop(queue_id)
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
                await _yield_to_loop(queue_id)
                found.append(self._store.max_offset(header.topic, queue_id))
        else:
            searches = []
            for queue_id in queue_ids:
                await _yield_to_loop(queue_id)
                searches.append(self._store.time_search(header.topic, queue_id, header.timestamp))
            found = await self._lane.run(lambda: [search() for search in searches])
        table = {}
        for queue_id, reached, offset in zip(queue_ids, reached_in, found, strict=True):
            offset = max(0, offset)
            queue = MessageQueue(header.topic, self._config.broker_name, queue_id)
            table[queue] = offset if header.is_force else min(offset, reached)
        return table

    def _does_not_subscribe(self, group: str, topic: str) -> bool:
        """Return whether a group is online and does not subscribe to a topic."""
        members = self._consumers.find(group)
        return (
            members is not None
            and bool(members.subscriptions)
            and (topic not in members.subscriptions)
        )


async def _yield_to_loop(number: int) -> None:
    if number % _MAX_ITEMS_PER_ITERATION == 0:
        await asyncio.sleep(0)


def _plain(table: dict[MessageQueue, int]) -> bytes:
    return ResetOffsetBody(table).encode()


def _as_list(table: dict[MessageQueue, int]) -> bytes:
    """Encode the offsets for C++ clients."""
    return ResetOffsetBodyForC(
        [
            MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in table.items()
        ]
    ).encode()
