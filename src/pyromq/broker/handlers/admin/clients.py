"""Admin requests about clients: list them, or forward a request to one of them.

GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO,
QUERY_TOPIC_CONSUME_BY_WHO, GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY and
INVOKE_BROKER_TO_GET_CONSUMER_STATUS. RocketMQ asks the members of a group for their status one
after the other, up to five seconds each; this asks all of them at once.

Handlers run on the loop and wait for clients without blocking it. Lists of clients, possibly
thousands, are encoded on the admin lane.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from pyromq.acl import classification as access
from pyromq.base.clock import now_ms
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Route, Routes
from pyromq.broker.services.flow_control import Admission, SharedBody
from pyromq.broker.state.connections import (
    Client,
    ClientConnection,
)
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.wire.bodies import Body, BodyError
from pyromq.protocol.wire.bodies_admin import (
    Connection,
    ConsumerConnection,
    GetConsumerStatusBody,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from pyromq.remoting.errors import RemotingError, RemotingTimeoutError

logger = logging.getLogger(__name__)

#: Timeouts of a client's response to a forwarded request and to a status request.
_CALL_TIMEOUT_SECONDS: Final = 10.0
_STATUS_TIMEOUT_SECONDS: Final = 5.0
#: Protocol versions of 3.0.7 and 3.1.8, the first that can respond.
KNOWS_RESETS: Final = 28
_KNOWS_CALLS: Final = 62


class ClientAdminHandlers:
    """Lists clients and forwards requests to them."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._consumers = parts.tables.consumers
        self._producers = parts.tables.producers
        self._offsets = parts.tables.offsets
        #: Reads messages from disk and encodes long lists.
        self._lane = parts.lanes.admin
        self._every_producer = SharedBody(self._encode_producers)
        self._lists = Admission()

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                access.ADMIN,
                self._lists.of(self.consumer_connections),
                is_query=True,
            ),
            Route(
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                access.ADMIN,
                self._lists.of(self.producer_connections),
                is_query=True,
            ),
            Route(
                RequestCode.GET_ALL_PRODUCER_INFO, access.ADMIN, self.all_producers, is_query=True
            ),
            Route(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, access.ADMIN, self.consumed_by_who),
            Route(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                access.ADMIN,
                self.running_info,
                is_query=True,
            ),
            Route(RequestCode.CONSUME_MESSAGE_DIRECTLY, access.ADMIN, self.consume_directly),
            Route(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                access.ADMIN,
                self.consumer_status,
                is_query=True,
            ),
        )

    async def consumer_connections(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """GET_CONSUMER_CONNECTION_LIST: return the members of a consumer group."""
        name = GetConsumerConnectionListRequestHeader.decode(request.ext_fields).consumer_group
        group = self._consumers.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        members = list(group.members.values())
        subscriptions = dict(group.subscriptions)
        kind = group.consume_type, group.message_model, group.consume_from_where
        return await self._encoded(
            request, lambda: ConsumerConnection(_connections(members), subscriptions, *kind)
        )

    async def producer_connections(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """GET_PRODUCER_CONNECTION_LIST: return the members of a producer group."""
        name = GetProducerConnectionListRequestHeader.decode(request.ext_fields).producer_group
        members = self._producers.members(name)
        if not members:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return await self._encoded(request, lambda: ProducerConnection(_connections(members)))

    async def all_producers(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_ALL_PRODUCER_INFO: return all producers by group."""
        return request.answer(body=await self._every_producer.get())

    async def _encode_producers(self) -> bytes:
        groups = {group: self._producers.members(group) for group in self._producers.groups()}
        return await self._lane.run(
            lambda: ProducerTableInfo(
                {group: list(map(_producer_info, members)) for group, members in groups.items()}
            ).encode()
        )

    def consumed_by_who(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """QUERY_TOPIC_CONSUME_BY_WHO: return the groups that read a topic, now or ever."""
        topic = QueryTopicConsumeByWhoRequestHeader.decode(request.ext_fields).topic
        groups = self._consumers.groups_of_topic(topic) | self._offsets.groups_of(topic)
        return request.answer(body=GroupList(groups).encode())

    async def running_info(self, _: ClientConnection, request: RemotingCommand) -> RemotingCommand:
        """GET_CONSUMER_RUNNING_INFO: forward the request to the client."""
        header = GetConsumerRunningInfoRequestHeader.decode(request.ext_fields)
        return await self._call(request, header.consumer_group, header.client_id, request.body)

    async def consume_directly(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """CONSUME_MESSAGE_DIRECTLY: send a message to one client and return its result."""
        header = ConsumeMessageDirectlyResultRequestHeader.decode(request.ext_fields)
        try:
            physical = decode_message_id(header.msg_id or "")[2]
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._store.seal()
        record = await self._lane.run(lambda: self._store.fetch_record(physical))
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical}"
            )
        request.ext_fields["brokerName"] = self._config.broker_name
        return await self._call(request, header.consumer_group, header.client_id, record)

    async def consumer_status(
        self, _: ClientConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: return the offsets that clients report."""
        header = GetConsumerStatusRequestHeader.decode(request.ext_fields)
        group = self._consumers.find(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        wanted = (header.client_addr or "").strip()
        members = [
            member for member in group.members.values() if not wanted or member.client_id == wanted
        ]
        for member in members:
            refuse_old_client(member)
        question = GetConsumerStatusRequestHeader(header.topic, header.group).encode()
        tables = await asyncio.gather(*(self._status_of(member, question) for member in members))
        found = {
            member.client_id: table.message_queue_table
            for member, table in zip(members, tables, strict=True)
            if table is not None
        }
        return await self._encoded(request, lambda: GetConsumerStatusBody(consumer_table=found))

    async def _encoded(
        self, request: RemotingCommand, answer: Callable[[], Body]
    ) -> RemotingCommand:
        return request.answer(body=await self._lane.run(lambda: answer().encode()))

    async def _status_of(
        self, member: Client, question: dict[str, str]
    ) -> GetConsumerStatusBody | None:
        """Return the status of one client; None if it fails or cannot be decoded."""
        request = RemotingCommand(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=dict(question)
        )
        try:
            answer = await member.connection.request(request, _STATUS_TIMEOUT_SECONDS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            limit = self._config.max_request_body_size
            if len(answer.body) > limit:
                logger.warning(
                    "no status of client %s: response of %d bytes, limit %d (maxRequestBodySize)",
                    member.client_id,
                    len(answer.body),
                    limit,
                )
                return None
            return await self._lane.run(lambda: GetConsumerStatusBody.decode(answer.body))
        except (RemotingError, BodyError) as error:
            logger.warning("no status of client %s: %s", member.client_id, error)
            return None

    async def _call(
        self, request: RemotingCommand, group_name: str, client_id: str | None, body: bytes
    ) -> RemotingCommand:
        """Forward a request to a member of a group and return its response."""
        group = self._consumers.find(group_name)
        member = group.find_client(client_id or "") if group is not None else None
        name = f"<{group_name}> <{client_id}>"
        if member is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The Consumer {name} not online")
        if member.version < _KNOWS_CALLS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        forwarded = RemotingCommand(request.code, ext_fields=request.ext_fields, body=body)
        try:
            answer = await member.connection.request(forwarded, _CALL_TIMEOUT_SECONDS)
        except RemotingTimeoutError as error:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {name} Timeout: {error}"
            ) from error
        except RemotingError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer {name} Exception: {error}"
            ) from error
        return request.answer(answer.code, answer.remark, answer.ext_fields, answer.body)


def refuse_old_client(member: Client) -> None:
    """Raise RequestError for a client that knows neither resets nor status requests."""
    if member.version < KNOWS_RESETS:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={member.version}",
        )


def _connections(members: Iterable[Client]) -> list[Connection]:
    return [
        Connection(
            member.client_id, member.connection.remote_address, member.language, member.version
        )
        for member in members
    ]


def _producer_info(member: Client) -> ProducerInfo:
    silent_seconds = time.monotonic() - member.last_seen
    return ProducerInfo(
        member.client_id,
        f"/{member.connection.remote_address}",
        member.language,
        member.version,
        now_ms() - int(silent_seconds * 1000),
    )
