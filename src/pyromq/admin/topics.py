"""Topics: list and examine them, create, change and delete them.

Changes go to masters; replicas copy them. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyromq.admin.cluster import BrokerGroup
from pyromq.admin.configuration import Configurations
from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    PartialFailureError,
    UnknownBrokerError,
)
from pyromq.admin.session import Area, Progress, masters_of, read_body
from pyromq.client.consumer.rebalance import allocate_averagely
from pyromq.client.session.routes import TopicRoute as QueueRoute
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.names import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    topic_fault,
)
from pyromq.protocol.wire.bodies import (
    MASTER_ID,
    MessageQueue,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
    TopicList,
)
from pyromq.protocol.wire.bodies_admin import GroupList, TopicStatsTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from pyromq.protocol.wire.headers_admin import (
    DeleteTopicFromNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

#: Between looks at the route of a new topic.
_POLL_SECONDS: Final = 0.05
#: Bits of a topic's system flag.
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The offsets of one queue."""

    queue: MessageQueue
    #: The offset of the oldest message.
    min_offset: int
    #: The offset that the next message will get.
    max_offset: int
    #: When the last message was stored, in milliseconds since the epoch; 0 if there is none.
    last_updated: int


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues of a topic at one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    #: 2 is write, 4 is read, 6 is both.
    permission: int
    system_flag: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic, as a NameServer returns them to clients."""

    topic: str
    brokers: tuple[BrokerGroup, ...]
    queues: tuple[TopicQueues, ...]
    #: `broker:queues;broker:queues` for a topic with strict order.
    order_configuration: str | None = None


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic with its cluster and the groups that consume it."""

    topic: str
    #: Empty if no broker serves the topic now.
    cluster: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicConfiguration:
    """The configuration of a topic at a broker; the defaults are mqadmin's."""

    topic: str
    read_queues: int = 8
    write_queues: int = 8
    #: 2 is write, 4 is read, 6 is both.
    permission: int = PERM_READ | PERM_WRITE
    #: Whether messages keep their order even while brokers are down.
    order: bool = False
    #: Whether the topic is one of several units of a data centre.
    unit: bool = False
    #: Whether other units subscribe to it.
    unit_subscription: bool = False
    filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG

    @property
    def system_flag(self) -> int:
        """Return the two unit flags as RocketMQ stores them."""
        return self.unit * _UNIT | self.unit_subscription * _UNIT_SUBSCRIPTION


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A change of a topic's configuration: where it was applied."""

    configuration: TopicConfiguration
    #: Addresses of the masters.
    brokers: tuple[str, ...]
    #: The topic's order configuration at the NameServers, if the change wrote it.
    order_configuration: str | None = None


