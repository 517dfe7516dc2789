"""Requests by which clients join and leave: heartbeats and what follows from them.

HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP, and the
loss or silence of a connection. When the members of a consumer group change, every
member is told (NOTIFY_CONSUMER_IDS_CHANGED), so that the group shares its queues anew at
once instead of at its next look.

The methods that take a connection and a request are handlers of `broker.routes`; all run
on the event loop. A heartbeat of a client with very many groups is decoded in a lane and
noted a few groups at a time, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.flow_control import Lane
from pyromq.broker.state.connections import (
    Client,
    ClientConnection,
    ConsumerTable,
    ProducerTable,
)
from pyromq.broker.state.filters import compile_expression
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.topics import TOPIC_UNIT_SUBSCRIPTION, TopicTable
from pyromq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionGroupConfig,
)
from pyromq.protocol.codes import RequestCode, ResponseCode
from pyromq.protocol.filter.sql import SqlError
from pyromq.protocol.filter.tags import is_tag_type
from pyromq.protocol.frame import FLAG_ONEWAY, RemotingCommand, RequestError
from pyromq.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from pyromq.protocol.names import retry_topic, topic_fault

logger = logging.getLogger(__name__)

#: A heartbeat above this many bytes (about 40 groups) is not handled in one go.
_LARGE: Final = 16 * 1024
#: So many groups of a large heartbeat are noted in one turn of the loop.
_GROUPS_AT_ONCE: Final = 32


class HeartbeatHandlers:
    """Handlers of clients' comings and goings."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        producers: ProducerTable,
        lane: Lane,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers
        self._lane = lane

    def heart_beat(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """HEART_BEAT: note all groups of a client."""
        if len(request.body) > _LARGE:
            return self._large_heart_beat(connection, request)
        heartbeat = HeartbeatData.decode(request.body)
        client = Client(connection, heartbeat.client_id, request.language, request.version)
        for consumer in heartbeat.consumer_data_set:
            self._register_consumer(consumer, client)
        for producer in heartbeat.producer_data_set:
            self._producers.register(producer.group_name, client)
        return request.answer()

    async def _large_heart_beat(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        heartbeat = await self._lane.run(
            lambda: HeartbeatData.decode(request.body), len(request.body)
        )
        client = Client(connection, heartbeat.client_id, request.language, request.version)
        members: list[ConsumerData | ProducerData] = [
            *heartbeat.consumer_data_set,
            *heartbeat.producer_data_set,
        ]
        for number, member in enumerate(members, 1):
            if connection.closed:
                # It has left all its groups already, and must not come back.
                break
            if isinstance(member, ConsumerData):
                self._register_consumer(member, client)
            else:
                self._producers.register(member.group_name, client)
            if number % _GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return request.answer()

    def unregister_client(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UNREGISTER_CLIENT: a client leaves a producer group, a consumer group, or both."""
        header = UnregisterClientRequestHeader.decode(request.ext_fields)
        if header.producer_group is not None:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group is not None:
            left = self._consumers.unregister(header.consumer_group, connection)
            if left and self._wants_notice(header.consumer_group):
                self._notify_members(header.consumer_group)
        return request.answer()

    def check_client_config(
        self,
        connection: ClientConnection,  # noqa: ARG002 - the signature of handlers
        request: RemotingCommand,
    ) -> RemotingCommand:
        """CHECK_CLIENT_CONFIG: may a consumer subscribe in this way?"""
        subscription = CheckClientRequestBody.decode(request.body).subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return request.answer()
        if not self._config.enable_property_filter:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type}",
            )
        try:
            compile_expression(subscription.expression_type, subscription.sub_string)
        except SqlError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"Invalid MessageSelector. {error}"
            ) from error
        return request.answer()

    def consumer_list(
        self,
        connection: ClientConnection,  # noqa: ARG002 - the signature of handlers
        request: RemotingCommand,
    ) -> RemotingCommand:
        """GET_CONSUMER_LIST_BY_GROUP: the ids of a group's members."""
        header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
        group = self._consumers.find(header.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        return request.answer(body=GetConsumerListByGroupResponseBody(group.client_ids()).encode())

    def disconnected(self, connection: ClientConnection) -> None:
        """A connection is lost: its client has left all its groups."""
        self._producers.disconnect(connection)
        for group in self._consumers.disconnect(connection):
            self._notify_members(group)

    def expire(self) -> None:
        """Drop clients that were silent for 120 seconds; called every 10 seconds."""
        self._producers.expire()
        for group in self._consumers.expire():
            self._notify_members(group)

    def _register_consumer(self, consumer: ConsumerData, client: Client) -> None:
        config = self._groups.find(consumer.group_name)
        if config is not None:
            self._make_retry_topic(consumer, config)
        changed = self._consumers.register(consumer, client)
        if changed and (config is None or config.notify_consumer_ids_changed_enable):
            self._notify_members(consumer.group_name)

    def _make_retry_topic(self, consumer: ConsumerData, config: SubscriptionGroupConfig) -> None:
        topic = retry_topic(consumer.group_name)
        if topic in self._topics or config.retry_queue_nums <= 0:
            # Without queues the topic would be of no use, and in the way of later ones.
            return
        fault = topic_fault(topic)
        if fault is not None:
            logger.warning("group %s has no retry topic: %s", consumer.group_name, fault)
            return
        self._topics.create_for_send_back(
            topic,
            config.retry_queue_nums,
            sys_flag=TOPIC_UNIT_SUBSCRIPTION if consumer.unit_mode else 0,
        )

    def _wants_notice(self, group: str) -> bool:
        # Not `find`: leaving must not create a group.
        config = self._groups.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _notify_members(self, group_name: str) -> None:
        group = self._consumers.find(group_name)
        if group is None or not self._config.notify_consumer_ids_changed_enable:
            return
        notice = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            ext_fields=NotifyConsumerIdsChangedRequestHeader(group_name).encode(),
            flag=FLAG_ONEWAY,
        )
        for connection in list(group.members):
            if not connection.closed:
                connection.send(notice)
