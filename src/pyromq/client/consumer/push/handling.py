"""Call a consumer's handler in any of its forms, and interpret its result.

    async def handle(message): ...        coroutine function, runs on the event loop
    def handle(message): ...              plain function, runs in a thread
    async def handle(messages): ...       with `takes_lists`: several messages per call

Returning None or `ConsumeResult.SUCCESS` means that the message is consumed. Raising, or returning
`ConsumeResult.RETRY` or a `Retry`, means that it is delivered again later. So does a cancellation
that does not come from the consumer. Any other result, such as False, is a bug in the handler: it
is logged, and the message is delivered again. SystemExit ends the program if the handler is a
coroutine; in a thread it is a failure like any other.

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
from typing import Any, Final, cast, get_origin

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

#: Matches an unresolved annotation of an argument that is a list.
_LIST_ANNOTATION: Final = re.compile(
    r"([\w.]+\.)?(list|List|Sequence|Iterable|Collection|tuple)(\[|$)"
)


class ConsumeResult(Enum):
    """The result of a handler: consumed, or to be delivered again later. None means SUCCESS."""

    SUCCESS = "success"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Retry:
    """The result of a handler that wants its messages delivered again.

    `delay_level` applies to concurrent consumers: with 0 the broker chooses a delay that grows
    with each attempt, -1 makes the message a dead letter at once, and a level above the broker's
    highest counts as the highest. `suspend` applies to orderly consumers: the pause in seconds
    before the queue continues. A handler that takes lists may name the `messages` that failed;
    the others count as consumed.
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
            raise refusal("messages", self.messages, "expected a list of messages")
        for message in self.messages:
            if not isinstance(message, ReceivedMessage):
                raise refusal("messages", message, "expected a ReceivedMessage")


HandlerResult = ConsumeResult | Retry | None
#: A function or coroutine function that takes one message, or a list of them.
Handler = (
    Callable[[ReceivedMessage], HandlerResult | Awaitable[HandlerResult]]
    | Callable[[list[ReceivedMessage]], HandlerResult | Awaitable[HandlerResult]]
)

_FAILED = Retry()


class HandlerCaller:
    """Calls a handler, with the hooks around it."""

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
        """Handle messages of one queue; return None if they were consumed.

        Raises nothing but CancelledError.
        """
        argument = [*messages] if self.takes_lists else messages[0]
        if self._hooks.consume:
            return await self._call_with_hooks(queue, messages, argument)
        try:
            result = await self._invoke(argument)
            return None if result is None else outcome_of(result)
        except BaseException as error:
            return self.failed(messages, error)

    @property
    def plain_handler(self) -> Callable[[Any], Awaitable[Any]] | None:
        """Return the handler if it is a coroutine function without hooks, else None.

        Call it with a message or, if `takes_lists`, with a list, and interpret its result with
        `outcome_of` and its exception with `failed`.
        """
        return self._invoke if self._threads is None and not self._hooks.consume else None

    def failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> Retry:
        """Log the exception of a handler and return its outcome; raises CancelledError."""
        logger.warning(
            "handler failed on %r%s, redelivering",
            messages[0],
            f" and {len(messages) - 1} more" if len(messages) > 1 else "",
            exc_info=failure_of(error),
        )
        return _FAILED

    async def call_raising(self, queue: MessageQueue, message: ReceivedMessage) -> Retry | None:
        """Handle one message like `__call__`, but raise the handler's exception."""
        consuming = self._begin(queue, [message])
        try:
            outcome = outcome_of(await self._invoke([message] if self.takes_lists else message))
        except BaseException as error:
            self._end(consuming, error)
            if isinstance(error, Exception):
                raise
            raise failure_of(error) from error
        self._end(consuming, None, success=outcome is None)
        return outcome

    def close(self) -> None:
        """End the idle threads."""
        if self._threads is not None:
            self._threads.close()

    # Helpers, in call order.

    async def _in_a_thread(self, argument: Any) -> Any:
        assert self._threads is not None
        with_context = bool(self._hooks.consume)
        return await call_in_thread(
            self._handler, argument, self._threads, with_context=with_context
        )

    async def _call_with_hooks(
        self, queue: MessageQueue, messages: list[ReceivedMessage], argument: Any
    ) -> Retry | None:
        consuming = self._begin(queue, messages)
        try:
            outcome = outcome_of(await self._invoke(argument))
        except BaseException as error:
            self._end(consuming, error)
            return self.failed(messages, error)
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
    """Raise OptionError unless `handler` takes one argument of the kind that it will get."""
    if not callable(handler):
        raise refusal("handler", handler, "expected a function or coroutine function")
    try:
        signature = _signature_of(handler)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise OptionError(
            f"handler={_name_of(handler)}: it must take one argument, a message or a list of "
            f"messages: {error}"
        ) from None
    first = next(iter(signature.parameters.values()))
    wants_list = _wants_list(first.annotation)
    if wants_list is True and not takes_lists:
        raise OptionError(
            f"handler={_name_of(handler)}: its argument {first.name!r} is a list, but it would get "
            "one message at a time: set takes_lists=True or batch_size"
        )
    if wants_list is False and takes_lists:
        raise OptionError(
            f"handler={_name_of(handler)}: its argument {first.name!r} is one message, but it "
            "would get lists: do not set takes_lists or batch_size"
        )


def _name_of(handler: Any) -> str:
    return str(getattr(handler, "__qualname__", None) or repr(handler)[:100])


def _signature_of(handler: Any) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True)
    except Exception:  # annotations may name types that exist for type checkers only
        return inspect.signature(handler)


def _wants_list(annotation: Any) -> bool | None:
    """Return whether an annotation means a list of messages; None if it does not tell."""
    if isinstance(annotation, str):
        if annotation.rpartition(".")[2] == ReceivedMessage.__name__:
            return False
        return True if _LIST_ANNOTATION.match(annotation) else None
    if annotation is ReceivedMessage:
        return False
    origin = get_origin(annotation) or annotation
    is_list = isinstance(origin, type) and issubclass(origin, Iterable)
    return True if is_list and not issubclass(origin, str | bytes | Mapping) else None


def outcome_of(result: Any) -> Retry | None:
    """Interpret the result of a handler; raises TypeError."""
    if result is None or result is ConsumeResult.SUCCESS:
        return None
    if isinstance(result, Retry):
        return result
    if result is ConsumeResult.RETRY:
        return _FAILED
    raise TypeError(
        f"handler returned {result!r:.100}: return None or ConsumeResult.SUCCESS if the message is "
        "consumed; return ConsumeResult.RETRY or a Retry, or raise, to get it again later"
    )
