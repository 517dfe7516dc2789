"""The cluster: its brokers, their state and figures, replication, connected producers.

Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pyromq.admin.errors import (
    AdminError,
    UnknownBrokerError,
    UnreadableAnswerError,
    UnsupportedRequestError,
    refusal,
)
from pyromq.admin.session import Area, read_body
from pyromq.client.errors import ClientError
from pyromq.client.message import Message
from pyromq.client.producer.producer import Producer
from pyromq.client.results import SendResult
from pyromq.protocol.wire.bodies import MASTER_ID, KVTable
from pyromq.protocol.wire.bodies_admin import ProducerTableInfo
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.promotion import PromoteBrokerRequestHeader, PromotionReport
from pyromq.remoting.errors import RemotingError

#: A promotion waits for NameServers, for the old master, and for open transactions to be read.
_PROMOTION_SECONDS: Final = 120.0
#: The producer group of test messages, as in mqadmin.
_PROBE_GROUP: Final = "PID_SMSC"


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A master and its replicas: addresses by broker id, of which 0 is the master."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The state of one broker: RocketMQ's table of names and values, and some of it typed."""

    address: str
    values: Mapping[str, str]

    @property
    def version(self) -> str:
        """Return the version, such as V4_9_7."""
        return self.values.get("brokerVersionDesc", "")

    @property
    def put_tps(self) -> float:
        """Return the messages stored per second, over the last ten seconds."""
        return _first_number(self.values.get("putTps", ""))

    @property
    def get_tps(self) -> float:
        """Return the messages delivered per second, over the last ten seconds."""
        return _first_number(self.values.get("getTransferedTps", ""))

    def number(self, name: str) -> int:
        """Return an entry that is a whole number, 0 if it is missing."""
        try:
            return int(self.values.get(name, "0"))
        except ValueError:
            return 0


@dataclass(frozen=True, slots=True)
class BrokerOverview:
    """One broker in the list of a cluster."""

    cluster: str
    broker_name: str
    #: 0 is a master, others are replicas.
    broker_id: int
    address: str
    version: str
    #: Messages per second.
    in_tps: float
    out_tps: float
    #: Waiting requests, and for how long the first one has waited (ms).
    send_queue: str
    send_wait: str
    pull_queue: str
    pull_wait: str
    #: The time that the last write waited for the page cache (ms).
    page_cache_wait: str
    #: The age of the oldest message; 0 if there is none.
    hours: float
    #: The used part of the commit log's disk, from 0 to 1.
    disk_ratio: float
    #: Messages stored and delivered, yesterday and today.
    in_yesterday: int
    out_yesterday: int
    in_today: int
    out_today: int
    #: Why the broker's figures are missing, or None.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as its master sees it."""

    address: str
    #: "pyromq", "java", or as the master calls it; "unknown" for a master of Apache's.
    kind: str
    broker_id: int | None
    #: The end of its log.
    position: int
    lag_bytes: int
    #: None if the master does not measure it.
    lag_milliseconds: int | None


@dataclass(frozen=True, slots=True)
class ReplicationState:
    """The replication of one broker."""

    address: str
    cluster: str
    broker_name: str
    broker_id: int
    #: ASYNC_MASTER, SYNC_MASTER or SLAVE.
    role: str
    log_start: int
    log_end: int
    #: Of a master.
    replicas: tuple[ReplicaState, ...] = ()
    #: Of a replica: the address that it follows, if it is connected.
    master: str | None = None
    is_connected: bool | None = None
    #: Why a replica has stopped, or why nothing is known.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PromotionCheck:
    """A condition of a promotion, and what was found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """The outcome of a request to promote a replica."""

    broker_name: str
    promoted: bool
    #: The role that the broker has now.
    role: str
    #: The id that it had as a replica, which is free now for the old master; 0 if it was a master.
    replica_id: int
    #: The end of its log. Messages of the old master above it are lost.
    log_end: int
    checks: tuple[PromotionCheck, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that is connected to a broker."""

    group: str
    client_id: str
    remote_ip: str
    language: str
    version: int
    #: Its last heartbeat, in milliseconds since the epoch.
    last_updated: int


