"""Consumer groups: list, create, change and delete them; their progress and their members' state.

A group is known to the brokers that hold its settings or its offsets. Its retry topic tells which
these are; a group without one is looked for at all masters. Changes go to masters; replicas copy
them. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pyromq.admin.errors import AdminError, PartialFailureError, UnknownGroupError
from pyromq.admin.groups.connections import (
    ClientConnection,
    Connections,
    ConsumerConnections,
    all_masters,
    brokers_of_group,
)
from pyromq.admin.groups.running_info import (
    RunningInfo,
    problems,
    running_info,
    same_subscriptions,
)
from pyromq.admin.partial import from_reachable, with_results
from pyromq.admin.session import AdminSession, Area
from pyromq.protocol.names import (
    RETRY_TOPIC_PREFIX,
    dead_letter_topic,
    group_fault,
    retry_topic,
)
from pyromq.protocol.wire.bodies import (
    MASTER_ID,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from pyromq.protocol.wire.bodies_admin import ConsumeStats
from pyromq.protocol.wire.bodies_consumer import ConsumerRunningInfo
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from pyromq.protocol.wire.headers_admin import (
    DeleteTopicFromNamesrvRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsRequestHeader,
)
from pyromq.protocol.wire.versions import version_name

#: Requests that a broker forwards to a client, or that visit many queues, take longer.
_SLOW_FACTOR: Final = 3
#: Groups that an overview examines at a time.
_CONCURRENT_GROUPS: Final = 16


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a group, as RocketMQ names them (in snake case)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = MASTER_ID
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@dataclass(frozen=True, slots=True)
class GroupAtBroker:
    """The settings of a group at one broker."""

    cluster: str
    broker_name: str
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    #: Messages that are not consumed yet.
    diff: int
    #: When the last consumed message was stored (ms since the epoch); 0 if that is not known.
    last_timestamp: int
    #: The client that owns the queue, if it was asked for; otherwise empty.
    client_id: str = ""

    @property
    def client_ip(self) -> str:
        """Return the address in the client id."""
        return self.client_id.partition("@")[0]


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group in all its queues."""

    group: str
    queues: tuple[QueueProgress, ...]
    #: Messages per second.
    consume_tps: float
    #: Messages that are not consumed yet.
    diff_total: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line about a group."""

    group: str
    #: Connected members; 0 if the group is offline.
    count: int
    #: Java's name of the lowest version of a member; empty if the group is offline.
    version: str
    consume_type: ConsumeType | None
    message_model: MessageModel | None
    consume_tps: float
    diff_total: int
    #: Why figures are missing, because brokers do not answer; empty if none is.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of a group, and its own report; `problem` says why there is none."""

    connection: ClientConnection
    info: RunningInfo | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of a group's members."""

    group: str
    members: tuple[MemberStatus, ...]
    same_subscription: bool
    problems: tuple[str, ...]


