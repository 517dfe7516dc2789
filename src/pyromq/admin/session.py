"""Requests of the admin API: to one server, to NameServers, and to the brokers of a cluster.

An `Admin` has one `AdminSession`, which owns the client's session (connections, signatures, TLS).
Nothing is cached: an operator wants the present state. Every failure is an `AdminError`. Runs on
the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    PartialFailureError,
    UnknownBrokerError,
    UnknownClusterError,
    UnknownTopicError,
    UnreachableError,
    UnreadableAnswerError,
    refusal,
)
from pyromq.client.options import ClientOptions, Settings
from pyromq.client.session.session import Session
from pyromq.protocol.wire.bodies import (
    MASTER_ID,
    ClusterInfo,
    HeartbeatData,
    TopicList,
    TopicRouteData,
)
from pyromq.protocol.wire.body_codec import Body
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import GetRouteInfoRequestHeader
from pyromq.remoting.errors import RemotingError

_BodyType = TypeVar("_BodyType", bound=Body)
_HeaderType = TypeVar("_HeaderType", bound=Header)
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
#: Takes the number of finished items and of all.
Progress = Callable[[int, int], None]

#: Requests to brokers in flight at a time.
_CONCURRENT: Final = 16


class AdminSession:
    """Sends admin requests."""

    def __init__(self, settings: Settings, options: ClientOptions) -> None:
        self.settings = settings
        #: The options to create a producer or consumer that uses the same account and TLS.
        self.options = options
        #: The session of the client library, for code that needs one (`QueueAccess`).
        self.client = Session(settings, HeartbeatData)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Return the addresses of the NameServers."""
        return self.settings.name_servers

    # One server

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        request_timeout: float | None = None,
        accept: Collection[int] = (),
    ) -> RemotingCommand:
        """Return a server's response; raises AdminError unless its code is SUCCESS or accepted."""
        self.client.check_running()
        request = RemotingCommand(
            code, ext_fields={} if header is None else header.encode(), body=body
        )
        seconds = self.settings.request_timeout if request_timeout is None else request_timeout
        try:
            answer = await self.client.remoting.request(address, request, seconds)
        except RemotingError as error:
            raise UnreachableError(address, error) from error
        if answer.code != ResponseCode.SUCCESS and answer.code not in accept:
            raise refusal(address, answer.code, answer.remark)
        return answer

    async def fetch(
        self,
        body_class: type[_BodyType],
        address: str,
        code: RequestCode,
        header: Header | None = None,
        *,
        request_timeout: float | None = None,
    ) -> _BodyType:
        """Return the body of a server's response; an empty one counts as an empty object."""
        answer = await self.ask(address, code, header, request_timeout=request_timeout)
        return read_body(body_class, address, answer)

    # NameServers

    async def ask_name_server(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        accept: Collection[int] = (),
        elsewhere: Collection[int] = (),
    ) -> tuple[str, RemotingCommand]:
        """Return the first answer of a NameServer and its address.

        The next one is asked if a NameServer cannot be reached. `accept` has codes beside SUCCESS
        that are answers. After a code in `elsewhere` the others are asked as well: a NameServer
        that has just started knows less than they do.
        """
        failures = {}
        second_best = None
        for address in self.name_servers:
            try:
                answer = await self.ask(address, code, header, body, accept=(*accept, *elsewhere))
            except UnreachableError as error:
                failures[address] = error
                continue
            if answer.code not in elsewhere:
                return address, answer
            second_best = second_best or (address, answer)
        if second_best is not None:
            return second_best
        if len(failures) == 1:
            raise next(iter(failures.values()))
        raise UnreachableError(
            ", ".join(failures), "; ".join(str(error) for error in failures.values())
        )

    async def ask_every_name_server(
        self,
        what: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        addresses: Iterable[str] | None = None,
    ) -> dict[str, RemotingCommand]:
        """Return the answers of all NameServers (or of `addresses`); `what` names the change.

        Raises PartialFailureError if one of several failed.
        """
        return await self.on_each(
            what,
            self.name_servers if addresses is None else addresses,
            lambda address: self.ask(address, code, header, body),
        )

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters and brokers that are registered."""
        address, answer = await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return read_body(ClusterInfo, address, answer)

    async def topic_names(self) -> set[str]:
        """Return the names of all topics that a NameServer knows."""
        address, answer = await self.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return read_body(TopicList, address, answer).topic_list

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic; raises UnknownTopicError."""
        route = await self.find_route(topic)
        if route is None:
            raise await self.unknown_topic(topic)
        return route

    async def find_route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers and queues of a topic, or None if no NameServer knows it."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        address, answer = await self.ask_name_server(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, header, elsewhere=(ResponseCode.TOPIC_NOT_EXIST,)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return read_body(TopicRouteData, address, answer)

    async def unknown_topic(self, topic: str) -> UnknownTopicError:
        """Return the error about a topic without a route, with similar names."""
        try:
            known = await self.topic_names()
        except AdminError:
            known = set()  # suggestions are a courtesy
        return UnknownTopicError(topic, known)

    # Brokers

    async def masters_of_topic(self, topic: str) -> dict[str, str]:
        """Return the master's address of each broker of a topic, by broker name (`masters_of`)."""
        return masters_of(await self.route(topic))

    async def brokers_of_cluster(self, cluster: str) -> dict[str, dict[int, str]]:
        """Return a cluster's addresses by broker name and id; raises UnknownClusterError."""
        info = await self.cluster_info()
        if cluster not in info.cluster_addr_table:
            raise UnknownClusterError(cluster, info.cluster_addr_table)
        return {
            name: dict(sorted(info.broker_addr_table[name].broker_addrs.items()))
            for name in sorted(info.cluster_addr_table[cluster])
            if name in info.broker_addr_table
        }

    async def masters_of_cluster(self, cluster: str) -> list[str]:
        """Return the addresses of a cluster's masters; raises UnknownClusterError."""
        brokers = await self.brokers_of_cluster(cluster)
        return [ids[MASTER_ID] for ids in brokers.values() if MASTER_ID in ids]

    async def all_of_cluster(self, cluster: str) -> list[str]:
        """Return the addresses of a cluster's masters and replicas."""
        brokers = await self.brokers_of_cluster(cluster)
        return [address for ids in brokers.values() for address in ids.values()]

    async def master_of_broker(self, broker_name: str) -> str:
        """Return the address of a broker's master by the broker's name."""
        info = await self.cluster_info()
        data = info.broker_addr_table.get(broker_name)
        if data is None:
            raise UnknownBrokerError(broker_name, info.broker_addr_table)
        if MASTER_ID not in data.broker_addrs:
            raise NotFoundError(f"broker {broker_name!r} has no master at present")
        return data.broker_addrs[MASTER_ID]

    async def targets(
        self, broker: str | None, cluster: str | None, *, replicas: bool = False
    ) -> list[str]:
        """Return the addresses that a pair of broker address and cluster name means.

        Exactly one of the two must be given. With `replicas`, those of a cluster are included.
        """
        if (broker is None) == (cluster is None):
            raise AdminError("give either the address of a broker or the name of a cluster")
        if broker is not None:
            return [broker]
        assert cluster is not None
        return await (
            self.all_of_cluster(cluster) if replicas else self.masters_of_cluster(cluster)
        )

    async def on_each(
        self,
        what: str,
        addresses: Iterable[str],
        call: Callable[[str], Awaitable[_Result]],
    ) -> dict[str, _Result]:
        """Call for all addresses at once and return the results by address.

        Every call is made, whatever becomes of the others. One address raises its own error;
        several raise PartialFailureError, with `what` as the name of the change.
        """
        addresses = list(dict.fromkeys(addresses))
        room = asyncio.Semaphore(_CONCURRENT)

        async def limited(address: str) -> _Result:
            async with room:
                return await call(address)

        outcomes = await asyncio.gather(*map(limited, addresses), return_exceptions=True)
        results: dict[str, _Result] = {}
        failures: dict[str, Exception] = {}
        for address, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, AdminError):
                failures[address] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results[address] = outcome
        if failures and len(addresses) == 1:
            raise next(iter(failures.values()))
        if failures:
            raise PartialFailureError(what, results, failures, list(results.values()))
        return results

    async def for_all(
        self,
        items: Sequence[_Item],
        call: Callable[[_Item], Awaitable[_Result]],
        on_progress: Progress | None = None,
    ) -> list[_Result]:
        """Call for many items, some at a time, and return the results in order.

        The first exception ends it. `on_progress` is called with the number of results and of
        items.
        """
        results: dict[int, _Result] = {}
        waiting = iter(enumerate(items))

        async def work() -> None:
            for index, item in waiting:
                results[index] = await call(item)
                if on_progress is not None:
                    on_progress(len(results), len(items))

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_CONCURRENT, len(items))):
                    tasks.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [results[index] for index in range(len(items))]


