"""A consumer's handler, whatever its form, as one call: and what may come back from it.

    async def handle(message): ...        coroutine function, runs on the event loop
    def handle(message): ...              plain function, runs in a thread
    async def handle(messages): ...       with `takes_lists`: several messages at once

Returning means: consumed. Raising, `ConsumeResult.RETRY` or a `Retry` mean: again later. So
does a handler that was cancelled, but not by the consumer. One that raises SystemExit ends the
program if it is a coroutine; in a thread, that is a failure like any other.
Used by `concurrent` and `orderly`, on the consumer's event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from pyromq.client.errors import OptionError
from pyromq.client.handler_threads import (
    HandlerThreads,
    call_in_thread,
    failure_of,
    is_coroutine_function,
)
from pyromq.client.hooks import Consuming, Hooks
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)

_INT_MAX = 0x7FFFFFFF


class ConsumeResult(Enum):
    """What a handler can return."""

    SUCCESS = "success"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Retry:
    """Returned by a handler: consume again later, and when.

    `delay_level` is for handlers of single messages in any order: 0 lets the broker choose
    (longer each time), -1 sends the message to the dead letters at once. `suspend` is for
    handling in order: for how many seconds the queue rests. A handler that takes lists may
    name the `messages` that failed; the others count as consumed.
    """

    delay_level: int = 0
    suspend: float | None = None
    messages: Sequence[ReceivedMessage] | None = None

    def __post_init__(self) -> None:
        if type(self.delay_level) is not int or not -1 <= self.delay_level <= _INT_MAX:
            raise OptionError(f"delay_level={self.delay_level!r}: -1 or more is possible")
        if self.suspend is not None and not (
            isinstance(self.suspend, int | float) and self.suspend >= 0
        ):
            raise OptionError(f"suspend={self.suspend!r}: 0 or more seconds are possible")
        if self.messages is not None and not isinstance(self.messages, Sequence):
            raise OptionError(f"messages={self.messages!r}: a list of messages is needed")


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
        except BaseException as error:
            _log(messages, failure_of(error))
            return _FAILED
        return None if result is None else _outcome(result)

    async def call_raising(self, queue: MessageQueue, message: ReceivedMessage) -> Retry | None:
        """The same with one message, for those who want to see the exception."""
        consuming = self._begin(queue, [message])
        try:
            result = await self._invoke([message] if self.takes_lists else message)
        except BaseException as error:
            self._end(consuming, error)
            if isinstance(error, Exception):
                raise
            raise failure_of(error) from error
        outcome = _outcome(result)
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


def _outcome(result: Any) -> Retry | None:
    if isinstance(result, Retry):
        return result
    return _FAILED if result is ConsumeResult.RETRY else None


def _log(messages: Sequence[ReceivedMessage], error: Exception) -> None:
    logger.warning(
        "handler failed with %r%s: it is consumed again later",
        messages[0],
        f" and {len(messages) - 1} more" if len(messages) > 1 else "",
        exc_info=error,
    )
