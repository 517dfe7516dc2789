"""Looks at every message that is sent or consumed: for tracing, metrics, audits.

    class Count:
        def before_send(self, sending): ...
        def after_send(self, sending): ...

    Producer(..., hooks=[Count()])

A hook is any object with the methods of `SendHook` or of `ConsumeHook`, or both. They are
called on the client's event loop and must be quick; one that raises is logged and changes
nothing. A `Sending` or `Consuming` is the same object before and after: hooks may keep what
they need in its `notes`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyromq.client.message import Message
    from pyromq.client.received import ReceivedMessage
    from pyromq.client.results import SendResult
    from pyromq.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sending:
    """One request with its messages: before it leaves, and when its outcome is known."""

    group: str
    namespace: str
    messages: Sequence[Message]
    #: The unique keys of the messages, in their order.
    msg_ids: Sequence[str]
    queue: MessageQueue
    address: str
    is_oneway: bool = False
    #: `time.monotonic()` when it left.
    began: float = 0.0
    #: What became of it; neither for a oneway send.
    result: SendResult | None = None
    error: Exception | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Consuming:
    """Messages on their way to a handler, and back."""

    group: str
    namespace: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    began: float = 0.0
    #: Whether the handler took them; and why not.
    success: bool = False
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class SendHook(Protocol):
    """Sees each send."""

    def before_send(self, sending: Sending) -> None:
        """The request is about to leave; each attempt is told."""

    def after_send(self, sending: Sending) -> None:
        """It was answered, or failed, or left without wanting an answer."""


@runtime_checkable
class ConsumeHook(Protocol):
    """Sees each call of a handler."""

    def before_consume(self, consuming: Consuming) -> None:
        """A handler is about to get messages."""

    def after_consume(self, consuming: Consuming) -> None:
        """It came back, or raised, or took too long."""


class Hooks:
    """A client's hooks, told one after the other."""

    def __init__(self, hooks: Iterable[SendHook | ConsumeHook] = ()) -> None:
        self.send: list[SendHook] = []
        self.consume: list[ConsumeHook] = []
        for hook in hooks:
            self.add(hook)

    def add(self, hook: SendHook | ConsumeHook) -> None:
        """Tell this one, too."""
        if not isinstance(hook, SendHook | ConsumeHook):
            raise TypeError(
                f"{hook!r} is no hook: it has neither before_send and after_send "
                "nor before_consume and after_consume"
            )
        if isinstance(hook, SendHook):
            self.send.append(hook)
        if isinstance(hook, ConsumeHook):
            self.consume.append(hook)

    def before_send(self, sending: Sending) -> None:
        """Tell all of a request that is about to leave."""
        for hook in self.send:
            _call(hook.before_send, sending)

    def after_send(self, sending: Sending) -> None:
        """Tell all what became of a request."""
        for hook in self.send:
            _call(hook.after_send, sending)

    def before_consume(self, consuming: Consuming) -> None:
        """Tell all of messages on their way to a handler."""
        for hook in self.consume:
            _call(hook.before_consume, consuming)

    def after_consume(self, consuming: Consuming) -> None:
        """Tell all what a handler made of its messages."""
        for hook in self.consume:
            _call(hook.after_consume, consuming)


def _call(method: Any, argument: Sending | Consuming) -> None:
    try:
        method(argument)
    except Exception:
        logger.exception("hook %r failed: the message goes on without it", method)
