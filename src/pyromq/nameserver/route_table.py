"""What a NameServer knows: which brokers live, where they are and which topics they have.

RocketMQ's RouteInfoManager as a pure table: no IO, and the clock is handed in (`now`, in
seconds, of any clock that only goes forward). Connections are opaque objects, compared by
identity.

Invariants:
1. Within one broker name an address has at most one broker id. (A replica that becomes
   master registers its address under id 0; the old id goes away.)
2. A broker name is in the table as long as it has at least one address; with its last
   address it leaves its cluster, and its queues leave every topic.
3. A topic is in the table as long as at least one broker name has queues for it; a cluster
   as long as it has a broker name.
4. Queues of a broker name change only through its master (id 0), and only when its data
   version differs from the last one seen, or when another address was master before.
5. Every address of a broker name has an entry that says when it was last heard of. A broker
   that was silent for `BROKER_EXPIRY` seconds, or whose connection broke, is removed.

Called by `handlers` and `server`, on the loop only: nothing here needs a lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyromq.protocol.bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
)
from pyromq.protocol.sysflag import PERM_READ, PERM_WRITE

logger = logging.getLogger(__name__)

ConnectionT = TypeVar("ConnectionT")

#: A broker that did not register for this many seconds is taken for dead.
BROKER_EXPIRY = 120.0

#: Bits of a topic's sysFlag.
UNIT_FLAG = 0x1
UNIT_SUB_FLAG = 0x2


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who a broker says it is."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """What a replica learns about its master; nothing for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class _LiveBroker(Generic[ConnectionT]):
    last_seen: float
    data_version: DataVersion
    connection: ConnectionT
    ha_server_addr: str


