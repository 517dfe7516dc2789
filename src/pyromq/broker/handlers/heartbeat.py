"""Membership of clients: heartbeats, unregistration, lost and silent connections.

HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP. When the members of
a consumer group change, every member is notified (NOTIFY_CONSUMER_IDS_CHANGED), so that the group
rebalances at once instead of at the next interval.

A heartbeat above a limit (`maxGroupsPerHeartbeat`, `maxGroupsPerConnection`,
`maxSubscriptionsPerHeartbeat`) is refused as a whole. If the broker has no room for one of its
groups or retry topics, the rest of the heartbeat counts and the response names the reason. A
replica creates neither: its groups and topics come from its master.

Everything runs on the loop. A large heartbeat is decoded on a lane and registered a few groups at a
time, so that it does not delay other clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.sizes import KIB
from pyromq.broker.config import BrokerConfig
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Body, Pool, Route, Routes
from pyromq.broker.state.connections import (
    Client,
    ClientConnection,
    subscription_bytes,
)
from pyromq.broker.state.filters import compile_expression
from pyromq.broker.state.topics import TOPIC_UNIT_SUBSCRIPTION
from pyromq.protocol.filter.sql import SqlError
from pyromq.protocol.filter.tags import is_tag_type
from pyromq.protocol.names import MAX_GROUP_LENGTH, retry_topic, topic_fault
from pyromq.protocol.wire.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    ProducerData,
    SubscriptionGroupConfig,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)

logger = logging.getLogger(__name__)

#: A heartbeat above this size (about 40 groups) is decoded on a lane.
_LARGE_HEARTBEAT: Final = 16 * KIB
#: Groups of a large heartbeat that are registered per loop iteration.
_MAX_GROUPS_PER_ITERATION: Final = 32
#: Characters of a client id, usually an address and a process id.
MAX_CLIENT_ID_LENGTH: Final = 1024


class HeartbeatHandlers:
    """Registers and drops clients."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._role = parts.role
        self._topics = parts.tables.topics
        self._groups = parts.tables.groups
        self._consumers = parts.tables.consumers
        self._producers = parts.tables.producers
        self._lane = parts.lanes.heartbeat
        self._notices = parts.notices

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.HEART_BEAT,
                access.HEARTBEAT,
                self.heart_beat,
                body=Body.CLIENT_DATA,
                pool=Pool.HEARTBEAT,
            ),
            Route(RequestCode.UNREGISTER_CLIENT, access.GROUP, self.unregister_client),
            Route(RequestCode.CHECK_CLIENT_CONFIG, access.CLIENT_CONFIG, self.check_client_config),
            Route(RequestCode.GET_CONSUMER_LIST_BY_GROUP, access.GROUP, self.consumer_list),
        )

    def heart_beat(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """HEART_BEAT: register all groups of a client."""
        if len(request.body) > _LARGE_HEARTBEAT:
            return self._large_heart_beat(connection, request)
        heartbeat = HeartbeatData.decode(request.body)
        self._refuse_excess(connection, heartbeat)
        client = Client(connection, heartbeat.client_id, request.language, request.version)
        faults = [self._register(member, client) for member in _members(heartbeat)]
        return _answer(request, faults)

    async def _large_heart_beat(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        heartbeat = await self._lane.run(
            lambda: HeartbeatData.decode(request.body), len(request.body)
        )
        self._refuse_excess(connection, heartbeat)
        client = Client(connection, heartbeat.client_id, request.language, request.version)
        faults = []
        for number, member in enumerate(_members(heartbeat), 1):
            if connection.closed:
                # `disconnected` has removed it from its groups; do not add it again.
                break
            faults.append(self._register(member, client))
            if number % _MAX_GROUPS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        return _answer(request, faults)

    def _refuse_excess(self, connection: ClientConnection, heartbeat: HeartbeatData) -> None:
        """Raise RequestError for a heartbeat above the limits."""
        fault = _excess(self._config, heartbeat)
        if fault is None:
            consuming = {member.group_name for member in heartbeat.consumer_data_set}
            producing = {member.group_name for member in heartbeat.producer_data_set}
            count = len(consuming.union(self._consumers.groups_of(connection)))
            count += len(producing.union(self._producers.groups_of(connection)))
            fault = self._groups_fault(count)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)

    def _groups_fault(self, count: int) -> str | None:
        """Return why a connection may not have `count` groups, or None."""
        limit = self._config.max_groups_per_connection
        if count <= limit:
            return None
        return (
            f"with this heartbeat the connection has {count} groups, limit {limit} "
            "(maxGroupsPerConnection)"
        )

    def unregister_client(
        self, connection: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """UNREGISTER_CLIENT: remove a client from a producer group, a consumer group, or both."""
        header = UnregisterClientRequestHeader.decode(request.ext_fields)
        if header.producer_group is not None:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group is not None:
            left = self._consumers.unregister(header.consumer_group, connection)
            if left and self._wants_notice(header.consumer_group):
                self._notify(header.consumer_group)
        return request.answer()

    def check_client_config(
        self,
        connection: ClientConnection,  # noqa: ARG002 - every handler has it
        request: RemotingCommand,
    ) -> RemotingCommand:
        """CHECK_CLIENT_CONFIG: check the subscription of a consumer."""
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
        connection: ClientConnection,  # noqa: ARG002 - every handler has it
        request: RemotingCommand,
    ) -> RemotingCommand:
        """GET_CONSUMER_LIST_BY_GROUP: return the client ids of a group."""
        header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
        group = self._consumers.find(header.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        return request.answer(body=GetConsumerListByGroupResponseBody(group.client_ids()).encode())

    def disconnected(self, connection: ClientConnection) -> None:
        """Remove the client of a lost connection from all its groups."""
        self._producers.disconnect(connection)
        for group in self._consumers.disconnect(connection):
            self._notify(group)

    def expire(self) -> None:
        """Drop clients that have been silent for 120 seconds. Called every 10 seconds."""
        self._producers.expire()
        for group in self._consumers.expire():
            self._notify(group)

    def _register(self, member: ConsumerData | ProducerData, client: Client) -> str | None:
        """Register one group of a heartbeat; return what went wrong, or None."""
        consuming = self._consumers.groups_of(client.connection)
        producing = self._producers.groups_of(client.connection)
        if member.group_name not in (producing if isinstance(member, ProducerData) else consuming):
            # Check again: several heartbeats of one connection may be in flight.
            fault = self._groups_fault(len(consuming) + len(producing) + 1)
            if fault is not None:
                return fault
        if isinstance(member, ProducerData):
            self._producers.register(member.group_name, client)
            return None
        fault = self._memory_fault(member)
        if fault is not None:
            return fault
        try:
            config = self._groups.find(member.group_name, may_create=not self._role.is_replica)
        except RequestError as error:
            return error.remark
        if config is not None and not self._role.is_replica:
            try:
                self._make_retry_topic(member, config)
            except RequestError as error:
                fault = error.remark  # it can consume without one
        changed = self._consumers.register(member, client)
        if changed and (config is None or config.notify_consumer_ids_changed_enable):
            self._notify(member.group_name)
        return fault

    def _memory_fault(self, consumer: ConsumerData) -> str | None:
        """Return why the subscriptions of a group do not fit into memory, or None.

        Subscriptions that do not grow always fit.
        """
        known = self._consumers.find(consumer.group_name)
        growth = subscription_bytes(consumer.subscription_data_set)
        if known is not None:
            growth -= known.size
        total = self._consumers.size + growth
        if growth <= 0 or total <= self._config.max_subscription_bytes:
            return None
        return (
            f"group {consumer.group_name} not registered: with it, all subscriptions take {total} "
            f"bytes, limit {self._config.max_subscription_bytes} (maxSubscriptionBytes)"
        )

    def _make_retry_topic(self, consumer: ConsumerData, config: SubscriptionGroupConfig) -> None:
        topic = retry_topic(consumer.group_name)
        if topic in self._topics or config.retry_queue_nums <= 0:
            # A topic without queues is useless, and would block a later one with queues.
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
        # Not `find`, which would create the group.
        config = self._groups.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _notify(self, group: str) -> None:
        if self._config.notify_consumer_ids_changed_enable:
            self._notices.changed(group)


def _members(heartbeat: HeartbeatData) -> list[ConsumerData | ProducerData]:
    return [*heartbeat.consumer_data_set, *heartbeat.producer_data_set]


def _excess(config: BrokerConfig, heartbeat: HeartbeatData) -> str | None:
    """Return which limit a heartbeat exceeds, or None."""
    members = _members(heartbeat)
    if len(members) > config.max_groups_per_heartbeat:
        return (
            f"the heartbeat names {len(members)} groups, limit "
            f"{config.max_groups_per_heartbeat} (maxGroupsPerHeartbeat)"
        )
    subscriptions = sum(len(each.subscription_data_set) for each in heartbeat.consumer_data_set)
    if subscriptions > config.max_subscriptions_per_heartbeat:
        return (
            f"the heartbeat has {subscriptions} subscriptions, limit "
            f"{config.max_subscriptions_per_heartbeat} (maxSubscriptionsPerHeartbeat)"
        )
    if len(heartbeat.client_id) > MAX_CLIENT_ID_LENGTH:
        return (
            f"the client id has {len(heartbeat.client_id)} characters, limit {MAX_CLIENT_ID_LENGTH}"
        )
    longest = max((len(member.group_name) for member in members), default=0)
    if longest > MAX_GROUP_LENGTH:
        return f"a group name has {longest} characters, limit {MAX_GROUP_LENGTH}"
    return None


def _answer(request: RemotingCommand, faults: list[str | None]) -> RemotingCommand:
    """Return success, or the first fault and the number of others."""
    found = [fault for fault in faults if fault is not None]
    if not found:
        return request.answer()
    more = f" (and {len(found) - 1} other groups)" if len(found) > 1 else ""
    return request.answer(ResponseCode.SYSTEM_ERROR, found[0] + more)