@dataclass(frozen=True, slots=True)
class PermissionChange:
    """A change of a topic's permission at one broker."""

    broker: str
    before: int
    configuration: TopicConfiguration

    @property
    def after(self) -> int:
        """Return the new permission."""
        return self.configuration.permission


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The deletion of a topic: where it was deleted."""

    topic: str
    cluster: str
    brokers: tuple[str, ...]
    name_servers: tuple[str, ...]


class Topics(Area):
    """Topics of the cluster."""

    # Lists

    async def names(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, or of a cluster's, sorted.

        System topics, retry topics and dead-letter topics are included.
        """
        if cluster is None:
            return sorted(await self._session.topic_names())
        await self._session.brokers_of_cluster(cluster)  # raises for an unknown one
        address, answer = await self._session.ask_name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster)
        )
        return sorted(read_body(TopicList, address, answer).topic_list)

    async def overview(self, on_progress: Progress | None = None) -> list[TopicOverview]:
        """Return all topics but retry and dead-letter ones, with their clusters and groups."""
        info = await self._session.cluster_info()

        async def look(topic: str) -> TopicOverview:
            cluster, groups = "", list[str]()
            try:
                route = await self._session.route(topic)
                first = route.broker_datas[0].broker_name if route.broker_datas else ""
                cluster = next(
                    (name for name, brokers in info.cluster_addr_table.items() if first in brokers),
                    "",
                )
                groups = await self.groups_at(topic, masters_of(route).values())
            except AdminError:
                pass  # listed all the same, as by mqadmin: its broker may be down
            return TopicOverview(topic, cluster, tuple(groups))

        prefixes = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
        names = [name for name in await self.names() if not name.startswith(prefixes)]
        return await self._session.for_all(names, look, on_progress)

    # One topic

    async def route(self, topic: str) -> TopicRoute:
        """Return a topic's brokers and queues; raises UnknownTopicError."""
        route = await self._session.route(topic)
        return TopicRoute(
            topic,
            tuple(
                BrokerGroup(each.cluster, each.broker_name, dict(sorted(each.broker_addrs.items())))
                for each in sorted(route.broker_datas, key=lambda data: data.broker_name)
            ),
            tuple(
                TopicQueues(
                    each.broker_name,
                    each.read_queue_nums,
                    each.write_queue_nums,
                    each.perm,
                    each.topic_sys_flag,
                )
                for each in sorted(route.queue_datas, key=lambda data: data.broker_name)
            ),
            route.order_topic_conf or None,
        )

    async def status(self, topic: str) -> list[QueueStatus]:
        """Return the offsets of a topic's queues, sorted by broker and queue.

        If some brokers fail, the error's `results` have the queues of the others.
        """
        masters = await self._session.masters_of_topic(topic)
        header = GetTopicStatsInfoRequestHeader(topic)
        what = f"reading the offsets of topic {topic!r}"
        try:
            tables = await self._session.on_each(
                what,
                masters.values(),
                lambda address: self._session.fetch(
                    TopicStatsTable, address, RequestCode.GET_TOPIC_STATS_INFO, header
                ),
            )
        except PartialFailureError as error:
            known = _queue_statuses(error.results)
            raise PartialFailureError(what, error.done, error.failures, known) from error
        found = _queue_statuses(tables.values())
        if not found:
            raise NotFoundError(f"topic {topic!r} has no queues at present")
        return found

    async def clusters(self, topic: str) -> list[str]:
        """Return the clusters that serve a topic."""
        info, route = await asyncio.gather(self._session.cluster_info(), self._session.route(topic))
        serving = {each.broker_name for each in route.broker_datas}
        return sorted(
            name for name, brokers in info.cluster_addr_table.items() if serving & brokers
        )

    async def groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have consumed it, at any of its brokers."""
        masters = await self._session.masters_of_topic(topic)
        return await self.groups_at(topic, masters.values())

    async def groups_at(self, topic: str, brokers: Iterable[str]) -> list[str]:
        """Return the groups that consume a topic or have consumed it, at these addresses."""
        header = QueryTopicConsumeByWhoRequestHeader(topic)
        lists = await self._session.on_each(
            f"reading the groups of topic {topic!r}",
            brokers,
            lambda address: self._session.fetch(
                GroupList, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header
            ),
        )
        return sorted({group for each in lists.values() for group in each.group_list})

    async def configuration(self, topic: str, broker: str) -> TopicConfiguration:
        """Return a topic's configuration at the broker at an address."""
        table = await self._table(broker)
        if topic not in table:
            raise NotFoundError(f"topic {topic!r} does not exist at {broker}")
        return _configuration(table[topic])

    async def configurations(self, broker: str) -> list[TopicConfiguration]:
        """Return the configurations of all topics at the broker at an address."""
        table = await self._table(broker)
        return [_configuration(table[topic]) for topic in sorted(table)]

    async def allocate(self, topic: str, clients: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return which queues each client would get by the default strategy."""
        route = await self._session.route(topic)
        queues = QueueRoute.from_body(topic, route).read_queues
        # The strategy sorts its members, mqadmin keeps them in the order given.
        members = {f"{index:09}": client for index, client in enumerate(clients)}
        return {
            client: allocate_averagely(queues, list(members), member)
            for member, client in members.items()
        }

    # Changes

    async def update(
        self,
        configuration: TopicConfiguration,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> TopicChange:
        """Create or change a topic at the broker at an address, or at a cluster's masters.

        With `order`, the order configuration at the NameServers is written as well: for a broker
        its part, for a cluster the whole. Returns when the NameServers know the brokers of the
        topic, so that it can be used at once, or after the time limit of a request.
        """
        fault = topic_fault(configuration.topic)
        if fault is not None:
            raise AdminError(f"{fault}: {configuration.topic!r}")
        addresses = await self._session.targets(broker, cluster)
        await self._put(configuration, addresses)
        order = None
        if configuration.order:
            orders = Configurations(self._session)
            count = configuration.write_queues
            if broker is not None:
                name = await self._name_of(broker)
                order = await orders.add_order(configuration.topic, name, count)
            else:
                assert cluster is not None
                names = await self._session.brokers_of_cluster(cluster)
                order = ";".join(f"{name}:{count}" for name in names)
                await orders.put_order(configuration.topic, order)
        await self._await_route(configuration.topic, addresses)
        return TopicChange(configuration, tuple(addresses), order)

    async def set_permission(
        self,
        topic: str,
        permission: int,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[PermissionChange]:
        """Change a topic's permission at the brokers that serve it.

        Queues and flags of each broker stay as they are. A broker that has the permission already
        is not asked.
        """
        route = await self.route(topic)
        by_address = {
            each.addresses[MASTER_ID]: each.broker_name
            for each in route.brokers
            if MASTER_ID in each.addresses
        }
        if broker is not None and cluster is None and broker not in by_address:
            raise UnknownBrokerError(broker, by_address)
        addresses = await self._session.targets(broker, cluster)

        async def change(address: str) -> PermissionChange | None:
            table = await self._table(address)
            if topic not in table:
                return None  # this broker does not serve the topic
            before = table[topic].perm
            after = _configuration(table[topic], permission)
            if before != permission:
                await self._put(after, [address])
            return PermissionChange(address, before, after)

        changes = await self._session.on_each(
            f"changing the permission of topic {topic!r}", addresses, change
        )
        return [each for each in changes.values() if each is not None]

    async def delete(self, topic: str, cluster: str) -> TopicDeletion:
        """Delete a topic and its messages from a cluster, and its route from the NameServers."""
        if topic not in await self._session.topic_names():
            raise await self._session.unknown_topic(topic)
        masters = await self._session.masters_of_cluster(cluster)
        header = DeleteTopicRequestHeader(topic=topic)
        await self._session.on_each(
            f"deleting topic {topic!r}",
            masters,
            lambda address: self._session.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header),
        )
        await self._session.ask_every_name_server(
            f"deleting the route of topic {topic!r}",
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            DeleteTopicFromNamesrvRequestHeader(topic, cluster),
        )
        return TopicDeletion(topic, cluster, tuple(masters), self._session.name_servers)

    # Helpers, in call order

    async def _table(self, address: str) -> dict[str, TopicConfig]:
        wrapper = await self._session.fetch(
            TopicConfigSerializeWrapper, address, RequestCode.GET_ALL_TOPIC_CONFIG
        )
        return wrapper.topic_config_table

    async def _put(self, configuration: TopicConfiguration, addresses: Sequence[str]) -> None:
        header = CreateTopicRequestHeader(
            topic=configuration.topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=configuration.read_queues,
            write_queue_nums=configuration.write_queues,
            perm=configuration.permission,
            topic_filter_type=configuration.filter_type.name,
            topic_sys_flag=configuration.system_flag,
            order=configuration.order,
        )
        await self._session.on_each(
            f"updating topic {configuration.topic!r}",
            addresses,
            lambda address: self._session.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header),
        )

    async def _await_route(self, topic: str, addresses: Iterable[str]) -> None:
        """Wait until the route of a topic has those of the addresses that are registered."""
        info = await self._session.cluster_info()
        registered = {
            address
            for data in info.broker_addr_table.values()
            for address in data.broker_addrs.values()
        }
        missing = registered.intersection(addresses)
        deadline = time.monotonic() + self._session.settings.request_timeout
        while missing and time.monotonic() < deadline:
            route = await self._session.find_route(topic)
            for broker in () if route is None else route.broker_datas:
                missing.difference_update(broker.broker_addrs.values())
            if missing:
                await asyncio.sleep(_POLL_SECONDS)

    async def _name_of(self, address: str) -> str:
        info = await self._session.cluster_info()
        for name, data in info.broker_addr_table.items():
            if address in data.broker_addrs.values():
                return name
        raise UnknownBrokerError(
            address,
            (
                each
                for data in info.broker_addr_table.values()
                for each in data.broker_addrs.values()
            ),
        )


def _queue_statuses(tables: Iterable[TopicStatsTable]) -> list[QueueStatus]:
    found = {queue: offsets for table in tables for queue, offsets in table.offset_table.items()}
    return [
        QueueStatus(queue, each.min_offset, each.max_offset, each.last_update_timestamp)
        for queue, each in sorted(found.items())
    ]


def _configuration(config: TopicConfig, permission: int | None = None) -> TopicConfiguration:
    return TopicConfiguration(
        config.topic_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm if permission is None else permission,
        config.order,
        bool(config.topic_sys_flag & _UNIT),
        bool(config.topic_sys_flag & _UNIT_SUBSCRIPTION),
        config.topic_filter_type,
    )
