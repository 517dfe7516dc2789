"""A cluster's brokers as an origin: topics by its NameServers, records by bulk pulls.

    origin = BrokerOrigin(ConnectionSettings(("127.0.0.1:9876",)))
    for block in origin.blocks(QueueRange(queue, 0, 1_000_000)): ...

How much a pull carries is the broker's to say: ours gives megabytes to those who ask
(`maxMsgBytes`), Java's 4.9 gives 32 messages whatever one asks. The first answer tells, and
then so many pulls are kept on their way that megabytes are in flight either way (`_Window`).

Readers belong to no group: what they read is not counted as consumed. For one thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from pyromq.client.consumer.queue_access import ANONYMOUS_GROUP
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.bulk import read_columns, record_places, record_starts
from pyromq.protocol.message.sysflag import PULL_SUBSCRIPTION, is_readable
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
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyromq.remoting.blocking import BlockingConnection, Reply
from pyromq.remoting.errors import RemotingConnectError, RemotingError
from pyromq.remoting.tls import client_context
from pyromq.spark.options import RECONNECT_SECONDS
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

#: What a pull asks for.
_BULK_BYTES: Final = 4 * 1024 * 1024
_BULK_COUNT: Final = 16_384
#: Bytes that are kept on their way, in so many pulls.
_IN_FLIGHT_BYTES: Final = 12 * 1024 * 1024
_MIN_PULLS: Final = 3
_MAX_PULLS: Final = 8
#: Pulls that carry a few kilobytes: more of them.
_MAX_SMALL_PULLS: Final = 64
_SMALL: Final = 512 * 1024
#: A busy broker is asked again after this, twice as long each time, so often.
_BUSY_SECONDS: Final = 0.05
_BUSY_TIMES: Final = 8
_CONNECT_AGAIN_SECONDS: Final = 0.2
#: The first pause of a read whose servers are gone.
_RECONNECT_SECONDS: Final = 0.5
#: Requests of a kind that go out before their answers are read.
_ASKED_AT_ONCE: Final = 64


class ConnectionSettings(NamedTuple):
    """How a cluster is reached."""

    name_servers: tuple[str, ...]
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    #: For one answer, or for the next bytes of a long one.
    request_timeout: float = 10.0
    #: How long a read under way waits for servers that are gone.
    reconnect_timeout: float = RECONNECT_SECONDS


class BrokerOrigin:
    """Reads from the brokers of a cluster; with a subscription, only what it selects."""

    def __init__(
        self, settings: ConnectionSettings, *, subscription: Subscription | None = None
    ) -> None:
        self._settings = settings
        self._subscription = subscription or Subscription()
        self._tls = client_context(settings.tls)
        self._connections: dict[str, BlockingConnection] = {}
        self._routes: dict[str, TopicRouteData] = {}
        #: (group, address) that know each other; (group, topic, address) with an offset there.
        self._introduced: set[tuple[str, str]] = set()
        self._with_offsets: set[tuple[str, str, str]] = set()

    def topics(self) -> list[str]:
        """All topics but those of the system; retry and dead-letter topics are among them."""
        listed = self._ask_name_server(
            RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        cluster = self._cluster()
        # Every broker has topics with its own and its cluster's name.
        own = cluster.broker_addr_table.keys() | cluster.cluster_addr_table.keys()
        names = TopicList.decode(listed.body).topic_list - own
        return sorted(name for name in names if not is_system_topic(name))

    def brokers(self) -> dict[str, str]:
        """The address of each broker by its name: the master's, or that of a replica."""
        table = self._cluster().broker_addr_table
        return {
            name: data.broker_addrs[min(data.broker_addrs)]
            for name, data in sorted(table.items())
            if data.broker_addrs
        }

    def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """The answer of one server to any question; OriginError when it is no success."""
        question = f"{RequestCode(command.code).name} at {address}"
        connection = self._connection(address)
        try:
            answer = connection.request(command)
        except RemotingError as error:
            self._drop(connection)
            raise UnreachableError(f"{question}: {error}") from error
        _check(answer, question)
        return answer

    def queues(self, topic: str) -> list[Queue]:
        """The readable queues of a topic at all brokers that can be reached."""
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
        """The offsets of each queue, as its broker tells them."""
        first = self._offsets(
            {queue: GetMinOffsetRequestHeader(queue.topic, queue.queue_id) for queue in queues},
            RequestCode.GET_MIN_OFFSET,
        )
        end = self._offsets(
            {queue: GetMaxOffsetRequestHeader(queue.topic, queue.queue_id) for queue in queues},
            RequestCode.GET_MAX_OFFSET,
        )
        return {
            queue: Bounds(min(max(first[queue], 0), end[queue]), end[queue])
            for queue in queues
            if queue in first and queue in end
        }

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        """Exact, whatever the broker makes of a time: see `_exact_offset`."""
        bounds = self.bounds(timestamps.keys())
        hints = self._offsets(
            {
                queue: SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamps[queue])
                for queue in bounds
            },
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        )
        return {
            queue: self._exact_offset(queue, bounds[queue], hints.get(queue, 0), timestamps[queue])
            for queue in bounds
        }

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Tell the brokers how far a consumer group is, so that its lag can be seen."""
        first: dict[tuple[str, str, str], Queue] = {}
        for queue, offset in offsets.items():
            self._introduce(group, queue, offset)
            place = (group, queue.topic, self._address(queue))
            if place not in self._with_offsets:
                first.setdefault(place, queue)
        # Java's brokers lose some of the first ones of a topic that reach them together.
        alone = {queue: offsets[queue] for queue in first.values()}
        self._set_offsets(group, alone)
        self._with_offsets.update(first)
        self._set_offsets(group, {q: offset for q, offset in offsets.items() if q not in alone})

    def is_away(self, broker_name: str) -> bool:
        """Whether NameServers do not know the broker."""
        data = self._cluster().broker_addr_table.get(broker_name)
        return data is None or not data.broker_addrs

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        """The records of a range, by pulls that overlap.

        A read whose servers go away continues behind what it has handed out when they are back.
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
            return _pull(ANONYMOUS_GROUP, wanted.queue, offset, count, subscription, _BULK_BYTES)

        is_complete = subscription == Subscription()
        backoff = Backoff(_RECONNECT_SECONDS, patience=self._settings.reconnect_timeout)
        while True:
            window: _Window | None = None
            connection: BlockingConnection | None = None
            try:
                connection = self._connection(self._address(wanted.queue))
                window = _Window(connection, pull, wanted, is_complete=is_complete)
                yield from window.blocks()
                return
            except UnreachableError as error:
                if window is not None and window.position > wanted.start:
                    wanted = wanted._replace(start=window.position)
                    backoff.reset()
                self._routes.pop(wanted.queue.topic, None)
                if not backoff.wait(error):
                    raise
            finally:
                if window is not None and connection is not None and not window.is_finished:
                    # Answers are on their way that nobody waits for.
                    self._drop(connection)

    def _introduce(self, group: str, queue: Queue, offset: int) -> None:
        """Have a broker know a group: it lists only groups that have once asked for messages."""
        address = self._address(queue)
        if (group, address) in self._introduced:
            return
        connection = self._connection(address)
        try:
            connection.request(_pull(group, queue, offset, 1, Subscription(), None))
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
        )

    def _exact_offset(self, queue: Queue, bounds: Bounds, hint: int, timestamp: int) -> int:
        """The first offset stored at or after a time.

        Brokers answer with an offset near it, which may be that of an earlier message. It is
        where a binary search by the messages' own times begins.
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
        return -1  # taken by retention meanwhile: it is older than anything that is left

    def _offsets(self, asked: Mapping[Queue, Header], code: RequestCode) -> dict[Queue, int]:
        return {
            queue: GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset
            for queue, answer in self._ask_each(asked, code).items()
        }

    def _ask_each(
        self, asked: Mapping[Queue, Header], code: RequestCode
    ) -> dict[Queue, RemotingCommand]:
        """The answers of the queues' brokers; many questions are on their way at once."""
        by_address: dict[str, list[Queue]] = {}
        for queue in asked:
            by_address.setdefault(self._address(queue), []).append(queue)
        answers: dict[Queue, RemotingCommand] = {}
        for address, queues in by_address.items():
            connection = self._connection(address)
            try:
                for start in range(0, len(queues), _ASKED_AT_ONCE):
                    waiting = {
                        connection.send(
                            RemotingCommand(code, ext_fields=asked[queue].encode())
                        ): queue
                        for queue in queues[start : start + _ASKED_AT_ONCE]
                    }
                    while waiting:
                        answer = connection.receive().command
                        queue = waiting.pop(answer.opaque)
                        _check(answer, f"{code.name} of {queue} at {address}")
                        answers[queue] = answer
            except RemotingError as error:
                self._drop(connection)
                raise UnreachableError(f"{code.name}: {error}") from error
            except OriginError:
                self._drop(connection)
                raise
        return answers

    def _address(self, queue: Queue) -> str:
        route = self._route(queue.topic)
        for data in route.broker_datas if route else ():
            if data.broker_name == queue.broker_name and data.broker_addrs:
                # A replica where there is no master: it has all that was copied in time.
                return data.broker_addrs[min(data.broker_addrs)]
        self._routes.pop(queue.topic, None)
        raise UnreachableError(
            f"{queue}: no broker {queue.broker_name!r} has the topic {queue.topic!r} now; "
            f"NameServers asked: {', '.join(self._settings.name_servers)}"
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
                    _check(answer, f"{RequestCode(command.code).name} at {address}")
                return answer
            except (OriginError, RemotingError) as error:
                if connection is not None:
                    self._drop(connection)
                problems.append(error)
        text = "; ".join(map(str, problems))
        if any(isinstance(each, RemotingError | UnreachableError) for each in problems):
            raise UnreachableError(f"no NameServer answers: {text}")
        raise OriginError(f"no NameServer answers: {text}")

    def _connection(self, address: str) -> BlockingConnection:
        """The connection to a broker; one that is just starting again is waited for."""
        deadline = time.monotonic() + self._settings.request_timeout
        while True:
            try:
                return self._connect(address)
            except RemotingConnectError as error:
                if time.monotonic() + _CONNECT_AGAIN_SECONDS > deadline:
                    raise UnreachableError(str(error)) from error
            time.sleep(_CONNECT_AGAIN_SECONDS)

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


def _pull(
    group: str,
    queue: Queue,
    offset: int,
    count: int,
    subscription: Subscription,
    max_bytes: int | None,
) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=subscription.expression,
        expression_type=subscription.kind,
        max_msg_bytes=max_bytes,
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.encode())


