"""Handle requests that brokers send to a consumer, on their own or for an administrator.

    NOTIFY_CONSUMER_IDS_CHANGED      members joined or left: rebalance
    RESET_CONSUMER_CLIENT_OFFSET     continue from these offsets
    GET_CONSUMER_STATUS_FROM_CLIENT  return the consumed offsets
    GET_CONSUMER_RUNNING_INFO        return settings, subscriptions, queues, rates
    CONSUME_MESSAGE_DIRECTLY         call the handler with this message and return its result

Requests for another group get the same response as from Java's clients. Runs on the consumer's
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyromq.client.received import ReceivedMessage, decode_messages
from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.namespace import with_namespace, without_namespace
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import (
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from pyromq.protocol.wire.bodies_consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    DirectResult,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.protocol.wire.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from pyromq.remoting.client import ClientHandler

logger = logging.getLogger(__name__)


class AskedConsumer(Protocol):
    """The methods of a consumer that brokers can invoke, with the application's names."""

    group: str
    is_orderly: bool

    def members_changed(self) -> None:
        """Rebalance."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from these offsets, on assigned queues."""

    def offsets(self) -> dict[MessageQueue, int]:
        """Return the consumed offset of each queue."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state that administrators see."""

    async def consume_directly(self, message: ReceivedMessage) -> bool:
        """Call the handler and return whether it consumed the message; raises its exception."""


class ClientRequests:
    """Request handlers for `consumer`."""

    def __init__(self, consumer: AskedConsumer, namespace: str) -> None:
        self._consumer = consumer
        self._wrap = partial(with_namespace, namespace)
        self._unwrap = partial(without_namespace, namespace)

    def handlers(self) -> dict[int, ClientHandler]:
        """Return the handlers by request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _members_changed(self, _address: str, _command: RemotingCommand) -> None:
        self._consumer.members_changed()

    async def _reset_offset(self, address: str, command: RemotingCommand) -> None:
        header = ResetOffsetRequestHeader.decode(command.ext_fields)
        if header.group != self._wrap(self._consumer.group):
            logger.info("offset reset from %s ignored: group %s is not ours", address, header.group)
            return
        offsets = {
            replace(queue, topic=self._unwrap(queue.topic)): offset
            for queue, offset in _offsets_of(command.body).items()
            if queue.topic == header.topic
        }
        logger.info(
            "offset reset from %s: topic %s, %d queues", address, header.topic, len(offsets)
        )
        await self._consumer.reset_offsets(offsets)

    def _status(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        header = GetConsumerStatusRequestHeader.decode(command.ext_fields)
        table = {}
        if header.group == self._wrap(self._consumer.group):
            for queue, offset in self._consumer.offsets().items():
                topic = self._wrap(queue.topic)
                if not header.topic or topic == header.topic:
                    table[replace(queue, topic=topic)] = offset
        return command.answer(body=GetConsumerStatusBody(table).encode())

    def _running_info(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        header = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields)
        self._check_group(header.consumer_group)
        info = self._consumer.running_info()
        info.mq_table = {
            replace(queue, topic=self._wrap(queue.topic)): state
            for queue, state in info.mq_table.items()
        }
        info.status_table = {
            self._wrap(topic): status for topic, status in info.status_table.items()
        }
        if header.jstack_enable:
            info.jstack = format_stacks()
        return command.answer(body=info.encode())

    async def _consume_directly(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        header = ConsumeMessageDirectlyResultRequestHeader.decode(command.ext_fields)
        self._check_group(header.consumer_group)
        message = _message_of(command.body, header.broker_name or "")
        message.topic = self._unwrap(message.topic)
        message.queue = replace(message.queue, topic=message.topic)
        began = time.monotonic()
        remark = None
        try:
            consumed = await self._consumer.consume_directly(message)
            result = DirectResult.CR_SUCCESS if consumed else DirectResult.CR_LATER
        except Exception as error:
            logger.warning("handler failed on direct consumption of %r", message, exc_info=error)
            result = DirectResult.CR_THROW_EXCEPTION
            remark = f"{type(error).__name__}: {error}"
        body = ConsumeMessageDirectlyResult(
            result,
            order=self._consumer.is_orderly,
            remark=remark,
            spent_time_mills=int((time.monotonic() - began) * 1000),
        )
        return command.answer(body=body.encode())

    def _check_group(self, group: str) -> None:
        if group != self._wrap(self._consumer.group):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{group}> not exist in this consumer",
            )


def format_stacks() -> str:
    """Format the stacks of all threads, and of all tasks of this event loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in task.get_stack()
        ]
        stacks.append("\n".join([f"task {task.get_name()}", *lines, ""]))
    return "\n".join(stacks)


def _offsets_of(body: bytes) -> dict[MessageQueue, int]:
    try:
        return ResetOffsetBody.decode(body).offset_table if body else {}
    except BodyError:
        rows = ResetOffsetBodyForC.decode(body).offset_table
        return {MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in rows}


def _message_of(body: bytes, broker_name: str) -> ReceivedMessage:
    try:
        (message,) = decode_messages(body, MessageQueue("", broker_name, 0))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"body is not a message: {error}") from error
    return message
