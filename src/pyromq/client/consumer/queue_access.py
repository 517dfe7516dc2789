"""Send the requests that concern one queue: pulls, offset queries, commits.

All three consumers build on this, and so do readers without a group. The only state is which
replica a broker suggested to read from, which offsets and offset tables masters have, and which
brokers are pyromq's. Queues and topics carry the application's names; the namespace is added when
a request is built. Runs on the consumer's event loop.

Requests go where Java's client sends them:

    pull                      the id that the last response suggested, else another one
                              (`TopicRoute.place_of`); never a broker that is away (`away`)
    commit, committed         the master; a replica only while the route has no master
    min, max, time offsets    the master only: a replica may have less
    commit along with a pull  masters only

A replica may be behind its master, or have less of the past. So a replica's word that an offset
does not exist proves nothing: the consumer keeps its place. A replica loses commits when it next
copies its master's offsets, so only those that a master acknowledged count as stored
(`is_stored`), and a master that returns is not trusted to have them still.

Commits keep two rules because of Java's brokers, which handle requests on several threads:

- A group's first commit in a topic is sent alone (`first_commit`).
- A pull commits an offset only if it is the pull's own. A commit that rides on a pull for a later
  offset could be applied after a newer one, and the group would fall back.

pyromq's brokers handle the requests of a connection in order, so every pull to them commits. A
broker's responses tell which it is: they name its language.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from pyromq.client.consumer.first_commit import KnownOffsetTables, OffsetTable
from pyromq.client.consumer.pull_request import (
    ANONYMOUS_GROUP,
    PullNumbers,
    pull_command,
    pull_template,
)
from pyromq.client.consumer.subscription import Subscription
from pyromq.client.errors import (
    AnswerError,
    BrokerError,
    NameServerError,
    TopicNotFoundError,
    reading_answer,
    refusal_of,
)
from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.client.session.routes import MASTER_ID, TopicRoute
from pyromq.client.session.session import Session
from pyromq.protocol.message.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RemotingCommand, frame_from, pack_prefix
from pyromq.protocol.wire.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyromq.remoting.client import RemotingError, RemotingTimeoutError

logger = logging.getLogger(__name__)

#: Grace beyond the suspend time of a long poll: brokers check expired ones every 5 s.
_GRACE_SECONDS: Final = 10.0
#: Between long polls that a replica does not hold because it lacks the offset.
_LACKING_PAUSE_SECONDS: Final = 0.5
_MAX_OFFSET: Final = (1 << 63) - 1
_PYROMQ_LANGUAGE: Final = LanguageCode.PYTHON.name


class PullStatus(Enum):
    """Outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS_BY_CODE = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
    """The messages of one pull, and the offset to pull from next."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class QueueAccess:
    """Requests about queues, on behalf of one group."""

    def __init__(self, session: Session, group: str | None) -> None:
        """Take the application's name of a group, or None for a reader without one."""
        self._session = session
        self._group = session.wrap(group) if group else ANONYMOUS_GROUP
        self._suggested: dict[MessageQueue, int] = {}
        self._templates: dict[tuple[MessageQueue, Subscription, int], bytes] = {}
        self._offset_tables = KnownOffsetTables()
        #: The last offset of each queue that a master acknowledged, and the master's address.
        self._stored: dict[MessageQueue, tuple[str, int]] = {}
        #: Held while the first commit of a table is in flight.
        self._first_commits: dict[OffsetTable, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Addresses of pyromq's brokers, which handle our requests in order.
        self._in_order: set[str] = set()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        *,
        version: int = 0,
        max_messages: int = 32,
        wait: float = 0.0,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Pull messages of `queue`, starting at `offset`.

        If there is none yet, the broker holds the request for up to `wait` seconds. Masters
        commit `commit_offset` along the way if it equals `offset` or if they are pyromq's. The
        first commit of a topic is sent as a request of its own before the pull. A master whose
        connection fails is replaced by a replica at once.
        """
        session = self._session
        route = await self._route_to(queue)
        address, broker_id = route.place_of(
            queue.broker_name, self._suggested_id(queue), session.away
        )
        sys_flag = PULL_SUBSCRIPTION
        if wait > 0:
            sys_flag |= PULL_SUSPEND
        if (
            commit_offset is not None
            and (commit_offset == offset or address in self._in_order)
            and broker_id == MASTER_ID
            and (
                (address, self._group, queue.topic) in self._offset_tables
                or await self._try_first_commit(queue, commit_offset)
            )
        ):
            sys_flag |= PULL_COMMIT_OFFSET
        numbers = PullNumbers(offset, max_messages, sys_flag, commit_offset or 0, int(wait * 1000))
        seconds = session.request_timeout + (wait + _GRACE_SECONDS if wait > 0 else 0)
        try:
            frame = await self._send_pull(address, queue, subscription, version, numbers, seconds)
            result = self._read_result(address, queue, frame)
        except (RemotingError, BrokerError) as error:
            # Fall back to the master, whatever it suggested: the replica may be the problem.
            self._suggested.pop(queue, None)
            if not self._has_stand_in(route, queue, address, error):
                raise
        else:
            if broker_id == MASTER_ID:
                return result
            return await _from_replica(result, offset, wait)
        return await self.pull(
            queue,
            offset,
            subscription,
            version=version,
            max_messages=max_messages,
            wait=wait,
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic."""
        route = await self._session.routes.get(self._session.wrap(topic))
        return [replace(queue, topic=topic) for queue in route.read_queues]

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        header = GetMinOffsetRequestHeader(self._session.wrap(queue.topic), queue.queue_id)
        address, answer = await self._ask_master(queue, RequestCode.GET_MIN_OFFSET, header.encode())
        with reading_answer(address):
            return GetMinOffsetResponseHeader.decode(answer.ext_fields).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(self._session.wrap(queue.topic), queue.queue_id)
        address, answer = await self._ask_master(queue, RequestCode.GET_MAX_OFFSET, header.encode())
        with reading_answer(address):
            return GetMaxOffsetResponseHeader.decode(answer.ext_fields).offset

    async def offset_by_time(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message stored at or after a time in milliseconds."""
        header = SearchOffsetRequestHeader(
            self._session.wrap(queue.topic), queue.queue_id, timestamp
        )
        address, answer = await self._ask_master(
            queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode()
        )
        with reading_answer(address):
            return SearchOffsetResponseHeader.decode(answer.ext_fields).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in milliseconds."""
        header = GetEarliestMsgStoretimeRequestHeader(
            self._session.wrap(queue.topic), queue.queue_id
        )
        address, answer = await self._ask_master(
            queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header.encode()
        )
        with reading_answer(address):
            return GetEarliestMsgStoretimeResponseHeader.decode(answer.ext_fields).timestamp

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None if it has never consumed `queue`."""
        header = QueryConsumerOffsetRequestHeader(
            self._group, self._session.wrap(queue.topic), queue.queue_id
        )
        self._session.check_running()
        address, is_master = await self._home(queue)
        command = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=header.encode())
        try:
            answer = await self._session.ask(address, command)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        with reading_answer(address):
            offset = QueryConsumerOffsetResponseHeader.decode(answer.ext_fields).offset
        if offset > 0:  # 0 proves nothing: brokers also return it for queues never consumed
            self._offset_tables.add((address, self._group, queue.topic))
        if offset < 0:
            return None
        if is_master:
            self._stored[queue] = address, offset
        return offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store `offset` at the broker: the group resumes from it."""
        self._session.check_running()
        address, is_master = await self._home(queue)
        table = address, self._group, queue.topic
        if table in self._offset_tables:
            await self._send_commit(address, queue, offset)
        else:
            async with self._first_commits[table]:
                is_first = table not in self._offset_tables
                if is_first:
                    await self._send_commit(address, queue, offset)
                    self._offset_tables.add(table)
            if not is_first:
                await self._send_commit(address, queue, offset)
        if is_master:
            self._stored[queue] = address, offset

    def is_stored(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether the queue's master has this offset, so that a commit is superfluous.

        What only a replica acknowledged does not count.
        """
        route = self._session.routes.peek(self._session.wrap(queue.topic))
        if route is None:
            return False
        return self._stored.get(queue) == (route.master_of(queue.broker_name), offset)

    def broker_returned(self, address: str) -> None:
        """Commit to this broker again: it was away, and may have lost the last commits."""
        self._offset_tables.forget(address)
        self._stored = {
            queue: stored for queue, stored in self._stored.items() if stored[0] != address
        }

    def forget(self, queue: MessageQueue) -> None:
        """Drop the state of a queue that is no longer read: others may commit its offset."""
        self._suggested.pop(queue, None)
        self._stored.pop(queue, None)
        for key in [key for key in self._templates if key[0] == queue]:
            del self._templates[key]

    # Helpers, in call order.

    def _suggested_id(self, queue: MessageQueue) -> int:
        # Usually there is none, and hashing a queue costs.
        return self._suggested.get(queue, 0) if self._suggested else 0

    async def _route_to(self, queue: MessageQueue) -> TopicRoute:
        """Return a route that has the queue's broker."""
        topic = self._session.wrap(queue.topic)
        routes = self._session.routes
        route = routes.peek(topic) or await routes.get(topic)
        if queue.broker_name not in route.addresses:
            route = await routes.refresh(topic)
        if queue.broker_name not in route.addresses:
            raise TopicNotFoundError(queue.topic, f"broker {queue.broker_name!r} is not known")
        return route

    def _has_stand_in(
        self, route: TopicRoute, queue: MessageQueue, address: str, error: Exception
    ) -> bool:
        """Note a broker that is away; return whether to pull from another one at once."""
        if len(route.addresses[queue.broker_name]) == 1 or not isinstance(error, RemotingError):
            return False
        away = self._session.away
        away.add(address, error)
        return (
            # After a timeout the caller has waited long enough.
            not isinstance(error, RemotingTimeoutError)
            and address == route.master_of(queue.broker_name)
            and address != route.place_of(queue.broker_name, away=away)[0]
        )

    async def _route_to_master(self, queue: MessageQueue) -> TopicRoute:
        """Return a route that has the queue's master, if the NameServers know one."""
        route = await self._route_to(queue)
        if route.master_of(queue.broker_name) is None:
            try:
                await self._session.routes.refresh(self._session.wrap(queue.topic))
            except NameServerError as error:
                logger.debug("route of topic %s not refreshed: %s", queue.topic, error)
            route = await self._route_to(queue)
        return route

    async def _home(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address that keeps the group's offset, and whether it is a master's."""
        route = await self._route_to_master(queue)
        address, broker_id = route.place_of(queue.broker_name)
        return address, broker_id == MASTER_ID

    async def _try_first_commit(self, queue: MessageQueue, offset: int) -> bool:
        """Commit for the first time; a failure must not stop the pull."""
        try:
            await self.commit(queue, offset)
        except (RemotingError, BrokerError) as error:
            logger.warning(
                "first commit failed: offset %d of %s: %s", offset, name_of(queue), error
            )
            return False
        return True

    async def _send_pull(
        self,
        address: str,
        queue: MessageQueue,
        subscription: Subscription,
        version: int,
        numbers: PullNumbers,
        seconds: float,
    ) -> RawFrame:
        session = self._session
        connection = session.remoting.ready(address)
        if connection is None or session.settings.access_key:
            topic = session.wrap(queue.topic)
            command = pull_command(
                self._group, topic, queue.queue_id, subscription, numbers, version=version
            )
            return frame_from(await session.remoting.request(address, command, seconds))
        opaque = connection.next_opaque()
        request = self._template(queue, subscription, version) % (*numbers, opaque)
        length = len(request)
        frame = pack_prefix(4 + length, length) + request
        return await connection.call(opaque, frame, RequestCode.PULL_MESSAGE, seconds)

    def _template(self, queue: MessageQueue, subscription: Subscription, version: int) -> bytes:
        key = (queue, subscription, version)
        template = self._templates.get(key)
        if template is None:
            topic = self._session.wrap(queue.topic)
            template = self._templates[key] = pull_template(
                self._group, topic, queue.queue_id, subscription, version
            )
        return template

    def _read_result(self, address: str, queue: MessageQueue, frame: RawFrame) -> PullResult:
        _, header, body = frame
        code = header.get("code")
        status = _STATUS_BY_CODE.get(code) if type(code) is int else None
        if status is None:
            raise refusal_of(address, header)
        if header.get("language") == _PYROMQ_LANGUAGE:
            self._in_order.add(address)
        else:
            self._in_order.discard(address)
        try:
            try:
                fields = header["extFields"]
                suggested = int(fields["suggestWhichBrokerId"])
                next_offset = int(fields["nextBeginOffset"])
                min_offset, max_offset = int(fields["minOffset"]), int(fields["maxOffset"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"pull response lacks valid offsets: {error!r}") from error
            if not 0 <= next_offset <= _MAX_OFFSET:
                raise ValueError(f"pull response has an impossible next offset: {next_offset}")
            messages = (
                decode_messages(body, queue, self._session.wrap(queue.topic))
                if status is PullStatus.FOUND
                else []
            )
        except ValueError as error:  # not `reading_answer`: a context manager for each pull costs
            raise AnswerError(address, error) from error
        if suggested != self._suggested_id(queue):
            self._suggested[queue] = suggested
        return PullResult(status, messages, next_offset, min_offset, max_offset)

    async def _send_commit(self, address: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            self._group, self._session.wrap(queue.topic), queue.queue_id, offset
        )
        await self._session.ask(
            address,
            RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=header.encode()),
        )

    async def _ask_master(
        self, queue: MessageQueue, code: RequestCode, ext_fields: dict[str, str]
    ) -> tuple[str, RemotingCommand]:
        """Return the master's address and its response. Raises NoMasterError."""
        self._session.check_running()
        route = await self._route_to_master(queue)
        address = route.master_of(queue.broker_name)
        if address is None:
            raise route.no_master(queue.topic, queue.broker_name)
        return address, await self._session.ask(
            address, RemotingCommand(code, ext_fields=ext_fields)
        )


async def _from_replica(result: PullResult, offset: int, wait: float) -> PullResult:
    """Return a replica's result, keeping the place if it says that there is no such offset."""
    if result.status is PullStatus.OFFSET_ILLEGAL:
        result = result._replace(status=PullStatus.NO_NEW_MESSAGE, next_offset=offset)
    elif result.status is not PullStatus.NO_MATCHED_MESSAGE or result.next_offset != offset:
        return result
    # Java's replicas answer NO_MATCHED_MESSAGE, at once, for an offset that they lack.
    await asyncio.sleep(min(wait, _LACKING_PAUSE_SECONDS))
    return result


def name_of(queue: MessageQueue) -> str:
    """Return a queue's name for log lines and errors."""
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
