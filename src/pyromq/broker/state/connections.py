"""Connected clients: the members of consumer groups and of producer groups.

Clients send a heartbeat every 30 seconds. A member is removed when it unregisters, when its
connection is lost, or after 120 seconds of silence. Nothing is persisted: after a restart the
tables fill within one heartbeat interval.

Invariants
1. A group without members is not in the table, so abandoned groups cost nothing.
2. Every entry is found from its connection: losing a connection costs time in proportion to its own
   entries, however many groups and client ids exist.
3. Return values report each change of a group's members or subscriptions; the tables themselves
   send nothing.

Called on the loop.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyromq.base.log_lines import first_few
from pyromq.protocol.wire.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.frame import RemotingCommand

logger = logging.getLogger(__name__)

#: Seconds of silence after which a client is dropped.
CLIENT_EXPIRY = 120.0
#: Estimated bytes of memory per subscription, besides its texts, and per tag.
_SUBSCRIPTION_OVERHEAD: Final = 1024
_TAG_OVERHEAD: Final = 128


class ClientConnection(Protocol):
    """The part of a connection that the tables and their callers use."""

    @property
    def remote_address(self) -> str:
        """Return the client's address as `host:port`."""

    @property
    def closed(self) -> bool:
        """Return whether the connection is closed."""

    @property
    def congested(self) -> bool:
        """Return whether the client reads too slowly for anything that can wait."""

    def send(self, command: RemotingCommand) -> None:
        """Send a response or a one-way request."""

    async def request(
        self,
        command: RemotingCommand,
        timeout: float,  # noqa: ASYNC109 - the remoting layer enforces it
    ) -> RemotingCommand:
        """Send a request and return the client's response. Raises RemotingError."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class Client:
    """A client on one connection, as of its last heartbeat."""

    connection: ClientConnection
    client_id: str
    language: LanguageCode
    version: int
    last_seen: float = 0.0


@dataclass(slots=True)
class ConsumerGroup:
    """The members and subscriptions of a consumer group."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[ClientConnection, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    #: Counts changes of `subscriptions`, including those that need no rebalance.
    changes: int = 0
    #: Memory of `subscriptions`, as `subscription_bytes` estimates it.
    size: int = 0

    def client_ids(self) -> list[str]:
        """Return the ids of the members in the order in which they joined."""
        return [client.client_id for client in self.members.values()]

    def find_client(self, client_id: str) -> Client | None:
        """Return the member with this id, if any."""
        return next((c for c in self.members.values() if c.client_id == client_id), None)


