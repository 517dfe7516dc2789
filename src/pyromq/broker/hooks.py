"""Hooks: user code around sends, pulls and every request of a broker.

A hook is any object with the methods of its protocol, passed to `Broker(..., hooks=Hooks(...))`.
docs/hooks.md shows one of each kind.

Rules
1. `before_send` and `before_request` may refuse: a RequestError that they raise becomes the
   response, and nothing is stored. Any other exception of a hook is a bug: it is logged and the
   request continues. Only `before_request`, the place for guards, refuses with any exception.
2. Hooks run on the loop, in the given order, and must be quick.
3. Hooks cost nothing if there are none: `with_hooks` changes the routes, not the handlers. With
   send or RPC hooks every send takes the slow path.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyromq.broker.routes import Route, Routes, wrapped
from pyromq.protocol.message.properties import decode_properties, encode_properties
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import (
    FrameReader,
    RawFrame,
    RemotingCommand,
    RequestError,
    command_from,
)
from pyromq.protocol.wire.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from pyromq.remoting.answers import error_answer
from pyromq.remoting.connection import Connection, Handler, HotHandler
from pyromq.remoting.service import Result
from pyromq.store.results import GetResult

logger = logging.getLogger(__name__)

#: The header field that holds the properties of a send.
_PROPERTIES: Final = {
    RequestCode.SEND_MESSAGE: "properties",
    RequestCode.SEND_MESSAGE_V2: "i",
    RequestCode.SEND_BATCH_MESSAGE: "i",
    RequestCode.SEND_REPLY_MESSAGE: "properties",
    RequestCode.SEND_REPLY_MESSAGE_V2: "i",
}
_SEND_BACK: Final = RequestCode.CONSUMER_SEND_MSG_BACK


@dataclass(slots=True)
class SendMessageContext:
    """A message or a batch that is being sent."""

    producer_group: str
    topic: str
    #: Negative until the broker has chosen a queue.
    queue_id: int
    body_length: int
    #: For a batch, the properties that all its messages share. `before_send` may change them.
    properties: dict[str, str]
    born_host: str
    #: Set before `after_send`: the outcome, and for a stored message (or the first of a batch) its
    #: place. The ids of a batch are separated by commas.
    code: int | None = None
    remark: str | None = None
    message_id: str | None = None
    queue_offset: int | None = None


@dataclass(slots=True)
class ConsumeMessageContext:
    """Messages that leave for a consumer, or one that a consumer sends back."""

    consumer_group: str
    topic: str
    #: None for a message that is sent back.
    queue_id: int | None = None
    message_count: int = 1
    body_length: int = 0
    next_offset: int | None = None
    #: The id of a message that is sent back, as its consumer knows it.
    message_id: str | None = None
    client_host: str | None = None


class SendMessageHook(Protocol):
    """Called around every message that a client sends."""

    def before_send(self, context: SendMessageContext) -> None:
        """Inspect, change or refuse a message before it is checked and stored."""

    def after_send(self, context: SendMessageContext) -> None:
        """Observe the outcome: `context.code` tells whether the message was stored."""


class ConsumeMessageHook(Protocol):
    """Called for messages that consumers receive or send back."""

    def before_consume(self, context: ConsumeMessageContext) -> None:
        """Observe the messages of a pull before they leave."""

    def after_consume(self, context: ConsumeMessageContext) -> None:
        """Observe a message that a consumer could not handle and sends back."""


class RpcHook(Protocol):
    """Called around every request that the broker serves."""

    def before_request(self, remote_address: str, request: RemotingCommand) -> None:
        """Inspect a request; any exception refuses it."""

    def after_response(
        self, remote_address: str, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        """Observe the response before it leaves; None for a pull that waits for messages."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of one broker."""

    send: Sequence[SendMessageHook] = field(default=())
    consume: Sequence[ConsumeMessageHook] = field(default=())
    rpc: Sequence[RpcHook] = field(default=())

    def found(self, group: str, topic: str, queue_id: int, result: GetResult) -> None:
        """Call the consume hooks for messages that are about to leave."""
        context = ConsumeMessageContext(
            group, topic, queue_id, result.count, result.size, result.next_offset
        )
        for hook in self.consume:
            _never_fail(hook.before_consume, context)


def with_hooks(routes: Routes, hooks: Hooks) -> Routes:
    """Return the routes with the hooks around their handlers.

    Pulls call `Hooks.found` themselves, because many of their responses leave later.
    """

    def hooked(route: Route) -> Route:
        plain, hot = route.plain, route.hot
        if plain is not None and hooks.send and route.code in _PROPERTIES:
            plain, hot = _around_send(plain, hooks.send), None
        if plain is not None and hooks.consume and route.code == _SEND_BACK:
            plain = _around_send_back(plain, hooks.consume)
        if hooks.rpc and plain is not None:
            # Not around the hot handler as well: the slow path would meet the hooks twice.
            plain, hot = _around(plain, hooks.rpc), None
        elif hooks.rpc and hot is not None:
            hot = wrapped(hot, lambda handler: _around_hot(handler, hooks.rpc))
        return dataclasses.replace(route, plain=plain, hot=hot)

    return routes.changed(hooked)


