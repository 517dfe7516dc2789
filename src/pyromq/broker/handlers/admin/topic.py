"""Admin requests that change topics and consumer groups.

UPDATE_AND_CREATE_TOPIC, DELETE_TOPIC_IN_BROKER, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and
DELETE_SUBSCRIPTIONGROUP. `handlers.admin.tables` returns the whole tables.

Handlers run on the loop.
"""

from __future__ import annotations

import logging

from pyromq.acl import classification as access
from pyromq.broker.config import MAX_QUEUES
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.topic_deletion import TopicDeletion
from pyromq.broker.state.connections import ClientConnection
from pyromq.protocol.names import group_fault, topic_fault
from pyromq.protocol.wire.bodies import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)

logger = logging.getLogger(__name__)

_MAX_PERMISSION = 15


class TopicAdminHandlers:
    """Changes the tables of topics and groups."""

    def __init__(self, parts: BrokerParts, deletion: TopicDeletion) -> None:
        self._stats = parts.stats
        self._config = parts.config
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._offsets = parts.tables.offsets
        self._deletion = deletion
        self._announced = parts.announced
        self._role = parts.role

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(RequestCode.UPDATE_AND_CREATE_TOPIC, access.ADMIN, self.update_topic),
            Route(RequestCode.DELETE_TOPIC_IN_BROKER, access.ADMIN, self.delete_topic),
            Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, access.ADMIN, self.update_group),
            Route(RequestCode.DELETE_SUBSCRIPTIONGROUP, access.ADMIN, self.delete_group),
        )

    async def update_topic(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_AND_CREATE_TOPIC: respond once the NameServers know the topic."""
        self._refuse_on_replica()
        header = CreateTopicRequestHeader.decode(request.ext_fields)
        self._refuse_bad_topic(header.topic)
        config = _topic_config(header)
        logger.info("update of topic %s requested by %s", header.topic, connection.remote_address)
        self._topics.update(config)
        await self._announced()
        return request.answer()

    async def delete_topic(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """DELETE_TOPIC_IN_BROKER: delete a topic and its queues."""
        self._refuse_on_replica()
        header = DeleteTopicRequestHeader.decode(request.ext_fields)
        self._refuse_bad_topic(header.topic)
        logger.info("deletion of topic %s requested by %s", header.topic, connection.remote_address)
        await self._deletion.delete(header.topic)
        if self._config.auto_delete_unused_stats:
            self._stats.topic_deleted(header.topic)
        await self._announced()
        return request.answer()

    async def update_group(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: respond once the group is on disk."""
        self._refuse_on_replica()
        config = SubscriptionGroupConfig.decode(request.body)
        fault = group_fault(config.group_name)
        if fault is None and not (
            0 <= config.retry_queue_nums <= MAX_QUEUES and config.retry_max_times >= -1
        ):
            fault = (
                f"retryQueueNums {config.retry_queue_nums} must be 0 to {MAX_QUEUES}, "
                f"retryMaxTimes {config.retry_max_times} must be -1 or more"
            )
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        logger.info(
            "update of group %s requested by %s", config.group_name, connection.remote_address
        )
        self._groups.update(config)
        await self._groups.file.saved()
        return request.answer()

    async def delete_group(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """DELETE_SUBSCRIPTIONGROUP: delete a group and, on request, its offsets."""
        self._refuse_on_replica()
        header = DeleteSubscriptionGroupRequestHeader.decode(request.ext_fields)
        logger.info(
            "deletion of group %r requested by %s", header.group_name, connection.remote_address
        )
        self._groups.delete(header.group_name)
        if self._config.auto_delete_unused_stats:
            self._stats.group_deleted(header.group_name)
        if header.remove_offset:
            self._offsets.remove_group(header.group_name)
            self._offsets.save_if_changed()
            await self._offsets.file.saved()
        await self._groups.file.saved()
        return request.answer()

    def _refuse_on_replica(self) -> None:
        if self._role.is_replica:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "Can't modify topic or subscription group from slave broker: use its master",
            )

    def _refuse_bad_topic(self, topic: str) -> None:
        fault = topic_fault(topic)
        if fault is None and self._topics.is_system_topic(topic):
            fault = f"topic {topic} is a system topic"
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)


def _topic_config(header: CreateTopicRequestHeader) -> TopicConfig:
    if header.topic_filter_type not in TopicFilterType.__members__:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"topicFilterType {header.topic_filter_type!r} must be one of "
            f"{', '.join(TopicFilterType.__members__)}",
        )
    if not (
        0 <= header.read_queue_nums <= MAX_QUEUES and 0 <= header.write_queue_nums <= MAX_QUEUES
    ):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"readQueueNums {header.read_queue_nums} and writeQueueNums "
            f"{header.write_queue_nums} must be 0 to {MAX_QUEUES}",
        )
    if not 0 <= header.perm <= _MAX_PERMISSION:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"perm {header.perm} is invalid: 2 is write, 4 is read, 6 is both",
        )
    # `order` is omitted, as in RocketMQ: the NameServer's order configuration sets it.
    return TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=TopicFilterType[header.topic_filter_type],
        topic_sys_flag=header.topic_sys_flag or 0,
    )
