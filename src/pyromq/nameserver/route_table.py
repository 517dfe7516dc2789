"""The route table: live brokers, their addresses and their topics.

RocketMQ's RouteInfoManager as a pure table: no IO, and time is an argument (`now`, in seconds of
any monotonic clock). Connections are opaque objects, compared by identity.

Invariants:
1. Within one broker name an address has at most one broker id. (A replica that becomes
   master registers its address under id 0; the old id goes away.)
2. A broker name is in the table while it has an address. With its last address it leaves its
   cluster, and its queues leave every topic.
3. A topic is in the table while a broker name has queues for it; a cluster while it has a broker
   name.
4. Only its master (id 0) changes the queues of a broker name, and only if its data version differs
   from the last one or the master's address changed.
5. Every address of a broker name, and no other address, has an entry with the time of its last
   registration. A broker that is silent for `BROKER_EXPIRY` seconds, or whose connection breaks, is
   removed.
6. Indexes (connection -> addresses -> broker names -> topics and clusters) make the cost of a
   removal proportional to what it removes, not to the size of the table.
7. The table never outgrows its `RouteLimits`. A broker above a limit is refused. Topics above a
   limit are left out of a registration, whose data version then counts as unknown, so that the
   broker registers them again.

Called by `handlers` and `server`, on the loop only: nothing here needs a lock.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from pyromq.protocol.java.wire_types import shorten
from pyromq.protocol.message.sysflag import PERM_READ, PERM_WRITE
from pyromq.protocol.wire.bodies import (
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

logger = logging.getLogger(__name__)

ConnectionT = TypeVar("ConnectionT")

#: Seconds without a registration after which a broker is considered dead.
BROKER_EXPIRY = 120.0

#: Bits of a topic's sysFlag.
UNIT_FLAG = 0x1
UNIT_SUB_FLAG = 0x2

#: Longest name of a topic, broker or cluster, and longest address: twice RocketMQ's longest.
MAX_NAME_LENGTH: Final = 512
#: Clusters per broker name. Real brokers are in one.
MAX_CLUSTERS_PER_BROKER: Final = 16
#: Topics or brokers that a log line names.
_MAX_NAMES_SHOWN: Final = 3


class RouteLimitError(Exception):
    """The table has no room for a broker; the message names the limit."""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """How large a table may grow. A broker is a broker name with one of its addresses."""

    brokers: int = sys.maxsize
    brokers_per_connection: int = sys.maxsize
    topics_per_broker: int = sys.maxsize
    #: A topic counts once for each broker name that has it.
    topics: int = sys.maxsize


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity a broker registers with."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """A replica's master; empty for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class _LiveBroker(Generic[ConnectionT]):
    last_seen: float
    data_version: DataVersion | None  # None if some of its topics were left out
    connection: ConnectionT
    ha_server_addr: str
    body_digest: bytes