class ConsumerTable:
    """Consumer groups that have members now."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        *,
        on_subscribed: Callable[[str, Iterable[SubscriptionData]], None] | None = None,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        """Create an empty table.

        It calls `on_subscribed` with the group and subscriptions of each heartbeat, and `on_gone`
        with each group that loses its last member.
        """
        self._now = now
        self._on_subscribed = on_subscribed
        self._on_gone = on_gone
        #: Changes with every subscription or message model of a group; results computed under the
        #: same version are still valid.
        self.version = 0
        #: Estimated memory of all subscriptions.
        self.size = 0
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[ClientConnection, set[str]] = {}

    def find(self, group: str) -> ConsumerGroup | None:
        """Return the group, if it has members."""
        return self._groups.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group to a topic, if any."""
        members = self._groups.get(group)
        return None if members is None else members.subscriptions.get(topic)

    def names(self) -> list[str]:
        """Return the names of all groups with members."""
        return list(self._groups)

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic now."""
        return {name for name, group in self._groups.items() if topic in group.subscriptions}

    def groups_of(self, connection: ClientConnection) -> Collection[str]:
        """Return the groups of a connection."""
        return self._groups_of.get(connection, ())

    def __len__(self) -> int:
        return len(self._groups)

    def register(self, data: ConsumerData, client: Client) -> bool:
        """Register a heartbeat; return whether members or subscribed topics changed."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
            self.version += 1
        group.consume_type = data.consume_type
        if group.message_model is not data.message_model:
            group.message_model = data.message_model
            self.version += 1
        group.consume_from_where = data.consume_from_where
        joined = self._note_member(group, client)
        changes = group.changes
        resubscribed = _update_subscriptions(group, data.subscription_data_set)
        if group.changes != changes:
            self.version += 1
            size = subscription_bytes(group.subscriptions.values())
            self.size += size - group.size
            group.size = size
        if self._on_subscribed is not None:
            self._on_subscribed(group.name, data.subscription_data_set)
        return joined or resubscribed

    def unregister(self, group: str, connection: ClientConnection) -> bool:
        """Remove a member; return whether it was one."""
        client = self._remove(group, connection)
        if client is not None:
            _log_gone("consumer", client, [group], "left")
        return client is not None

    def disconnect(self, connection: ClientConnection) -> list[str]:
        """Remove the memberships of a lost connection; return the groups that changed."""
        groups = sorted(self._groups_of.get(connection, ()))
        client = None
        for name in groups:
            client = self._remove(name, connection)
        if client is not None:
            _log_gone("consumer", client, groups, "lost its connection")
        return groups

    def expire(self) -> list[str]:
        """Close and remove silent members; return the groups that changed."""
        deadline = self._now() - CLIENT_EXPIRY
        changed = []
        for group in list(self._groups.values()):
            silent = [c for c in group.members.values() if c.last_seen < deadline]
            for client in silent:
                self._remove(group.name, client.connection)
                _log_gone("consumer", client, [group.name], "timed out")
                client.connection.close()
            if silent:
                changed.append(group.name)
        return changed

    def _note_member(self, group: ConsumerGroup, client: Client) -> bool:
        client.last_seen = self._now()
        known = group.members.get(client.connection)
        group.members[client.connection] = client
        if known is None:
            self._groups_of.setdefault(client.connection, set()).add(group.name)
            logger.info(
                "consumer %s of group %s joined from %s",
                client.client_id,
                group.name,
                client.connection.remote_address,
            )
        elif known.client_id != client.client_id:
            logger.error(
                "consumer %s of group %s changed its id to %s on the same connection from %s",
                known.client_id,
                group.name,
                client.client_id,
                client.connection.remote_address,
            )
        return known is None

    def _remove(self, group_name: str, connection: ClientConnection) -> Client | None:
        group = self._groups.get(group_name)
        client = group.members.pop(connection, None) if group else None
        if group is None or client is None:
            return None
        _forget(self._groups_of, connection, group_name)
        if not group.members:
            del self._groups[group_name]
            self.size -= group.size
            self.version += 1
            if self._on_gone is not None:
                self._on_gone(group_name)
        return client