@dataclass(frozen=True, slots=True)
class SendTimes:
    """Test messages sent to one broker."""

    cluster: str
    broker_name: str
    #: Milliseconds, without the first message.
    average: float
    sent: int
    failed: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One test message: how long it took, and what became of it."""

    milliseconds: int
    message_id: str
    offset_message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    status: str


class Clusters(Area):
    """Clusters and their brokers."""

    async def brokers(self, cluster: str | None = None) -> list[BrokerGroup]:
        """Return the registered brokers, of one cluster or of all."""
        info = await self._session.cluster_info()
        if cluster is not None:
            await self._session.brokers_of_cluster(cluster)  # raises for an unknown one
        return [
            BrokerGroup(
                name, broker, dict(sorted(info.broker_addr_table[broker].broker_addrs.items()))
            )
            for name, brokers in sorted(info.cluster_addr_table.items())
            for broker in sorted(brokers)
            if broker in info.broker_addr_table and cluster in (None, name)
        ]

    async def names(self) -> list[str]:
        """Return the names of the clusters."""
        return sorted((await self._session.cluster_info()).cluster_addr_table)

    async def name_servers(self) -> list[str]:
        """Return the addresses of the NameServers in use."""
        return list(self._session.name_servers)

    async def runtime(self, broker: str) -> RuntimeInfo:
        """Return the state of the broker at an address."""
        table = await self._session.fetch(KVTable, broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        return RuntimeInfo(broker, dict(sorted(table.table.items())))

    async def runtimes(self, cluster: str) -> list[RuntimeInfo]:
        """Return the state of all masters and replicas of a cluster.

        If some brokers fail, the error's `results` have the states of the others.
        """
        addresses = await self._session.all_of_cluster(cluster)
        found = await self._session.on_each("reading the state", addresses, self.runtime)
        return list(found.values())

    async def overview(self) -> list[BrokerOverview]:
        """Return all brokers with their figures; one that does not answer has a `problem`."""
        members = [
            (group, broker_id, address)
            for group in await self.brokers()
            for broker_id, address in group.addresses.items()
        ]
        return list(await asyncio.gather(*(self._look(*member) for member in members)))

    async def replication(self, cluster: str | None = None) -> list[ReplicationState]:
        """Return the replication of every broker, of one cluster or of all.

        Masters of Apache's do not tell: their replicas' lags are computed from the ends of the
        logs.
        """
        return [
            state
            for states in await asyncio.gather(
                *(self._replication_of(group) for group in await self.brokers(cluster))
            )
            for state in states
        ]

    async def promote(
        self, broker: str, role: str = "ASYNC_MASTER", *, force: bool = False
    ) -> Promotion:
        """Turn the replica at an address into a master; pyromq's brokers only.

        The result says whether it was promoted, and what was checked.
        """
        answer = await self._session.ask(
            broker,
            RequestCode.PROMOTE_BROKER,
            PromoteBrokerRequestHeader(role, force),
            request_timeout=_PROMOTION_SECONDS,
            accept=(ResponseCode.SYSTEM_ERROR,),
        )
        if not answer.body:
            raise refusal(broker, answer.code, answer.remark)
        report = read_body(PromotionReport, broker, answer)
        return Promotion(
            report.broker_name,
            report.promoted,
            report.role,
            report.replica_id,
            report.log_end,
            tuple(PromotionCheck(each.name, each.passed, each.detail) for each in report.checks),
        )

    async def producers(self, broker: str) -> list[ProducerState]:
        """Return the producers that are connected to the broker at an address."""
        table = await self._session.fetch(
            ProducerTableInfo, broker, RequestCode.GET_ALL_PRODUCER_INFO
        )
        return [
            ProducerState(
                group,
                each.client_id,
                each.remote_ip,
                each.language.name,
                each.version,
                each.last_update_timestamp,
            )
            for group, producers in sorted(table.data.items())
            for each in sorted(producers, key=lambda producer: producer.client_id)
        ]

    async def probe(
        self, broker_name: str, count: int = 50, size: int = 128
    ) -> AsyncIterator[ProbeResult]:
        """Send test messages to a broker, one after the other, and yield the results.

        They go to the topic of the broker's name, which every broker has. A first message, which
        opens the connection, has no result.
        """
        info = await self._session.cluster_info()
        if broker_name not in info.broker_addr_table:
            raise UnknownBrokerError(broker_name, info.broker_addr_table)
        async with self._producer() as producer:
            await _send(producer, broker_name, 16)
            for _ in range(count):
                begin = time.monotonic()
                result = await _send(producer, broker_name, size)
                yield ProbeResult(
                    int((time.monotonic() - begin) * 1000),
                    result.msg_id,
                    result.offset_msg_id,
                    result.queue.broker_name,
                    result.queue.queue_id,
                    result.queue_offset,
                    result.status.name,
                )

    async def send_times(
        self, cluster: str | None = None, count: int = 100, size: int = 128
    ) -> list[SendTimes]:
        """Send test messages to each broker and return the average times."""
        groups = await self.brokers(cluster)
        results = []
        async with self._producer() as producer:
            for group in groups:
                elapsed, sent, failed = 0.0, 0, 0
                for number in range(count):
                    begin = time.monotonic()
                    try:
                        await _send(producer, group.broker_name, size)
                        sent += 1
                    except (ClientError, RemotingError):
                        failed += 1
                    if number:
                        elapsed += time.monotonic() - begin
                average = elapsed * 1000 / max(1, count - 1)
                results.append(SendTimes(group.cluster, group.broker_name, average, sent, failed))
        return results

    # Helpers, in call order

    async def _look(self, group: BrokerGroup, broker_id: int, address: str) -> BrokerOverview:
        problem = None
        try:
            runtime = await self.runtime(address)
        except AdminError as error:
            runtime, problem = RuntimeInfo(address, {}), str(error)
        values, number = runtime.values, runtime.number
        earliest = number("earliestMessageTimeStamp")
        hours = (time.time() * 1000 - earliest) / 3_600_000 if earliest > 0 else 0.0
        return BrokerOverview(
            group.cluster,
            group.broker_name,
            broker_id,
            address,
            runtime.version,
            runtime.put_tps,
            runtime.get_tps,
            values.get("sendThreadPoolQueueSize", ""),
            values.get("sendThreadPoolQueueHeadWaitTimeMills", ""),
            values.get("pullThreadPoolQueueSize", ""),
            values.get("pullThreadPoolQueueHeadWaitTimeMills", ""),
            values.get("pageCacheLockTimeMills", ""),
            hours,
            _first_number(values.get("commitLogDiskRatio", "")),
            number("msgPutTotalTodayMorning") - number("msgPutTotalYesterdayMorning"),
            number("msgGetTotalTodayMorning") - number("msgGetTotalYesterdayMorning"),
            number("msgPutTotalTodayNow") - number("msgPutTotalTodayMorning"),
            number("msgGetTotalTodayNow") - number("msgGetTotalTodayMorning"),
            problem,
        )

    async def _replication_of(self, group: BrokerGroup) -> list[ReplicationState]:
        states = list(
            await asyncio.gather(
                *(
                    self._replication_at(group, broker_id, address)
                    for broker_id, address in group.addresses.items()
                )
            )
        )
        masters = [state for state in states if state.broker_id == MASTER_ID]
        if not masters or masters[0].replicas or masters[0].problem is not None:
            return states
        master = masters[0]
        followers = [
            ReplicaState(
                state.address,
                "unknown",
                state.broker_id,
                state.log_end,
                max(0, master.log_end - state.log_end),
                None,
            )
            for state in states
            if state.broker_id != MASTER_ID and state.problem is None
        ]
        return [
            ReplicationState(
                master.address,
                master.cluster,
                master.broker_name,
                master.broker_id,
                master.role,
                master.log_start,
                master.log_end,
                tuple(followers),
            ),
            *(state for state in states if state is not master),
        ]

    async def _replication_at(
        self, group: BrokerGroup, broker_id: int, address: str
    ) -> ReplicationState:
        cluster, name = group.cluster, group.broker_name
        try:
            figures = await self._figures(address)
            if figures is not None:
                return _from_figures(figures, cluster, name, broker_id, address)
            runtime = await self.runtime(address)
        except AdminError as error:
            return ReplicationState(
                address, cluster, name, broker_id, "UNKNOWN", 0, 0, problem=str(error)
            )
        return ReplicationState(
            address,
            cluster,
            name,
            broker_id,
            "MASTER" if broker_id == MASTER_ID else "SLAVE",
            runtime.number("commitLogMinOffset"),
            runtime.number("commitLogMaxOffset"),
        )

    async def _figures(self, address: str) -> dict[str, Any] | None:
        """Return the figures of pyromq's broker, or None from another one."""
        try:
            answer = await self._session.ask(address, RequestCode.GET_REPLICATION_STATUS)
        except UnsupportedRequestError:
            return None
        try:
            figures = orjson.loads(answer.body)
        except orjson.JSONDecodeError as error:
            raise UnreadableAnswerError(address, error) from error
        if not isinstance(figures, dict):
            raise UnreadableAnswerError(address, ValueError("not a JSON object"))
        return figures

    def _producer(self) -> Producer:
        options = self._session.options
        return Producer(
            self._session.name_servers,
            group=_PROBE_GROUP,
            send_timeout=self._session.settings.request_timeout,
            **options,
        )


async def _send(producer: Producer, broker_name: str, size: int) -> SendResult:
    return await producer.send(Message(broker_name, b"a" * size))


def _from_figures(
    figures: Mapping[str, Any], cluster: str, name: str, broker_id: int, address: str
) -> ReplicationState:
    try:
        following = figures["following"] or {}
        return ReplicationState(
            address,
            cluster,
            name,
            broker_id,
            str(figures["role"]),
            int(figures["logStart"]),
            int(figures["logEnd"]),
            tuple(
                ReplicaState(
                    each["address"],
                    each["kind"],
                    each["broker_id"],
                    each["acked"],
                    each["lag_bytes"],
                    each["lag_millis"],
                )
                for each in figures["replicas"]
            ),
            following.get("master"),
            following.get("is_connected"),
            following.get("stopped"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableAnswerError(address, error) from error


def _first_number(text: str) -> float:
    """Return the first of several numbers, 0 if there is none."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0