class RouteTable(Generic[ConnectionT]):
    """All routes of one NameServer."""

    def __init__(self, limits: RouteLimits | None = None) -> None:
        self._limits = limits or RouteLimits()
        self._topics: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self._brokers: dict[str, BrokerData] = {}  # by broker name
        self._clusters: dict[str, set[str]] = {}  # cluster name -> broker names
        self._live: dict[str, _LiveBroker[ConnectionT]] = {}  # by broker address
        self._filter_servers: dict[str, list[str]] = {}  # by broker address
        # Indexes for removals.
        self._addresses_on: dict[ConnectionT, set[str]] = {}
        self._names_at: dict[str, set[str]] = {}  # address -> broker names
        self._topics_of: dict[str, set[str]] = {}  # by broker name
        self._clusters_of: dict[str, set[str]] = {}  # by broker name
        self._broker_count = 0
        self._topic_count = 0

    # Brokers come and go

    def register(
        self,
        identity: BrokerIdentity,
        ha_server_addr: str,
        topics: TopicConfigSerializeWrapper,
        filter_servers: list[str] | None,
        connection: ConnectionT,
        now: float,
        body_digest: bytes = b"",
    ) -> RegistrationResult:
        """Add or update a broker and its topics; `filter_servers=None` keeps the known ones.

        `body_digest` is kept for `repeated`. Raises `RouteLimitError` without any change.
        """
        self._check_room(identity, connection)
        address, broker_id = identity.broker_addr, identity.broker_id
        broker = self._brokers.get(identity.broker_name)
        if broker is None:
            broker = BrokerData(identity.cluster_name, identity.broker_name)
            self._brokers[identity.broker_name] = broker
        self._clusters.setdefault(identity.cluster_name, set()).add(identity.broker_name)
        self._clusters_of.setdefault(identity.broker_name, set()).add(identity.cluster_name)
        old_address = broker.broker_addrs.get(broker_id)
        if old_address != address:
            self._take_address(broker, broker_id, address)
        if broker_id == MASTER_ID and old_address != address:
            logger.info(
                "cluster %s broker %s: master is now %s, was %s",
                shorten(broker.cluster),
                shorten(broker.broker_name),
                shorten(address),
                shorten(old_address),
            )
        version: DataVersion | None = topics.data_version
        if (
            broker_id == MASTER_ID
            and (old_address != address or self.is_changed(address, topics.data_version))
            and not self._update_topics(identity.broker_name, topics.topic_config_table.values())
        ):
            version = None
        last = self._live.get(address)
        if last is None:
            logger.info(
                "broker %s registered at %s", shorten(identity.broker_name), shorten(address)
            )
        if last is None or last.connection is not connection:
            if last is not None:
                self._leave_connection(address, last.connection)
            self._addresses_on.setdefault(connection, set()).add(address)
        self._live[address] = _LiveBroker(
            now, version, connection, ha_server_addr, b"" if version is None else body_digest
        )
        if filter_servers:
            self._filter_servers[address] = filter_servers
        elif filter_servers is not None:
            self._filter_servers.pop(address, None)
        return self._master_of(broker) if broker_id != MASTER_ID else RegistrationResult()

    def unregister(self, identity: BrokerIdentity) -> None:
        """Remove a broker that shuts down.

        A late request of a process whose name and id another address has taken over changes
        nothing.
        """
        address = identity.broker_addr
        broker = self._brokers.get(identity.broker_name)
        if broker is not None and broker.broker_addrs.get(identity.broker_id) == address:
            del broker.broker_addrs[identity.broker_id]
            logger.info("broker %s at %s left", shorten(identity.broker_name), shorten(address))
            self._leave_address(identity.broker_name, address)
            self._drop_broker_without_address(broker)

    def remove_connection(self, connection: ConnectionT) -> list[str]:
        """Remove every broker whose last registration came over a broken connection.

        Returns their addresses. A broker that has registered over another connection stays.
        """
        addresses = list(self._addresses_on.get(connection, ()))
        for address in addresses:
            self._remove_address(address)
        if addresses:
            logger.info(
                "connection lost, removed the routes of its %d brokers: %s",
                len(addresses),
                _some_of(addresses),
            )
        return addresses

    def remove_expired(self, now: float) -> list[ConnectionT]:
        """Remove silent brokers. Returns their connections, unless another broker uses them."""
        expired = [
            (address, live.connection)
            for address, live in self._live.items()
            if live.last_seen + BROKER_EXPIRY < now
        ]
        for address, _ in expired:
            self._remove_address(address)
        if expired:
            logger.warning(
                "removed the routes of %d brokers that were silent for %d s: %s",
                len(expired),
                BROKER_EXPIRY,
                _some_of([address for address, _ in expired]),
            )
        silent = dict.fromkeys(connection for _, connection in expired)
        return [connection for connection in silent if connection not in self._addresses_on]

    # Versions of brokers' topic tables

    def data_version(self, broker_addr: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered last."""
        live = self._live.get(broker_addr)
        return None if live is None else live.data_version

    def is_changed(self, broker_addr: str, data_version: DataVersion) -> bool:
        """Return whether a broker at this version has something new to register."""
        return self.data_version(broker_addr) != data_version

    def repeated(self, identity: BrokerIdentity, body_digest: bytes) -> DataVersion | None:
        """Return the data version if a registration repeats the broker's last one, else None.

        None also if another address has taken over the broker's name and id since.
        """
        broker = self._brokers.get(identity.broker_name)
        live = self._live.get(identity.broker_addr)
        if (
            broker is None
            or live is None
            or broker.broker_addrs.get(identity.broker_id) != identity.broker_addr
            or live.body_digest != body_digest
        ):
            return None
        return live.data_version

    def touch(self, broker_addr: str, now: float) -> None:
        """Note that a broker is alive."""
        live = self._live.get(broker_addr)
        if live is not None:
            live.last_seen = now

    def unknown_topics(self, broker_name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the topics of a parsed `topicConfigTable` that are new or changed.

        Comparing takes a tenth of the time of decoding and registering all of them.
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

    # Queries

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's route, or None if no live broker has it."""
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
        """Return every broker and cluster. Encode the result now: it holds the live tables."""
        return ClusterInfo(self._brokers, self._clusters)

    def last_seen(self) -> list[tuple[list[str], str, float]]:
        """Return broker names, address and time of the last registration of each live broker."""
        return [
            (sorted(self._names_at.get(address, ())), address, live.last_seen)
            for address, live in self._live.items()
        ]

    @property
    def topic_count(self) -> int:
        """Return the number of topics with a route."""
        return len(self._topics)

    def all_topics(self) -> TopicList:
        """Return every topic that some broker has."""
        return TopicList(set(self._topics))

    def topics_of_cluster(self, cluster_name: str) -> TopicList:
        """Return the topics of a cluster's brokers; none for an unknown cluster."""
        names = self._clusters.get(cluster_name, ())
        return TopicList(set().union(*(self._topics_of.get(name, ()) for name in names)))

    def system_topics(self) -> TopicList:
        """Return the names of clusters and brokers, and one broker's address.

        The caller asks that broker for more system topics.
        """
        names = set(self._clusters).union(*self._clusters.values())
        addresses = (
            address for broker in self._brokers.values() for address in broker.broker_addrs.values()
        )
        return TopicList(names, next(addresses, None))

    def unit_topics(self) -> TopicList:
        """Return the topics of a unit."""
        return self._topics_by_flag(lambda flag: flag & UNIT_FLAG != 0)

    def unit_subscribed_topics(self) -> TopicList:
        """Return the topics that a unit subscribes to."""
        return self._topics_by_flag(lambda flag: flag & UNIT_SUB_FLAG != 0)

    def unit_subscribed_common_topics(self) -> TopicList:
        """Return the topics that a unit subscribes to but does not own."""
        return self._topics_by_flag(
            lambda flag: flag & (UNIT_FLAG | UNIT_SUB_FLAG) == UNIT_SUB_FLAG
        )

    # Administration

    def wipe_write_permission(self, broker_name: str) -> int:
        """Stop producers from choosing a broker. Returns how many topics it has.

        Lasts until the master registers a changed topic table.
        """
        return self._change_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let producers choose a broker again. Returns how many topics it has."""
        return self._change_permission(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Delete a topic, or only its part in one cluster."""
        queues = self._topics.get(topic, {})
        if not cluster_name:
            names = list(queues)
        else:
            of_cluster = self._clusters.get(cluster_name, set())
            names = [name for name in queues if name in of_cluster]
        for name in names:
            self._topics_of[name].discard(topic)
            self._remove_queues(topic, name)

    # Helpers

    def _check_room(self, identity: BrokerIdentity, connection: ConnectionT) -> None:
        name, address = identity.broker_name, identity.broker_addr
        clusters = self._clusters_of.get(name, ())
        if identity.cluster_name not in clusters and len(clusters) >= MAX_CLUSTERS_PER_BROKER:
            raise RouteLimitError(
                f"broker {shorten(name)} is in {len(clusters)} clusters,"
                f" limit {MAX_CLUSTERS_PER_BROKER}"
            )
        names = self._names_at.get(address, ())
        if name not in names and self._broker_count >= self._limits.brokers:
            raise RouteLimitError(
                f"no room for broker {shorten(name)} at {shorten(address)}:"
                f" {self._broker_count} brokers are registered,"
                f" limit {self._limits.brokers} (maxBrokers)"
            )
        addresses = self._addresses_on.get(connection, ())
        for item, others, place in (
            (address, addresses, "over this connection"),
            (name, names, "at this address"),
        ):
            if item not in others and len(others) >= self._limits.brokers_per_connection:
                raise RouteLimitError(
                    f"no room for broker {shorten(name)} at {shorten(address)}:"
                    f" {len(others)} brokers are registered {place},"
                    f" limit {self._limits.brokers_per_connection} (maxBrokersPerConnection)"
                )

    def _take_address(self, broker: BrokerData, broker_id: int, address: str) -> None:
        """Give a broker id of a broker name to an address, which replaces the old one."""
        name = broker.broker_name
        names = self._names_at.setdefault(address, set())
        if name in names:
            for other_id, other in list(broker.broker_addrs.items()):
                if other == address:
                    del broker.broker_addrs[other_id]
        else:
            names.add(name)
            self._broker_count += 1
        old_address = broker.broker_addrs.get(broker_id)
        broker.broker_addrs[broker_id] = address
        if old_address is not None:
            self._leave_address(name, old_address)

    def _leave_address(self, name: str, address: str) -> None:
        """Remove a broker name from an address, and the address with its last name."""
        names = self._names_at[address]
        names.remove(name)
        self._broker_count -= 1
        if not names:
            del self._names_at[address]
            live = self._live.pop(address, None)
            if live is not None:
                self._leave_connection(address, live.connection)
            self._filter_servers.pop(address, None)

    def _leave_connection(self, address: str, connection: ConnectionT) -> None:
        addresses = self._addresses_on[connection]
        addresses.remove(address)
        if not addresses:
            del self._addresses_on[connection]

    def _update_topics(self, broker_name: str, topics: Iterable[TopicConfig]) -> bool:
        """Add or update a master's topics; return whether there was room for all."""
        own = self._topics_of.setdefault(broker_name, set())
        limits = self._limits
        same: dict[tuple[int, int, int, int], QueueData] = {}  # most topics have equal values
        new_count = 0
        changed: list[str] = []
        left_out: list[str] = []
        has_room = True
        for topic in topics:
            name = topic.topic_name
            key = (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
            queue = same.get(key)
            if queue is None:
                queue = same[key] = QueueData(broker_name, *key)
            if name in own:
                queues = self._topics[name]
                if queues[broker_name] != queue:
                    changed.append(name)
                queues[broker_name] = queue
            elif not is_legal_name(name):
                left_out.append(name)
            elif len(own) >= limits.topics_per_broker or self._topic_count >= limits.topics:
                left_out.append(name)
                has_room = False
            else:
                own.add(name)
                self._topics.setdefault(name, {})[broker_name] = queue
                self._topic_count += 1
                new_count += 1
        if new_count or changed:
            logger.info(
                "broker %s: %d new topics, %d changed%s",
                shorten(broker_name),
                new_count,
                len(changed),
                f": {_some_of(changed)}" if changed else "",
            )
        if left_out:
            logger.warning(
                "broker %s: %d topics left out: %s; it has %d topics, limit %d"
                " (maxTopicsPerBroker), all brokers have %d, limit %d (maxTopics), a name has"
                " at most %d characters, none of them control characters",
                shorten(broker_name),
                len(left_out),
                _some_of(left_out),
                len(own),
                limits.topics_per_broker,
                self._topic_count,
                limits.topics,
                MAX_NAME_LENGTH,
            )
        return has_room

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        del queues[broker_name]
        self._topic_count -= 1
        if not queues:
            del self._topics[topic]

    def _master_of(self, broker: BrokerData) -> RegistrationResult:
        master_addr = broker.broker_addrs.get(MASTER_ID)
        master = self._live.get(master_addr) if master_addr is not None else None
        if master is None:
            return RegistrationResult()
        return RegistrationResult(master.ha_server_addr, master_addr)

    def _remove_address(self, address: str) -> None:
        for name in list(self._names_at[address]):
            broker = self._brokers[name]
            for broker_id, other in list(broker.broker_addrs.items()):
                if other == address:
                    del broker.broker_addrs[broker_id]
            self._leave_address(name, address)
            self._drop_broker_without_address(broker)

    def _drop_broker_without_address(self, broker: BrokerData) -> None:
        if broker.broker_addrs:
            return
        name = broker.broker_name
        del self._brokers[name]
        for cluster_name in self._clusters_of.pop(name):
            names = self._clusters[cluster_name]
            names.remove(name)
            if not names:
                del self._clusters[cluster_name]
        for topic in self._topics_of.pop(name, ()):
            self._remove_queues(topic, name)

    def _topics_by_flag(self, matches: Callable[[int], bool]) -> TopicList:
        # A topic's flag is the same on every broker, so the first one is enough.
        return TopicList(
            {
                topic
                for topic, queues in self._topics.items()
                if matches(next(iter(queues.values())).topic_sys_flag)
            }
        )

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self._topics_of.get(broker_name, ())
        changed: dict[int, QueueData] = {}  # by id() of the old value: topics share values
        for topic in topics:
            queues = self._topics[topic]
            old = queues[broker_name]
            new = changed.get(id(old))
            if new is None:
                new = changed[id(old)] = replace(old, perm=change(old.perm))
            queues[broker_name] = new
        return len(topics)


def is_legal_name(name: str) -> bool:
    """Return whether a name is short enough and cannot forge a log line."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()


def _some_of(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    shown = ", ".join(map(shorten, names[:_MAX_NAMES_SHOWN]))
    return f"{shown} and {more} more" if more > 0 else shown