def subscription_bytes(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate the memory of subscriptions."""
    return sum(
        _SUBSCRIPTION_OVERHEAD
        + len(each.topic)
        + len(each.sub_string)
        + _TAG_OVERHEAD * (len(each.tags_set) + len(each.code_set))
        for each in subscriptions
    )


def _update_subscriptions(group: ConsumerGroup, wanted: Iterable[SubscriptionData]) -> bool:
    """Replace the subscriptions of a group; return whether its topics changed.

    A newer version of a known subscription is not a change, as in RocketMQ: members share queues by
    topic, whatever the expression.
    """
    new: list[SubscriptionData] = []
    topics = set()
    for subscription in wanted:
        topics.add(subscription.topic)
        known = group.subscriptions.get(subscription.topic)
        if known is None or subscription.sub_version > known.sub_version:
            group.subscriptions[subscription.topic] = subscription
            group.changes += 1
        if known is None:
            new.append(subscription)
    if new:
        logger.info("group %s subscribes to %s", group.name, first_few(new))
    dropped = group.subscriptions.keys() - topics
    for topic in dropped:
        del group.subscriptions[topic]
        group.changes += 1
    if dropped:
        logger.warning("group %s no longer subscribes to %s", group.name, first_few(dropped))
    return bool(new or dropped)


class ProducerTable:
    """Producer groups with members, to check transactions with and push replies to."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._groups: dict[str, dict[ClientConnection, Client]] = {}
        self._groups_of: dict[ClientConnection, set[str]] = {}
        self._by_client_id: dict[str, ClientConnection] = {}
        #: Client ids by connection, each with the number of groups that use it.
        self._ids_of: dict[ClientConnection, Counter[str]] = {}
        self._turn = itertools.count()

    def members(self, group: str) -> list[Client]:
        """Return the members of a producer group."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> list[str]:
        """Return the names of all producer groups with members."""
        return list(self._groups)

    def groups_of(self, connection: ClientConnection) -> Collection[str]:
        """Return the groups of a connection."""
        return self._groups_of.get(connection, ())

    def find_client(self, client_id: str) -> ClientConnection | None:
        """Return the connection of a client."""
        return self._by_client_id.get(client_id)

    def pick(self, group: str) -> ClientConnection | None:
        """Return the connection of a live member, round-robin, to check a transaction with."""
        alive = [connection for connection in self._groups.get(group, ()) if not connection.closed]
        return alive[next(self._turn) % len(alive)] if alive else None

    def register(self, group: str, client: Client) -> None:
        """Register a heartbeat."""
        client.last_seen = self._now()
        members = self._groups.setdefault(group, {})
        known = members.get(client.connection)
        members[client.connection] = client
        if known is None:
            self._groups_of.setdefault(client.connection, set()).add(group)
            logger.info(
                "producer %s of group %s joined from %s",
                client.client_id,
                group,
                client.connection.remote_address,
            )
        if known is None or known.client_id != client.client_id:
            self._ids_of.setdefault(client.connection, Counter())[client.client_id] += 1
            if known is not None:
                self._forget_client_id(known)
        self._by_client_id[client.client_id] = client.connection

    def unregister(self, group: str, connection: ClientConnection) -> None:
        """Remove a member."""
        client = self._remove(group, connection)
        if client is not None:
            _log_gone("producer", client, [group], "left")

    def disconnect(self, connection: ClientConnection) -> None:
        """Remove the memberships of a lost connection."""
        groups = sorted(self._groups_of.get(connection, ()))
        client = None
        for group in groups:
            client = self._remove(group, connection)
        if client is not None:
            _log_gone("producer", client, groups, "lost its connection")

    def expire(self) -> None:
        """Close and remove silent members."""
        deadline = self._now() - CLIENT_EXPIRY
        for group, members in list(self._groups.items()):
            for client in [c for c in members.values() if c.last_seen < deadline]:
                self._remove(group, client.connection)
                _log_gone("producer", client, [group], "timed out")
                client.connection.close()

    def _remove(self, group: str, connection: ClientConnection) -> Client | None:
        members = self._groups.get(group, {})
        client = members.pop(connection, None)
        if client is None:
            return None
        if not members:
            del self._groups[group]
        _forget(self._groups_of, connection, group)
        self._forget_client_id(client)
        return client

    def _forget_client_id(self, client: Client) -> None:
        """Decrement the groups that use an id of a connection; drop the id at zero."""
        connection, client_id = client.connection, client.client_id
        ids = self._ids_of[connection]
        ids[client_id] -= 1
        if ids[client_id]:
            return  # still in another group
        del ids[client_id]
        if not ids:
            del self._ids_of[connection]
        # A client that reconnected keeps its entry when the old connection ends.
        if self._by_client_id.get(client_id) is connection:
            del self._by_client_id[client_id]


def _forget(
    groups_of: dict[ClientConnection, set[str]], connection: ClientConnection, group: str
) -> None:
    groups = groups_of[connection]
    groups.discard(group)
    if not groups:
        del groups_of[connection]


def _log_gone(kind: str, client: Client, groups: Collection[str], reason: str) -> None:
    logger.info(
        "%s %s of group %s from %s %s",
        kind,
        client.client_id,
        first_few(groups),
        client.connection.remote_address,
        reason,
    )