class _Slot:
    """A part of the range, asked for with one pull; its answer when it has come."""

    __slots__ = ("asked", "busy", "end", "is_single", "reply", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        #: Asks for one message only, which is damaged.
        self.is_single = False
        self.asked = 0
        self.busy = 0
        self.reply: Reply | None = None


class _Window:
    """Pulls from one queue that overlap; what they bring comes out in order.

    Offsets are dealt out to pulls ahead of their answers. A pull that brings less than its
    part is followed by one for the rest, before anything behind it comes out.
    """

    def __init__(
        self,
        connection: BlockingConnection,
        pull: Callable[[int, int], RemotingCommand],
        wanted: QueueRange,
        *,
        is_complete: bool,
    ) -> None:
        """`is_complete`: every message is wanted, so one that does not come is lost."""
        self._connection = connection
        self._pull = pull
        self._is_complete = is_complete
        self._queue = wanted.queue
        self._next = wanted.start
        self._end = wanted.end
        self._slots: deque[_Slot] = deque()
        self._by_opaque: dict[int, _Slot] = {}
        #: One pull alone, until its answer tells how much one carries.
        self._depth = 1
        self._step = _BULK_COUNT
        self._limit = _BULK_COUNT
        self._last_short = 0
        #: Everything before this offset has been handed out.
        self.position = wanted.start

    @property
    def is_finished(self) -> bool:
        """Whether no answer is on its way."""
        return not self._by_opaque

    def blocks(self) -> Iterator[RecordBlock | LostRecords]:
        """All of the range."""
        try:
            self._fill()
            while self._slots:
                slot = self._slots[0]
                self.position = slot.start
                while slot.reply is None:
                    reply = self._connection.receive()
                    arrived = self._by_opaque.pop(reply.command.opaque, None)
                    if arrived is not None:
                        arrived.reply = reply
                found = self._take(slot)
                self._fill()
                yield from found
        except RemotingError as error:
            raise UnreachableError(f"reading {self._queue}: {error}") from error

    def _fill(self) -> None:
        while self._next < self._end and len(self._slots) < self._depth:
            slot = _Slot(self._next, min(self._next + self._step, self._end))
            self._slots.append(slot)
            self._next = slot.end
            self._ask(slot)

    def _ask(self, slot: _Slot) -> None:
        slot.reply = None
        slot.asked = 1 if slot.is_single else slot.end - slot.start
        self._by_opaque[self._connection.send(self._pull(slot.start, slot.asked))] = slot

    def _take(self, slot: _Slot) -> Sequence[RecordBlock | LostRecords]:
        """What the answer of the first slot holds; the slot goes, or asks for its rest."""
        assert slot.reply is not None
        answer, body = slot.reply
        start = slot.start
        if answer.code == ResponseCode.SYSTEM_BUSY and slot.busy < _BUSY_TIMES:
            time.sleep(_BUSY_SECONDS * 2**slot.busy)
            slot.busy += 1
            self._ask(slot)
            return ()
        if answer.code not in _ANSWERS:
            _check(answer, f"PULL_MESSAGE of {self._queue} at {self._connection.address}")
        slot.busy = 0
        header = PullMessageResponseHeader.decode(answer.ext_fields)
        if answer.code == ResponseCode.SUCCESS:
            found = self._records(slot, header.next_begin_offset, body)
        elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # Nothing there that the subscription selects; or the segment is being removed.
            slot.start = max(header.next_begin_offset, start + 1)
            gone = slot.start if self._is_complete else header.min_offset
            found = self._lost(start, min(gone, slot.end), "retention took them")
        elif header.min_offset > start:
            found = self._lost(start, min(header.min_offset, slot.end), "retention took them")
            slot.start = header.min_offset
        else:
            self._slots.clear()
            self._next = self._end
            return self._lost(start, self._end, f"the queue ends at {header.max_offset}")
        if slot.start >= slot.end:
            self._slots.popleft()
        elif len(self._slots) == 1 and not slot.is_single:
            # Nothing behind it was asked for: its rest is dealt out anew.
            self._next = self._slots.popleft().start
        else:
            self._ask(slot)
        return found

    def _records(
        self, slot: _Slot, next_offset: int, body: memoryview
    ) -> Sequence[RecordBlock | LostRecords]:
        starts, end = record_starts(body)
        if end != len(body):
            # Sizes lead no further. What is whole comes out; the next pull begins behind it.
            valid = read_columns(body, starts).valid
            starts = starts[: starts.size if valid.all() else int(valid.argmin())]
            if not starts.size:
                return self._damaged(slot, next_offset)
            next_offset = int(record_places(body, starts).queue_offsets[-1]) + 1
        else:
            self._learn(slot, next_offset, len(body))
        slot.is_single = False
        found: list[RecordBlock | LostRecords] = []
        if starts.size:
            offsets = record_places(body, starts).queue_offsets
            inside = (offsets >= slot.start) & (offsets < slot.end)
            if not inside.all():
                starts, offsets = starts[inside], offsets[inside]
            if self._is_complete and starts.size != min(next_offset, slot.end) - slot.start:
                found += self._gaps(offsets.tolist(), slot.start, min(next_offset, slot.end))
            found.append(RecordBlock(body, starts))
        slot.start = max(next_offset, slot.start + 1)
        return found

    def _damaged(self, slot: _Slot, next_offset: int) -> Sequence[LostRecords]:
        """What is known when the first record of an answer is none.

        Where everything is wanted, it is the one that was asked for; behind a filter its
        offset is known when it has come alone.
        """
        if slot.asked > 1 and not self._is_complete:
            slot.is_single = True
            return ()
        slot.is_single = False
        offset = slot.start if self._is_complete else max(next_offset - 1, slot.start)
        slot.start = offset + 1
        return self._lost(offset, min(offset + 1, slot.end), "the bytes of its record are damaged")

    def _learn(self, slot: _Slot, next_offset: int, size: int) -> None:
        """Fit the pulls to what the broker gives."""
        carried = next_offset - slot.start
        if carried < slot.asked:
            # Cut by its bytes, or by a count, which is the same the next time.
            if carried == self._last_short:
                self._limit = carried
            self._last_short = carried
            self._step = max(1, carried)
        elif size < _BULK_BYTES // 2:
            self._step = min(self._step * 2, self._limit)
        if size < _SMALL and self._step < slot.asked:
            self._depth = _MAX_SMALL_PULLS
        else:
            self._depth = min(max(_IN_FLIGHT_BYTES // max(size, 1), _MIN_PULLS), _MAX_PULLS)

    def _gaps(self, offsets: Sequence[int], start: int, end: int) -> list[LostRecords]:
        """The offsets from `start` to `end` that an answer passes over."""
        bounds = [start - 1, *offsets, end]
        return [
            lost
            for before, behind in pairwise(bounds)
            for lost in self._lost(before + 1, behind, "the broker passes over them")
        ]

    def _lost(self, start: int, end: int, reason: str) -> list[LostRecords]:
        return [LostRecords(self._queue, start, end, reason)] if start < end else []


#: Answers of servers that will do what was asked later.
_LATER: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _check(answer: RemotingCommand, question: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        name = next((code.name for code in ResponseCode if code == answer.code), str(answer.code))
        kind = UnreachableError if answer.code in _LATER else OriginError
        raise kind(f"{question}: {name}: {answer.remark}")
