"""Connections of clients: the members of consumer groups and of producer groups.

Clients connect to every broker of their topics, so each broker knows the whole group; the answers
of all brokers are merged, as a client may have just lost one of its connections. Runs on the event
loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import NotFoundError, UnknownTopicError, refusal
from pyromq.admin.partial import from_reachable
from pyromq.admin.session import AdminSession, Area, read_body
from pyromq.protocol.names import retry_topic
from pyromq.protocol.wire.bodies import ConsumeFromWhere, ConsumeType, MessageModel
from pyromq.protocol.wire.bodies_admin import Connection, ConsumerConnection, ProducerConnection
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.headers_admin import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from pyromq.protocol.wire.versions import version_name

#: In the remark about a producer group without members.
_NO_GROUP: Final = "not exist"


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A connected client."""

    client_id: str
    #: The address as the broker sees it.
    address: str
    language: str
    #: The ordinal of the client's version, and Java's name for it.
    version: int
    version_name: str


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """A consumer group's subscription to one topic."""

    topic: str
    expression: str
    expression_type: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The members of a consumer group that is online, and their subscriptions."""

    group: str
    clients: tuple[ClientConnection, ...]
    subscriptions: tuple[GroupSubscription, ...]
    consume_type: ConsumeType | None
    message_model: MessageModel | None
    consume_from_where: ConsumeFromWhere | None

    @property
    def min_version(self) -> int:
        """Return the lowest version of a member."""
        return min(client.version for client in self.clients)

    def subscription(self, topic: str) -> GroupSubscription | None:
        """Return the subscription to a topic, or None."""
        return next((each for each in self.subscriptions if each.topic == topic), None)


class NotOnlineError(NotFoundError):
    """A group has no connected member."""

    def __init__(self, kind: str, group: str) -> None:
        super().__init__(f"{kind} group {group!r} is not online: no client of it is connected")
        self.group = group


class Connections(Area):
    """Connected clients."""

    async def consumers(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """Return the members of a consumer group; raises NotOnlineError.

        Asks the brokers of its retry topic, or the one at the address `broker`.
        """
        found = await self.find_consumers(group, broker=broker)
        if found is None:
            raise NotOnlineError("consumer", group)
        return found

    async def find_consumers(
        self, group: str, *, broker: str | None = None
    ) -> ConsumerConnections | None:
        """Return the members of a consumer group, or None if there are none.

        A broker that does not answer counts only if no other knows a member.
        """
        addresses = [broker] if broker is not None else await brokers_of_group(self._session, group)
        header = GetConsumerConnectionListRequestHeader(group)

        async def ask(address: str) -> ConsumerConnection:
            answer = await self._session.ask(
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                header,
                accept=(ResponseCode.CONSUMER_NOT_ONLINE,),
            )
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return ConsumerConnection()
            return read_body(ConsumerConnection, address, answer)

        answers, failure = await from_reachable(
            self._session, f"reading the members of group {group!r}", addresses, ask
        )
        found = _merged(group, [each for each in answers.values() if each.connection_set])
        if found is None and failure is not None:
            raise failure
        return found

    async def producers(self, group: str, topic: str) -> tuple[ClientConnection, ...]:
        """Return the members of a producer group that send to a topic; raises NotOnlineError."""
        masters = await self._session.masters_of_topic(topic)
        header = GetProducerConnectionListRequestHeader(group)

        async def ask(address: str) -> list[Connection]:
            answer = await self._session.ask(
                address,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                header,
                # Also the code for a group that has no members.
                accept=(ResponseCode.SYSTEM_ERROR,),
            )
            if answer.code != ResponseCode.SUCCESS:
                if _NO_GROUP not in (answer.remark or ""):
                    raise refusal(address, answer.code, answer.remark)
                return []
            return read_body(ProducerConnection, address, answer).connection_set

        answers, failure = await from_reachable(
            self._session,
            f"reading the members of producer group {group!r}",
            masters.values(),
            ask,
        )
        clients = _clients(each for connections in answers.values() for each in connections)
        if not clients and failure is not None:
            raise failure
        if not clients:
            raise NotOnlineError("producer", group)
        return clients


async def all_brokers(session: AdminSession) -> dict[str, str]:
    """Return the address of every broker by name: its master's, or else its first replica's."""
    info = await session.cluster_info()
    return {
        name: data.broker_addrs[min(data.broker_addrs)]
        for name, data in sorted(info.broker_addr_table.items())
        if data.broker_addrs
    }


async def all_masters(session: AdminSession) -> list[str]:
    """Return the addresses of all brokers."""
    return list((await all_brokers(session)).values())


async def brokers_of_group(session: AdminSession, group: str) -> list[str]:
    """Return the brokers that know a group: those of its retry topic, or else all."""
    try:
        return list((await session.masters_of_topic(retry_topic(group))).values())
    except UnknownTopicError:
        return await all_masters(session)


def _merged(group: str, answers: list[ConsumerConnection]) -> ConsumerConnections | None:
    if not answers:
        return None
    subscriptions = {
        each.topic: GroupSubscription(
            each.topic, each.sub_string, each.expression_type, tuple(sorted(each.tags_set))
        )
        for answer in answers
        for each in answer.subscription_table.values()
    }
    first = answers[0]
    return ConsumerConnections(
        group,
        _clients(each for answer in answers for each in answer.connection_set),
        tuple(subscriptions[topic] for topic in sorted(subscriptions)),
        first.consume_type,
        first.message_model,
        first.consume_from_where,
    )


def _clients(connections: Iterable[Connection]) -> tuple[ClientConnection, ...]:
    by_id = {
        each.client_id: ClientConnection(
            each.client_id,
            each.client_addr,
            each.language.name,
            each.version,
            version_name(each.version),
        )
        for each in connections
    }
    return tuple(by_id[client_id] for client_id in sorted(by_id))