def masters_of(route: TopicRouteData) -> dict[str, str]:
    """Return the master's address of each broker, by broker name.

    A broker without a master gives its replica with the lowest id, as Java's tools do.
    """
    return {
        broker.broker_name: broker.broker_addrs[min(broker.broker_addrs)]
        for broker in sorted(route.broker_datas, key=lambda each: each.broker_name)
        if broker.broker_addrs
    }


class Area:
    """Base of the parts of the admin API (`admin.topics`, `admin.cluster`, ...)."""

    def __init__(self, session: AdminSession) -> None:
        self._session = session


def read_body(body_class: type[_BodyType], address: str, answer: RemotingCommand) -> _BodyType:
    """Decode a response's body; raises UnreadableAnswerError."""
    try:
        return body_class.decode(answer.body or b"{}")
    except ValueError as error:
        raise UnreadableAnswerError(address, error) from error


def read_header(
    header_class: type[_HeaderType], address: str, answer: RemotingCommand
) -> _HeaderType:
    """Decode a response's header; raises UnreadableAnswerError."""
    try:
        return header_class.decode(answer.ext_fields)
    except ValueError as error:
        raise UnreadableAnswerError(address, error) from error


def read_text(address: str, answer: RemotingCommand) -> str:
    """Decode a response's body as UTF-8; raises UnreadableAnswerError."""
    try:
        return bytes(answer.body).decode()
    except UnicodeDecodeError as error:
        raise UnreadableAnswerError(address, error) from error
