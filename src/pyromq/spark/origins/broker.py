"""A cluster's brokers as an origin: NameServers list the topics, bulk pulls read the records.

    origin = BrokerOrigin(ConnectionSettings(("127.0.0.1:9876",)))
    for block in origin.blocks(QueueRange(queue, 0, 1_000_000)): ...

This module asks about topics, queues and offsets, and chooses the addresses; `window` reads. An
origin is a small blocking client with its own connections, one per server. Its reads belong to no
consumer group, so nothing counts as consumed; only `commit_offsets` names a group. An origin
belongs to one thread.

A replica may be behind its master. So only a master tells where a queue begins and ends; a running
stream, which knows where it is, may ask a replica as well (`latest_bounds`). Records are the same
everywhere: a read whose master goes away resumes at a replica at once, and waits for the master
when the replica lacks a record. No loss is reported on a replica's word.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from pyromq.client.consumer.first_commit import KnownOffsetTables, OffsetTable
from pyromq.client.consumer.pull_request import ANONYMOUS_GROUP, PullNumbers, pull_command
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.session.routes import MASTER_ID
from pyromq.protocol.message.bulk import read_columns
from pyromq.protocol.message.sysflag import is_readable
from pyromq.protocol.names import is_system_topic
from pyromq.protocol.wire import acl
from pyromq.protocol.wire.bodies import ClusterInfo, TopicList, TopicRouteData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.header_codec import Header
from pyromq.protocol.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyromq.remoting.blocking import BlockingConnection
from pyromq.remoting.errors import RemotingConnectError, RemotingError
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
    UnreachableError,
)
from pyromq.spark.origins.retries import Backoff
from pyromq.spark.origins.settings import ConnectionSettings as ConnectionSettings
from pyromq.spark.origins.window import PULL_BYTES, PullWindow, check_response
from pyromq.tls.client import client_tls
from pyromq.tls.errors import TlsError

logger = logging.getLogger(__name__)

#: Seconds between attempts to connect to a broker that does not listen yet.
_CONNECT_PAUSE: Final = 0.2
#: The first pause, in seconds, of a read that lost its servers.
_RECONNECT_PAUSE: Final = 0.5
#: Requests about offsets that are in flight on a connection at a time.
_MAX_PIPELINED: Final = 64


class _Place(NamedTuple):
    """A broker to read from."""

    address: str
    is_replica: bool
    #: Whether no other broker has the same records.
    is_only: bool


class BrokerOrigin:
    """The topics, queues and records of a cluster; a subscription selects among the records."""

    def __init__(
        self, settings: ConnectionSettings, *, subscription: Subscription | None = None
    ) -> None:
        self._settings = settings
        self._subscription = subscription or Subscription()
        try:
            self._tls = client_tls(settings.tls)
        except TlsError as error:
            raise OriginError(str(error)) from error
        self._connections: dict[str, BlockingConnection] = {}
        self._routes: dict[str, TopicRouteData] = {}
        #: Addresses that failed, until all brokers with the same records have.
        self._failed: set[str] = set()
        #: (group, address) of brokers that know the group.
        self._introduced: set[tuple[str, str]] = set()
        self._offset_tables = KnownOffsetTables()

    def topics(self) -> list[str]:
        """Return all topics other than system topics; includes retry and dead-letter topics."""
        listed = self._ask_name_server(
            RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        cluster = self._cluster()
        # Every broker has topics named after itself and its cluster.
        own = cluster.broker_addr_table.keys() | cluster.cluster_addr_table.keys()
        names = TopicList.decode(listed.body).topic_list - own
        return sorted(name for name in names if not is_system_topic(name))

    def brokers(self) -> dict[str, str]:
        """Return the address of each broker by name: the master's, or else a replica's."""
        table = self._cluster().broker_addr_table
        return {
            name: data.broker_addrs[min(data.broker_addrs)]
            for name, data in sorted(table.items())
            if data.broker_addrs
        }

    def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Return a server's response to any request. Raises OriginError if it is not a success."""
        question = f"{RequestCode(command.code).name} at {address}"
        connection = self._connection(address)
        try:
            answer = connection.request(command)
        except RemotingError as error:
            self._drop(connection)
            raise UnreachableError(f"{question}: {error}") from error
        check_response(answer, question)
        return answer

    def queues(self, topic: str) -> list[Queue]:
        """Return the readable queues of a topic at all brokers that NameServers know."""
        self._routes.pop(topic, None)
        route = self._route(topic)
        if route is None:
            return []
        brokers = {data.broker_name for data in route.broker_datas if data.broker_addrs}
        return sorted(
            Queue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if is_readable(data.perm) and data.broker_name in brokers
            for queue_id in range(data.read_queue_nums)
        )

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        """Return the offsets of each queue, as reported by its master."""
        return self._bounds({queue: self._master(queue) for queue in queues})

    def latest_bounds(
        self, queues: Collection[Queue]
    ) -> tuple[dict[Queue, Bounds], frozenset[Queue]]:
        """Return the offsets of each queue, and the queues of which only a replica told them."""
        found: dict[Queue, Bounds] = {}
        lagging: set[Queue] = set()
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for some in by_broker.values():
            try:
                has_replicas = len(self._ids(some[0])) > 1
                found |= self._bounds(
                    {queue: self._master(queue) for queue in some}, waits=not has_replicas
                )
            except UnreachableError as error:
                found |= self._replica_bounds(some, error)
                lagging.update(some)
                for queue in some:  # so that the next call finds a master that is back
                    self._routes.pop(queue.topic, None)
        return found, frozenset(lagging)

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Return exact offsets, although brokers only return nearby ones: see `_exact_offset`."""
        bounds = self.bounds(timestamps.keys())
        hints = self._offsets(
            {
                queue: SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamps[queue])
                for queue in bounds
            },
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {queue: self._master(queue) for queue in bounds},
        )
        return {
            queue: self._exact_offset(queue, bounds[queue], hints.get(queue, 0), timestamps[queue])
            for queue in bounds
        }

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit the offsets of a consumer group, so that tools show its lag.

        Masters keep them; a replica gets them only while the NameServers know no master.
        """
        for queue, offset in offsets.items():
            self._introduce(group, queue, offset)

        def table_of(queue: Queue) -> OffsetTable:
            return self._home(queue), group, queue.topic

        first, rest = self._offset_tables.split_first(offsets, table_of)
        self._set_offsets(group, first)
        for queue in first:
            self._offset_tables.add(table_of(queue))
        self._set_offsets(group, rest)

    def is_away(self, broker_name: str) -> bool:
        """Return whether the NameServers do not know the broker."""
        data = self._cluster().broker_addr_table.get(broker_name)
        return data is None or not data.broker_addrs

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records of a range, read by overlapping pulls.

        A read that loses its servers resumes after the last record that it handed out.
        """
        return self._blocks(wanted, self._subscription)

    def close(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.popitem()[1].close()

    def _blocks(
        self, wanted: QueueRange, subscription: Subscription
    ) -> Iterator[RecordBlock | LostRecords]:
        def pull(offset: int, count: int) -> RemotingCommand:
            return pull_command(
                ANONYMOUS_GROUP,
                wanted.queue.topic,
                wanted.queue.queue_id,
                subscription,
                PullNumbers(offset, count),
                max_bytes=PULL_BYTES,
            )

        is_complete = subscription == Subscription()
        backoff = Backoff(_RECONNECT_PAUSE, patience=self._settings.reconnect_timeout)
        while True:
            window: PullWindow | None = None
            connection: BlockingConnection | None = None
            place: _Place | None = None
            try:
                place = self._place(wanted.queue)
                connection = self._connection(place.address, waits=place.is_only)
                window = PullWindow(
                    connection,
                    pull,
                    wanted,
                    is_complete=is_complete,
                    is_replica=place.is_replica,
                )
                yield from window.blocks()
                return
            except UnreachableError as error:
                if window is not None and window.position > wanted.start:
                    wanted = wanted._replace(start=window.position)
                    backoff.reset()
                self._routes.pop(wanted.queue.topic, None)
                if place is not None and self._has_another(wanted.queue, place.address):
                    logger.warning("reading from another replica: %s", error)
                elif not backoff.wait(error):
                    raise
            finally:
                if window is not None and connection is not None and not window.is_finished:
                    # Responses that nobody waits for are in flight.
                    self._drop(connection)

    def _replica_bounds(
        self, queues: Collection[Queue], error: UnreachableError
    ) -> dict[Queue, Bounds]:
        """Ask the replicas of one broker, one after the other; raise `error` without any."""
        ids = self._ids(next(iter(queues)))
        for broker_id in sorted(ids.keys() - {MASTER_ID}):
            try:
                return self._bounds(dict.fromkeys(queues, ids[broker_id]))
            except UnreachableError as another:
                logger.warning("no offsets from a replica: %s", another)
        raise error

    def _bounds(self, addresses: Mapping[Queue, str], *, waits: bool = True) -> dict[Queue, Bounds]:
        for address in addresses.values():
            self._connection(address, waits=waits)
        first = self._offsets(
            {queue: GetMinOffsetRequestHeader(queue.topic, queue.queue_id) for queue in addresses},
            RequestCode.GET_MIN_OFFSET,
            addresses,
        )
        end = self._offsets(
            {queue: GetMaxOffsetRequestHeader(queue.topic, queue.queue_id) for queue in addresses},
            RequestCode.GET_MAX_OFFSET,
            addresses,
        )
        return {
            queue: Bounds(min(max(first[queue], 0), end[queue]), end[queue])
            for queue in addresses
            if queue in first and queue in end
        }

    def _introduce(self, group: str, queue: Queue, offset: int) -> None:
        """Pull once for a group: brokers list only groups that have pulled."""
        address = self._home(queue)
        if (group, address) in self._introduced:
            return
        connection = self._connection(address)
        numbers = PullNumbers(offset, 1)
        try:
            connection.request(
                pull_command(group, queue.topic, queue.queue_id, Subscription(), numbers)
            )
        except RemotingError as error:
            self._drop(connection)
            raise UnreachableError(f"first pull of {group} at {address}: {error}") from error
        self._introduced.add((group, address))

    def _set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        self._ask_each(
            {
                queue: UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, offset)
                for queue, offset in offsets.items()
            },
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {queue: self._home(queue) for queue in offsets},
        )

    def _exact_offset(self, queue: Queue, bounds: Bounds, hint: int, timestamp: int) -> int:
        """Return the first offset stored at or after a time.

        A broker returns an offset close to it, which may be an earlier message's. A binary
        search over the messages' own times starts there.
        """
        low, high = bounds
        middle = min(max(hint, low), high - 1)
        while low < high:
            if self._store_time(queue, middle) < timestamp:
                low = middle + 1
                middle = low if middle == hint else (low + high) // 2
            else:
                high = middle
                middle = high - 1 if middle == hint else (low + high) // 2
            middle = min(max(middle, low), max(high - 1, low))
        return low

    def _store_time(self, queue: Queue, offset: int) -> int:
        for block in self._blocks(QueueRange(queue, offset, offset + 1), Subscription()):
            if isinstance(block, RecordBlock) and block.starts.size:
                return int(read_columns(block.buffer, block.starts).column("store_timestamp")[0])
        return -1  # expired since: older than every message that is left

    def _offsets(
        self, asked: Mapping[Queue, Header], code: RequestCode, addresses: Mapping[Queue, str]
    ) -> dict[Queue, int]:
        return {
            queue: GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset
            for queue, answer in self._ask_each(asked, code, addresses).items()
        }

    def _ask_each(
        self, asked: Mapping[Queue, Header], code: RequestCode, addresses: Mapping[Queue, str]
    ) -> dict[Queue, RemotingCommand]:
        """Return the responses of the brokers at these addresses; requests are pipelined."""
        by_address: dict[str, list[Queue]] = {}
        for queue in asked:
            by_address.setdefault(addresses[queue], []).append(queue)
        answers: dict[Queue, RemotingCommand] = {}
        for address, queues in by_address.items():
            connection = self._connection(address)
            try:
                for start in range(0, len(queues), _MAX_PIPELINED):
                    waiting = {
                        connection.send(
                            RemotingCommand(code, ext_fields=asked[queue].encode())
                        ): queue
                        for queue in queues[start : start + _MAX_PIPELINED]
                    }
                    while waiting:
                        answer = connection.receive().command
                        queue = waiting.pop(answer.opaque)
                        check_response(answer, f"{code.name} of {queue} at {address}")
                        answers[queue] = answer
            except RemotingError as error:
                self._drop(connection)
                raise UnreachableError(f"{code.name}: {error}") from error
            except OriginError:
                self._drop(connection)
                raise
        return answers

    def _master(self, queue: Queue) -> str:
        """Return the address of a queue's master."""
        ids = self._ids(queue)
        if MASTER_ID not in ids:
            self._routes.pop(queue.topic, None)
            replicas = ", ".join(f"{ids[key]} (id {key})" for key in sorted(ids))
            raise UnreachableError(
                f"{queue}: {queue.broker_name} has no master: only replica {replicas}"
            )
        return ids[MASTER_ID]

    def _home(self, queue: Queue) -> str:
        """Return the address that keeps the offsets of groups."""
        ids = self._ids(queue)
        return ids[min(ids)]

    def _place(self, queue: Queue) -> _Place:
        """Return from where to read a queue: the master, or a replica while the master fails."""
        ids = self._ids(queue)
        if self._failed.issuperset(ids.values()):
            self._failed.difference_update(ids.values())
        broker_id = min(key for key, address in ids.items() if address not in self._failed)
        return _Place(ids[broker_id], broker_id != MASTER_ID, len(ids) == 1)

    def _has_another(self, queue: Queue, failed: str) -> bool:
        """Note a failure; return whether another broker has not failed since the last pause."""
        self._failed.add(failed)
        try:
            return not self._failed.issuperset(self._ids(queue).values())
        except OriginError:  # of the NameServers: worth a pause
            return False

    def _ids(self, queue: Queue) -> dict[int, str]:
        """Return the addresses of a queue's brokers by id; there is at least one."""
        route = self._route(queue.topic)
        for data in route.broker_datas if route else ():
            if data.broker_name == queue.broker_name and data.broker_addrs:
                return data.broker_addrs
        self._routes.pop(queue.topic, None)
        raise UnreachableError(
            f"{queue}: the NameServers ({', '.join(self._settings.name_servers)}) know no broker "
            f"{queue.broker_name!r} with topic {queue.topic!r}"
        )

    def _cluster(self) -> ClusterInfo:
        answer = self._ask_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return ClusterInfo.decode(answer.body)

    def _route(self, topic: str) -> TopicRouteData | None:
        known = self._routes.get(topic)
        if known is not None:
            return known
        command = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ext_fields=GetRouteInfoRequestHeader(topic).encode(),
        )
        answer = self._ask_name_server(command, ResponseCode.TOPIC_NOT_EXIST)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        route = self._routes[topic] = TopicRouteData.decode(answer.body)
        return route

    def _ask_name_server(self, command: RemotingCommand, *allowed: ResponseCode) -> RemotingCommand:
        problems: list[Exception] = []
        for address in self._settings.name_servers:
            connection: BlockingConnection | None = None
            try:
                connection = self._connect(address)
                answer = connection.request(command)
                if answer.code not in allowed:
                    check_response(answer, f"{RequestCode(command.code).name} at {address}")
                return answer
            except (OriginError, RemotingError) as error:
                if connection is not None:
                    self._drop(connection)
                problems.append(error)
        text = "; ".join(map(str, problems))
        if any(isinstance(each, RemotingError | UnreachableError) for each in problems):
            raise UnreachableError(f"no NameServer answers: {text}")
        raise OriginError(f"no NameServer answers: {text}")

    def _connection(self, address: str, *, waits: bool = True) -> BlockingConnection:
        """Return the connection to a broker; wait for one that is restarting."""
        deadline = time.monotonic() + (self._settings.request_timeout if waits else 0.0)
        while True:
            try:
                return self._connect(address)
            except RemotingConnectError as error:
                if time.monotonic() + _CONNECT_PAUSE > deadline:
                    raise UnreachableError(str(error)) from error
            time.sleep(_CONNECT_PAUSE)

    def _connect(self, address: str) -> BlockingConnection:
        known = self._connections.get(address)
        if known is not None:
            return known
        settings = self._settings
        connection = self._connections[address] = BlockingConnection(
            address,
            timeout=settings.request_timeout,
            tls=self._tls,
            sign=self._sign if settings.access_key else None,
        )
        return connection

    def _sign(self, command: RemotingCommand) -> None:
        settings = self._settings
        acl.sign(command.ext_fields, command.body, settings.access_key, settings.secret_key)

    def _drop(self, connection: BlockingConnection) -> None:
        connection.close()
        self._connections.pop(connection.address, None)