class Groups(Area):
    """Consumer groups of the cluster."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._connections = Connections(session)

    # Settings

    async def names(self, broker: str | None = None) -> list[str]:
        """Return the names of all groups that masters have settings for, sorted.

        `broker` restricts it to the broker at this address. If some brokers fail, the error's
        `results` have the names of the others' groups.
        """
        addresses = [broker] if broker is not None else await all_masters(self._session)
        tables, failure = await self._tables(addresses)
        found = sorted({name for table in tables.values() for name in table})
        if failure is not None:
            raise with_results(failure, "reading the names of groups", *found)
        return found

    async def settings(self, group: str) -> list[GroupAtBroker]:
        """Return the settings of a group at each broker; raises UnknownGroupError.

        If some brokers fail, the error's `results` have the settings at the others.
        """
        info = await self._session.cluster_info()
        clusters = {
            name: cluster for cluster, names in info.cluster_addr_table.items() for name in names
        }
        brokers = {
            name: data.broker_addrs[min(data.broker_addrs)]
            for name, data in sorted(info.broker_addr_table.items())
            if data.broker_addrs
        }
        tables, failure = await self._tables(brokers.values())
        found = [
            GroupAtBroker(clusters.get(name, ""), name, tables[address][group])
            for name, address in brokers.items()
            if group in tables.get(address, ())
        ]
        if failure is not None:
            raise with_results(failure, f"reading the settings of group {group!r}", *found)
        if not found:
            known = {name for table in tables.values() for name in table}
            raise UnknownGroupError(group, known)
        return found

    async def update(
        self,
        settings: GroupSettings,
        *,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> list[str]:
        """Create a group or replace its settings; return the addresses of the brokers.

        Give the address of a broker, or a cluster to do so at all its masters.
        """
        if (fault := group_fault(settings.group_name)) is not None:
            raise AdminError(fault)
        body = _config(settings).encode()
        done = await self._session.on_each(
            f"changing group {settings.group_name!r}",
            await self._session.targets(broker, cluster),
            lambda address: self._session.ask(
                address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body
            ),
        )
        return list(done)

    async def delete(
        self,
        group: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        remove_offsets: bool = False,
    ) -> list[str]:
        """Delete a group; return the addresses of the brokers.

        At a whole cluster, its retry and dead-letter topics are deleted as well.
        """
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets)
        done = await self._session.on_each(
            f"deleting group {group!r}",
            await self._session.targets(broker, cluster),
            lambda address: self._session.ask(
                address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header
            ),
        )
        if cluster is not None:
            for topic in (retry_topic(group), dead_letter_topic(group)):
                await self._delete_topic(topic, cluster, list(done))
        return list(done)

    # Progress

    async def progress(
        self, group: str, topic: str | None = None, *, owners: bool = False
    ) -> GroupProgress:
        """Return the offsets of a group by queue, whether it is online or not.

        `owners` asks every member which queues it consumes. Raises UnknownGroupError if the group
        has never consumed. If some brokers fail, the error's `results` have the progress at the
        others.
        """
        found, failure = await self._progress(group, topic)
        if owners and found is not None:
            owner_of = await self.owners(group)
            queues = (
                replace(each, client_id=owner_of.get(each.queue, "")) for each in found.queues
            )
            found = replace(found, queues=tuple(queues))
        if failure is not None:
            what = f"reading the progress of group {group!r}"
            raise with_results(failure, what, *(() if found is None else (found,)))
        if found is None:
            problem = f"has not consumed topic {topic!r}" if topic else "has not consumed anything"
            raise await unknown_group(self._session, group, problem)
        return found

    async def summaries(self) -> list[GroupSummary]:
        """Return one line for each group that has a retry topic, as mqadmin lists them."""
        groups = sorted(
            topic.removeprefix(RETRY_TOPIC_PREFIX)
            for topic in await self._session.topic_names()
            if topic.startswith(RETRY_TOPIC_PREFIX)
        )
        room = asyncio.Semaphore(_CONCURRENT_GROUPS)

        async def limited(group: str) -> GroupSummary:
            async with room:
                return await self.summary(group)

        return list(await asyncio.gather(*map(limited, groups)))

    async def summary(self, group: str) -> GroupSummary:
        """Return one line about a group; zeros where it has no members or offsets."""
        problems = []
        progress: GroupProgress | None = None
        found: ConsumerConnections | None = None
        try:
            progress, failure = await self._progress(group, None)
            if failure is not None:
                problems.append(str(failure))
            found = await self._connections.find_consumers(group)
        except AdminError as error:
            problems.append(str(error))
        return GroupSummary(
            group,
            len(found.clients) if found else 0,
            version_name(found.min_version) if found else "",
            found.consume_type if found else None,
            found.message_model if found else None,
            progress.consume_tps if progress else 0.0,
            progress.diff_total if progress else 0,
            "; ".join(problems),
        )

    # Members

    async def connections(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """Return the connected members of a group; raises NotOnlineError."""
        return await self._connections.consumers(group, broker=broker)

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> RunningInfo:
        """Return what a member reports about itself; `stacks` adds those of its threads."""
        header = GetConsumerRunningInfoRequestHeader(group, client_id, stacks)
        failure: AdminError | None = None
        for address in await brokers_of_group(self._session, group):
            try:
                body = await self._session.fetch(
                    ConsumerRunningInfo,
                    address,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    header,
                    request_timeout=self._slow,
                )
            except AdminError as error:  # it may be connected to another broker
                failure = failure or error
            else:
                return running_info(client_id, body)
        if failure is None:
            raise UnknownGroupError(group)
        raise failure

    async def status(
        self, group: str, *, broker: str | None = None, stacks: bool = False
    ) -> GroupStatus:
        """Return the reports of all members, and what is wrong; raises NotOnlineError."""
        found = await self._connections.consumers(group, broker=broker)

        async def ask(client: ClientConnection) -> MemberStatus:
            try:
                info = await self.running_info(group, client.client_id, stacks=stacks)
            except AdminError as error:
                return MemberStatus(client, None, str(error))
            return MemberStatus(client, info)

        members = tuple(await asyncio.gather(*map(ask, found.clients)))
        infos = {each.connection.client_id: each.info for each in members if each.info is not None}
        now = int(time.time() * 1000)
        return GroupStatus(
            group,
            members,
            same_subscriptions(infos, now),
            tuple(problems(infos.values(), now)),
        )

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Return the client id of the member that consumes each queue; empty if offline."""
        found = await self._connections.find_consumers(group)
        if found is None:
            return {}

        async def ask(client: ClientConnection) -> dict[MessageQueue, str]:
            try:
                info = await self.running_info(group, client.client_id)
            except AdminError:
                return {}  # its queues have no known owner
            return dict.fromkeys(info.queues, client.client_id)

        owners: dict[MessageQueue, str] = {}
        for owned in await asyncio.gather(*map(ask, found.clients)):
            owners |= owned
        return owners

    # Helpers, in call order

    @property
    def _slow(self) -> float:
        return _SLOW_FACTOR * self._session.settings.request_timeout

    async def _progress(
        self, group: str, topic: str | None
    ) -> tuple[GroupProgress | None, PartialFailureError | None]:
        """Return the progress at the brokers that answer, None if there is none."""
        # Of all topics: a broker asked for one reports 0 if the group has not consumed it.
        header = GetConsumeStatsRequestHeader(group)
        answers, failure = await from_reachable(
            self._session,
            f"reading the progress of group {group!r}",
            await brokers_of_group(self._session, group),
            lambda address: self._session.fetch(
                ConsumeStats,
                address,
                RequestCode.GET_CONSUME_STATS,
                header,
                request_timeout=self._slow,
            ),
        )
        table = {
            queue: offsets
            for answer in answers.values()
            for queue, offsets in answer.offset_table.items()
            if topic in (None, queue.topic)
        }
        if not table:
            return None, failure
        queues = tuple(
            QueueProgress(
                queue,
                each.broker_offset,
                each.consumer_offset,
                each.broker_offset - each.consumer_offset,
                each.last_timestamp,
            )
            for queue, each in sorted(table.items())
        )
        tps = sum(answer.consume_tps for answer in answers.values())
        return GroupProgress(group, queues, tps, sum(each.diff for each in queues)), failure

    async def _tables(
        self, addresses: Iterable[str]
    ) -> tuple[dict[str, dict[str, GroupSettings]], PartialFailureError | None]:
        """Return the settings of all groups by the broker's address, and the error of others."""
        answers, failure = await from_reachable(
            self._session,
            "reading the settings of groups",
            addresses,
            lambda address: self._session.fetch(
                SubscriptionGroupWrapper, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            ),
        )
        tables = {
            address: {
                name: _settings(config) for name, config in table.subscription_group_table.items()
            }
            for address, table in answers.items()
        }
        return tables, failure

    async def _delete_topic(self, topic: str, cluster: str, masters: list[str]) -> None:
        at_brokers = DeleteTopicRequestHeader(topic)
        await self._session.on_each(
            f"deleting topic {topic!r}",
            masters,
            lambda address: self._session.ask(
                address, RequestCode.DELETE_TOPIC_IN_BROKER, at_brokers
            ),
        )
        await self._session.ask_every_name_server(
            f"deleting topic {topic!r}",
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            DeleteTopicFromNamesrvRequestHeader(topic, cluster),
        )


async def unknown_group(session: AdminSession, group: str, problem: str = "") -> UnknownGroupError:
    """Return the error about a group, with similar names."""
    names: Iterable[str] = ()
    try:
        names = await Groups(session).names()
    except PartialFailureError as error:
        names = error.results
    except AdminError:
        pass  # suggestions are a courtesy
    return UnknownGroupError(group, [name for name in names if name != group], problem)


def _settings(config: SubscriptionGroupConfig) -> GroupSettings:
    return GroupSettings(
        **{name: getattr(config, name) for name in GroupSettings.__dataclass_fields__}
    )


def _config(settings: GroupSettings) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        **{name: getattr(settings, name) for name in GroupSettings.__dataclass_fields__}
    )