# Sends


def _around_send(handler: Handler, hooks: Sequence[SendMessageHook]) -> Handler:
    def send(connection: Connection, request: RemotingCommand) -> Result:
        try:
            context = _send_context(connection, request)
        except ValueError:
            return handler(connection, request)  # which reports the error
        properties = dict(context.properties)
        for hook in hooks:
            _forgive(hook.before_send, context)
        if context.properties != properties:
            name = _PROPERTIES[RequestCode(request.code)]
            request.ext_fields[name] = encode_properties(context.properties).decode()

        def after(answer: RemotingCommand | None) -> None:
            _fill_in(context, answer)
            for hook in hooks:
                _never_fail(hook.after_send, context)

        return followed(connection, request, handler, after)

    return send


def _send_context(connection: Connection, request: RemotingCommand) -> SendMessageContext:
    first = request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
    header = (SendMessageRequestHeader if first else SendMessageRequestHeaderV2).decode(
        request.ext_fields
    )
    return SendMessageContext(
        header.producer_group,
        header.topic,
        header.queue_id,
        len(request.body),
        decode_properties(header.properties or ""),
        connection.remote_address,
    )


def _fill_in(context: SendMessageContext, answer: RemotingCommand | None) -> None:
    if answer is None:
        return
    context.code, context.remark = answer.code, answer.remark
    fields = answer.ext_fields
    if "msgId" in fields:
        context.message_id = fields["msgId"]
        context.queue_id = int(fields.get("queueId", context.queue_id))
        context.queue_offset = int(fields.get("queueOffset", 0))


# Messages that are sent back


def _around_send_back(handler: Handler, hooks: Sequence[ConsumeMessageHook]) -> Handler:
    def send_back(connection: Connection, request: RemotingCommand) -> Result:
        try:
            header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        except ValueError:
            return handler(connection, request)
        context = ConsumeMessageContext(
            header.group,
            header.origin_topic or "",
            message_id=header.origin_msg_id,
            client_host=connection.remote_address,
        )
        for hook in hooks:
            _never_fail(hook.after_consume, context)
        return handler(connection, request)

    return send_back


# Every request


def _around(handler: Handler, hooks: Sequence[RpcHook]) -> Handler:
    def serve(connection: Connection, request: RemotingCommand) -> Result:
        def after(answer: RemotingCommand | None) -> None:
            for hook in hooks:
                _never_fail(hook.after_response, connection.remote_address, request, answer)

        try:
            for hook in hooks:
                hook.before_request(connection.remote_address, request)
        except Exception as error:
            answer = error_answer(connection.remote_address, request, error)
            after(answer)
            return answer
        return followed(connection, request, handler, after)

    return serve


def _around_hot(handler: HotHandler, hooks: Sequence[RpcHook]) -> HotHandler:
    """Serve frame by frame, so that the hooks see each request with its response."""

    def serve(connection: Connection, frames: list[RawFrame], answers: list[bytes]) -> None:
        for frame in frames:
            request = command_from(frame)
            own: list[bytes] = []
            try:
                for hook in hooks:
                    hook.before_request(connection.remote_address, request)
            except Exception as error:
                if not request.is_oneway:
                    own.append(error_answer(connection.remote_address, request, error).encode())
            else:
                handler(connection, [frame], own)
            response = _only(FrameReader().feed(b"".join(own)))
            for hook in hooks:
                _never_fail(hook.after_response, connection.remote_address, request, response)
            answers += own

    return serve


def _only(commands: Iterable[RemotingCommand]) -> RemotingCommand | None:
    return next(iter(commands), None)


# Helpers


def followed(
    connection: Connection,
    request: RemotingCommand,
    handler: Handler,
    after: Callable[[RemotingCommand | None], None],
) -> Result:
    """Run a handler and call `after` with its response, now or when it is done."""
    try:
        result = handler(connection, request)
    except Exception as error:
        result = error_answer(connection.remote_address, request, error)
    if inspect.isawaitable(result):
        return _followed_later(connection, request, result, after)
    after(result)
    return result


async def _followed_later(
    connection: Connection,
    request: RemotingCommand,
    result: Awaitable[RemotingCommand | None],
    after: Callable[[RemotingCommand | None], None],
) -> RemotingCommand | None:
    try:
        answer = await result
    except Exception as error:
        answer = error_answer(connection.remote_address, request, error)
    after(answer)
    return answer


def _forgive(hook: Callable[..., None], *arguments: object) -> None:
    """Run a hook that may refuse by raising RequestError."""
    try:
        hook(*arguments)
    except RequestError:
        raise
    except Exception:
        logger.exception("hook %s failed; the request continues", _name(hook))


def _never_fail(hook: Callable[..., None], *arguments: object) -> None:
    """Run a hook that can no longer refuse."""
    try:
        hook(*arguments)
    except Exception:
        logger.exception("hook %s failed; the response is sent unchanged", _name(hook))


def _name(hook: Callable[..., None]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
