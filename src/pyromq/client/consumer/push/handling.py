"""A consumer's handler, whatever its form, as one call: and what may come back from it.

    async def handle(message): ...        coroutine function, runs on the event loop
    def handle(message): ...              plain function, runs in a thread
    async def handle(messages): ...       with `takes_lists`: several messages at once

Returning nothing means: consumed. Raising, `ConsumeResult.RETRY` or a `Retry` mean: again later. So
does a handler that was cancelled, but not by the consumer. Anything else that it returns, as
False, is a mistake: it is logged, and the message comes again. One that raises SystemExit ends the
program if it is a coroutine; in a thread, that is a failure like any other.
Used by `concurrent` and `orderly`, on the consumer's event loop.
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast, get_origin

from pyromq.client.arguments import INT_MAX, check_count, check_seconds, refusal
from pyromq.client.errors import OptionError
from pyromq.client.handler_threads import (
    HandlerThreads,
    call_in_thread,
    failure_of,
    is_coroutine_function,
)
from pyromq.client.hooks import Consuming, Hooks
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)

#: Annotations that could not be looked up, of an argument that is a list.
_LIST_TEXT = re.compile(r"([\w.]+\.)?(list|List|Sequence|Iterable|Collection|tuple)(\[|$)")


class ConsumeResult(Enum):
    """What a handler can return."""

    SUCCESS = "success"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Retry:
    """Returned by a handler: consume again later, and when.

    `delay_level` is for handlers of single messages in any order: 0 lets the broker choose
    (longer each time), -1 sends the message to the dead letters at once, a level above the
    broker's highest counts as that one. `suspend` is for
    handling in order: for how many seconds the queue rests. A handler that takes lists may
    name the `messages` that failed; the others count as consumed.
    """

    delay_level: int = 0
    suspend: float | None = None
    messages: Sequence[ReceivedMessage] | None = None

    def __post_init__(self) -> None:
        check_count("delay_level", self.delay_level, -1, INT_MAX)
        if self.suspend is not None:
            check_seconds("suspend", self.suspend, may_be_zero=True)
        if self.messages is None:
            return
        if not isinstance(self.messages, Sequence) or isinstance(self.messages, str | bytes):
            raise refusal("messages", self.messages, "a list of messages is needed")
        for message in self.messages:
            if not isinstance(message, ReceivedMessage):
                raise refusal("messages", message, "each must be a ReceivedMessage")


HandlerResult = ConsumeResult | Retry | None
#: Takes one message, or a list of them.
Handler = (
    Callable[[ReceivedMessage], HandlerResult | Awaitable[HandlerResult]]
    | Callable[[list[ReceivedMessage]], HandlerResult | Awaitable[HandlerResult]]
)

_FAILED = Retry()


class HandlerCaller:
    """Calls a handler with messages of one queue."""

    def __init__(
        self,
        handler: Handler,
        *,
        group: str,
        namespace: str,
        takes_lists: bool,
        max_handlers: int,
        hooks: Hooks,
    ) -> None:
        self.takes_lists = takes_lists
        self._handler: Callable[[Any], Any] = handler
        self._invoke: Callable[[Any], Awaitable[Any]]
        self._group = group
        self._namespace = namespace
        self._hooks = hooks
        self._threads: HandlerThreads | None = None
        if is_coroutine_function(handler):
            self._invoke = cast(Callable[[Any], Awaitable[Any]], handler)
        else:
            self._invoke = self._in_a_thread
            self._threads = HandlerThreads(max_handlers, group)

    async def __call__(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> Retry | None:
        """None when the messages were consumed. Raises nothing but CancelledError."""
        argument = messages if self.takes_lists else messages[0]
        if self._hooks.consume:
            return await self._call_with_hooks(queue, messages, argument)
        try:
            result = await self._invoke(argument)
            return None if result is None else _outcome(result)
        except BaseException as error:
            _log(messages, failure_of(error))
            return _FAILED

    async def call_raising(self, queue: MessageQueue, message: ReceivedMessage) -> Retry | None:
        """The same with one message, for those who want to see the exception."""
        consuming = self._begin(queue, [message])
        try:
            outcome = _outcome(await self._invoke([message] if self.takes_lists else message))
        except BaseException as error:
            self._end(consuming, error)
            if isinstance(error, Exception):
                raise
            raise failure_of(error) from error
        self._end(consuming, None, success=outcome is None)
        return outcome

    def close(self) -> None:
        """Let the threads end that are not at work."""
        if self._threads is not None:
            self._threads.close()

    # Helpers, in call order.

    async def _in_a_thread(self, argument: Any) -> Any:
        assert self._threads is not None
        return await call_in_thread(self._handler, argument, self._threads)

    async def _call_with_hooks(
        self, queue: MessageQueue, messages: list[ReceivedMessage], argument: Any
    ) -> Retry | None:
        consuming = self._begin(queue, messages)
        try:
            outcome = _outcome(await self._invoke(argument))
        except BaseException as error:
            self._end(consuming, error)
            _log(messages, failure_of(error))
            return _FAILED
        self._end(consuming, None, success=outcome is None)
        return outcome

    def _begin(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> Consuming:
        consuming = Consuming(self._group, self._namespace, messages, queue, began=time.monotonic())
        self._hooks.before_consume(consuming)
        return consuming

    def _end(
        self, consuming: Consuming, error: BaseException | None, *, success: bool = False
    ) -> None:
        consuming.success = success
        consuming.error = error
        self._hooks.after_consume(consuming)


def check_handler(handler: Any, *, takes_lists: bool) -> None:
    """Refuse what cannot be a handler: it must take one argument, and what its caller gives."""
    if not callable(handler):
        raise refusal("handler", handler, "a function or coroutine function is needed")
    try:
        signature = _signature_of(handler)
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise OptionError(
            f"handler={_name_of(handler)}: it must take one argument, a message or a list of them: "
            f"{error}"
        ) from None
    first = next(iter(signature.parameters.values()))
    wants_list = _wants_list(first.annotation)
    if wants_list is True and not takes_lists:
        raise OptionError(
            f"handler={_name_of(handler)}: its argument {first.name!r} is a list, but it would get "
            "one message at a time: give takes_lists=True, or batch_size="
        )
    if wants_list is False and takes_lists:
        raise OptionError(
            f"handler={_name_of(handler)}: its argument {first.name!r} is one message, but with "
            "takes_lists or batch_size it would get lists"
        )


def _name_of(handler: Any) -> str:
    return str(getattr(handler, "__qualname__", None) or repr(handler)[:100])


def _signature_of(handler: Any) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True)
    except Exception:  # annotations of names that are known to type checkers only
        return inspect.signature(handler)


def _wants_list(annotation: Any) -> bool | None:
    """Whether an argument is a list of messages, or one; None when that is not known."""
    if isinstance(annotation, str):
        if annotation.rpartition(".")[2] == ReceivedMessage.__name__:
            return False
        return True if _LIST_TEXT.match(annotation) else None
    if annotation is ReceivedMessage:
        return False
    origin = get_origin(annotation) or annotation
    is_list = isinstance(origin, type) and issubclass(origin, Iterable)
    return True if is_list and not issubclass(origin, str | bytes | Mapping) else None


def _outcome(result: Any) -> Retry | None:
    if result is None or result is ConsumeResult.SUCCESS:
        return None
    if isinstance(result, Retry):
        return result
    if result is ConsumeResult.RETRY:
        return _FAILED
    raise TypeError(
        f"the handler returned {result!r:.100}: nothing (None) or ConsumeResult.SUCCESS means "
        "consumed; ConsumeResult.RETRY, a Retry or an exception means again later"
    )


def _log(messages: Sequence[ReceivedMessage], error: Exception) -> None:
    logger.warning(
        "handler failed with %r%s: it is consumed again later",
        messages[0],
        f" and {len(messages) - 1} more" if len(messages) > 1 else "",
        exc_info=error,
    )