class RouteTable(Generic[ConnectionT]):
    """All routes of one NameServer."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self._brokers: dict[str, BrokerData] = {}  # by broker name
        self._clusters: dict[str, set[str]] = {}  # cluster name -> broker names
        self._live: dict[str, _LiveBroker[ConnectionT]] = {}  # by broker address
        self._filter_servers: dict[str, list[str]] = {}  # by broker address

    # Brokers come and go

    def register(
        self,
        identity: BrokerIdentity,
        ha_server_addr: str,
        topics: TopicConfigSerializeWrapper,
        filter_servers: list[str] | None,
        connection: ConnectionT,
        now: float,
    ) -> RegistrationResult:
        """Take in what a broker says about itself; `filter_servers` None leaves them alone."""
        address, broker_id = identity.broker_addr, identity.broker_id
        self._clusters.setdefault(identity.cluster_name, set()).add(identity.broker_name)
        broker = self._brokers.get(identity.broker_name)
        if broker is None:
            broker = BrokerData(identity.cluster_name, identity.broker_name)
            self._brokers[identity.broker_name] = broker
        for other_id, other in list(broker.broker_addrs.items()):
            if other == address and other_id != broker_id:
                del broker.broker_addrs[other_id]
        old_address = broker.broker_addrs.get(broker_id)
        broker.broker_addrs[broker_id] = address
        if broker_id == MASTER_ID and old_address != address:
            logger.info(
                "cluster %s broker %s: master is now %s, was %s",
                broker.cluster,
                broker.broker_name,
                address,
                old_address,
            )
        if broker_id == MASTER_ID and (
            old_address != address or self.is_changed(address, topics.data_version)
        ):
            for topic in topics.topic_config_table.values():
                self._update_queues(identity.broker_name, topic)
        if address not in self._live:
            logger.info("broker %s registered at %s", identity.broker_name, address)
        self._live[address] = _LiveBroker(now, topics.data_version, connection, ha_server_addr)
        if filter_servers:
            self._filter_servers[address] = filter_servers
        elif filter_servers is not None:
            self._filter_servers.pop(address, None)
        return self._master_of(broker) if broker_id != MASTER_ID else RegistrationResult()

    def unregister(self, identity: BrokerIdentity) -> None:
        """Forget a broker that says goodbye.

        A late goodbye of a process whose name and id another address has taken over meanwhile
        changes nothing for the successor.
        """
        address = identity.broker_addr
        broker = self._brokers.get(identity.broker_name)
        if broker is not None and broker.broker_addrs.get(identity.broker_id) == address:
            del broker.broker_addrs[identity.broker_id]
            logger.info("broker %s at %s left", identity.broker_name, address)
            self._drop_broker_without_address(broker)
        if not any(address in other.broker_addrs.values() for other in self._brokers.values()):
            self._live.pop(address, None)
            self._filter_servers.pop(address, None)

    def remove_connection(self, connection: ConnectionT) -> list[str]:
        """Forget every broker whose latest registration came over this connection, which
        broke. Returns their addresses. A broker that registered again over another
        connection meanwhile stays.
        """
        addresses = [
            address for address, live in self._live.items() if live.connection is connection
        ]
        for address in addresses:
            logger.info("the connection of broker %s broke, its routes are removed", address)
            self._remove_address(address)
        return addresses

    def remove_expired(self, now: float) -> list[ConnectionT]:
        """Forget brokers that were silent for too long. Returns their connections, those that
        no other broker uses.
        """
        expired = [
            (address, live.connection)
            for address, live in self._live.items()
            if live.last_seen + BROKER_EXPIRY < now
        ]
        for address, _ in expired:
            logger.warning(
                "broker %s did not register for %d s, its routes are removed",
                address,
                BROKER_EXPIRY,
            )
            self._remove_address(address)
        used = {id(live.connection) for live in self._live.values()}
        return [connection for _, connection in expired if id(connection) not in used]

    # Versions of brokers' topic tables

    def data_version(self, broker_addr: str) -> DataVersion | None:
        """The version of the topics that this broker registered last."""
        live = self._live.get(broker_addr)
        return None if live is None else live.data_version

    def is_changed(self, broker_addr: str, data_version: DataVersion) -> bool:
        """Whether a broker at this version would tell us something new."""
        return self.data_version(broker_addr) != data_version

    def is_known(self, identity: BrokerIdentity) -> bool:
        """Whether this address has this name and id, and no other one has taken them over."""
        broker = self._brokers.get(identity.broker_name)
        return (
            broker is not None
            and broker.broker_addrs.get(identity.broker_id) == identity.broker_addr
        )

    def touch(self, broker_addr: str, now: float) -> None:
        """Note that a broker is alive although it has nothing new."""
        live = self._live.get(broker_addr)
        if live is not None:
            live.last_seen = now

    def unknown_topics(self, broker_name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a registration's `topicConfigTable`, as parsed, that says something new.

        To compare takes a tenth of the time that it takes to read and register it all.
        """
        known = self._topics
        nothing: dict[str, QueueData] = {}
        unknown = {}
        for name, topic in table.items():
            queues = known.get(name, nothing).get(broker_name)
            if (
                queues is None
                or topic["topicName"] != name
                or topic["readQueueNums"] != queues.read_queue_nums
                or topic["writeQueueNums"] != queues.write_queue_nums
                or topic["perm"] != queues.perm
                or topic["topicSysFlag"] != queues.topic_sys_flag
            ):
                unknown[name] = topic
        return unknown

    # Questions

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic lives; None when nobody has it or no broker of it is left."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=[
                replace(broker, broker_addrs=dict(broker.broker_addrs)) for broker in brokers
            ],
            filter_server_table={
                address: self._filter_servers[address]
                for broker in brokers
                for address in broker.broker_addrs.values()
                if address in self._filter_servers
            },
        )

    def cluster_info(self) -> ClusterInfo:
        """Every broker and cluster. The tables are the live ones: to be encoded at once."""
        return ClusterInfo(self._brokers, self._clusters)

    def all_topics(self) -> TopicList:
        """Every topic that some broker has."""
        return TopicList(set(self._topics))

    def topics_of_cluster(self, cluster_name: str) -> TopicList:
        """The topics that a broker of this cluster has; none for an unknown cluster."""
        names = self._clusters.get(cluster_name, set())
        return TopicList(
            {topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)}
        )

    def system_topics(self) -> TopicList:
        """Names that are topics by rule: clusters' and brokers'; and one broker's address,
        where the caller can ask for more.
        """
        names = set(self._clusters).union(*self._clusters.values())
        addresses = (
            address for broker in self._brokers.values() for address in broker.broker_addrs.values()
        )
        return TopicList(names, next(addresses, None))

    def unit_topics(self) -> TopicList:
        """Topics of a unit."""
        return self._topics_by_flag(lambda flag: flag & UNIT_FLAG != 0)

    def unit_subscribed_topics(self) -> TopicList:
        """Topics that a unit subscribes to."""
        return self._topics_by_flag(lambda flag: flag & UNIT_SUB_FLAG != 0)

    def unit_subscribed_common_topics(self) -> TopicList:
        """Topics that a unit subscribes to and that are no unit's own."""
        return self._topics_by_flag(
            lambda flag: flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG
        )

    # Administration

    def wipe_write_permission(self, broker_name: str) -> int:
        """Stop producers from choosing this broker. Returns how many topics it has.

        Holds until the master registers a changed topic table.
        """
        return self._change_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let producers choose this broker again. Returns how many topics it has."""
        return self._change_permission(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Forget a topic, or with a cluster name only that cluster's part of it."""
        if not cluster_name:
            self._topics.pop(topic, None)
            return
        queues = self._topics.get(topic)
        if queues is None:
            return
        for broker_name in self._clusters.get(cluster_name, ()):
            queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]

    # Inner workings

    def _update_queues(self, broker_name: str, topic: TopicConfig) -> None:
        queues = self._topics.setdefault(topic.topic_name, {})
        new = QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )
        old = queues.get(broker_name)
        queues[broker_name] = new
        if old is None:
            logger.debug("topic %s: new queues %s", topic.topic_name, new)
        elif old != new:
            logger.info("topic %s: %s, was %s", topic.topic_name, new, old)

    def _master_of(self, broker: BrokerData) -> RegistrationResult:
        master_addr = broker.broker_addrs.get(MASTER_ID)
        master = self._live.get(master_addr) if master_addr is not None else None
        if master is None:
            return RegistrationResult()
        return RegistrationResult(master.ha_server_addr, master_addr)

    def _remove_address(self, address: str) -> None:
        del self._live[address]
        self._filter_servers.pop(address, None)
        for broker in list(self._brokers.values()):
            for broker_id, other in list(broker.broker_addrs.items()):
                if other == address:
                    del broker.broker_addrs[broker_id]
            self._drop_broker_without_address(broker)

    def _drop_broker_without_address(self, broker: BrokerData) -> None:
        if broker.broker_addrs:
            return
        name = broker.broker_name
        self._brokers.pop(name, None)
        for cluster_name, names in list(self._clusters.items()):
            names.discard(name)
            if not names:
                del self._clusters[cluster_name]
        for topic, queues in list(self._topics.items()):
            queues.pop(name, None)
            if not queues:
                del self._topics[topic]
        logger.info("broker name %s is gone, with its queues", name)

    def _topics_by_flag(self, matches: Callable[[int], bool]) -> TopicList:
        # A topic's flag is the same at every broker, so the first one speaks for all.
        return TopicList(
            {
                topic
                for topic, queues in self._topics.items()
                if matches(next(iter(queues.values())).topic_sys_flag)
            }
        )

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = replace(queue, perm=change(queue.perm))
                count += 1
        return count
