"""SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2: pass a consumer's reply to the requester.

A requester sends a message with its client id, and the consumer of the message sends a reply. The
broker pushes the reply over the requester's own connection (PUSH_REPLY_MESSAGE_TO_CLIENT) and, with
storeReplyMessageEnable, also stores it in its topic, `<cluster>_REPLY_TOPIC`.

The response says whether the requester has the reply. It also carries the message id, queue and
offset of a stored reply, even if the push failed. A reply that was pushed but not stored is a
success with the message id 0. All as in RocketMQ, except that a stored reply keeps the flag of a
compressed body, which RocketMQ drops.

At most `replyThreadPoolQueueCapacity` replies wait for their requesters. Runs on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyromq.acl import classification as access
from pyromq.broker.handlers.send_slow import SendHeader, queue_id_of
from pyromq.broker.inner_messages import InnerMessage
from pyromq.broker.parts import BrokerParts
from pyromq.broker.routes import Body, Route, Routes
from pyromq.broker.services.flow_control import OVERLOAD
from pyromq.protocol.message.message_id import decode_host, encode_message_id, format_address
from pyromq.protocol.message.properties import (
    MSG_REGION,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TRACE_ON,
    decode_properties,
    encode_properties,
)
from pyromq.protocol.message.sysflag import TRANSACTION_MASK
from pyromq.protocol.wire.bodies import TopicConfig
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from pyromq.remoting.connection import Connection
from pyromq.remoting.errors import RemotingError
from pyromq.store.results import PutError

logger = logging.getLogger(__name__)

#: Timeout for the requester to acknowledge its reply.
_PUSH_TIMEOUT_SECONDS: Final = 10.0
#: Message id of a reply that was not stored: clients need one that they can parse.
_NOT_STORED: Final = "0"


class ReplyHandlers:
    """Pushes replies to their requesters."""

    def __init__(
        self, parts: BrokerParts, check: Callable[[Connection, SendHeader], TopicConfig]
    ) -> None:
        """`check` is `SlowSends.check`: it returns the topic or raises RequestError."""
        self._config = parts.config
        self._role = parts.role
        self._writer = parts.writer
        self._producers = parts.tables.producers
        self._store_host = parts.store_host
        self._store_address = format_address(*decode_host(parts.store_host))
        self._check = check
        self._now = parts.clock
        #: Replies that wait for their requesters.
        self._waiting = 0

    def routes(self) -> Routes:
        """Return the routes of the family."""
        return Routes(
            Route(
                RequestCode.SEND_REPLY_MESSAGE, access.REPLY, self.send_reply, body=Body.MESSAGES
            ),
            Route(
                RequestCode.SEND_REPLY_MESSAGE_V2,
                access.REPLY_V2,
                self.send_reply,
                body=Body.MESSAGES,
            ),
        )

    async def send_reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """SEND_REPLY_MESSAGE: respond after the requester acknowledged the reply or failed to."""
        decode = (
            SendMessageRequestHeader.decode
            if request.code == RequestCode.SEND_REPLY_MESSAGE
            else SendMessageRequestHeaderV2.decode
        )
        header = decode(request.ext_fields)
        fields = {
            MSG_REGION: self._config.region_id,
            TRACE_ON: "true" if self._config.trace_on else "false",
        }
        try:
            topic = self._check(connection, header)
            queue_id = queue_id_of(header, topic)
        except RequestError as refused:
            return request.answer(refused.code, refused.remark, fields)
        code, remark = ResponseCode.SUCCESS, None
        place: SendMessageResponseHeader | None = SendMessageResponseHeader(
            _NOT_STORED, queue_id, 0
        )
        if self._waiting >= self._config.reply_thread_pool_queue_capacity:
            return request.answer(ResponseCode.SYSTEM_BUSY, OVERLOAD, fields)
        self._waiting += 1
        try:
            await self._push(connection, header, request.body)
        except RequestError as failed:
            logger.warning("reply in topic %s not delivered: %s", header.topic, failed.remark)
            code, remark, place = failed.code, failed.remark, None
        finally:
            self._waiting -= 1
        # The broker may have become a replica while the requester was waited for.
        if self._config.store_reply_message_enable and not self._role.is_replica:
            place = await self._store(connection, header, request.body, queue_id) or place
        if place is not None:
            fields.update(place.encode())
        return request.answer(code, remark, fields)

    async def _push(self, connection: Connection, header: SendHeader, body: bytes) -> None:
        """Push the reply to its requester. Raises RequestError with RocketMQ's remark."""
        properties = decode_properties(header.properties or "")
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise _failed(f"reply message properties[{REPLY_TO_CLIENT}] is null")
        requester = self._producers.find_client(client_id)
        if requester is None:
            raise _failed(f"push reply message fail, channel of <{client_id}> not found.")
        now = self._now()
        push = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ext_fields=ReplyMessageRequestHeader(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                born_host=connection.remote_address,
                store_host=self._store_address,
                store_timestamp=now,
                properties=encode_properties({**properties, PUSH_REPLY_TIME: str(now)}).decode(),
                reconsume_times=header.reconsume_times,
                unit_mode=header.unit_mode or False,
            ).encode(),
            body=body,
        )
        try:
            answer = await requester.request(push, _PUSH_TIMEOUT_SECONDS)
        except RemotingError as error:
            raise _failed(f"push reply message to {client_id} fail. {error}") from error
        if answer.code != ResponseCode.SUCCESS:
            raise _failed(
                f"push reply message to {client_id} fail. {requester.remote_address} answered "
                f"{answer.code}, {answer.remark}"
            )

    async def _store(
        self, connection: Connection, header: SendHeader, body: bytes, queue_id: int
    ) -> SendMessageResponseHeader | None:
        """Store the reply and return its place; None if the store refuses it."""
        message = InnerMessage(
            header.topic,
            queue_id,
            body,
            decode_properties(header.properties or ""),
            header.flag,
            header.sys_flag & ~TRANSACTION_MASK,
            header.born_timestamp,
            connection.born_host,
            header.reconsume_times or 0,
        )
        try:
            stored = self._writer.put(message)
        except (PutError, RequestError) as error:
            logger.warning("reply in topic %s not stored: %s", header.topic, error)
            return None
        await self._writer.stored()
        return SendMessageResponseHeader(
            encode_message_id(self._store_host, stored.physical), queue_id, stored.offset
        )


def _failed(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
