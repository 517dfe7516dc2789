"""Looks at every message that is sent or consumed: for tracing, metrics, audits.

    class Count:
        def before_send(self, sending): ...
        def after_send(self, sending): ...

    Producer(..., hooks=[Count()])

A hook is any object with the methods of `SendHook`, `ConsumeHook` or `TransactionHook`, or of
several of them. They are called on the client's event loop and must be quick; one that raises
is logged and changes nothing. A `Sending` or `Consuming` is the same object before and after:
hooks may keep what they need in its `notes`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pyromq.client.errors import OptionError

if TYPE_CHECKING:
    from pyromq.client.message import Message
    from pyromq.client.received import ReceivedMessage
    from pyromq.client.results import SendResult, TransactionState
    from pyromq.protocol.wire.bodies import MessageQueue

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
    #: Whether it is the first half of a transaction.
    is_half: bool = False
    #: How many bytes the body of the request has: compressed, or those of a whole batch.
    body_size: int = 0
    #: `time.monotonic()` when it left.
    began: float = 0.0
    #: What became of it; neither for a oneway send. Of a batch: the first message's result.
    result: SendResult | None = None
    #: The results of all messages, in their order.
    results: Sequence[SendResult] = ()
    error: BaseException | None = None
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


@dataclass(slots=True)
class EndingTransaction:
    """A transaction whose end its broker is about to be told."""

    group: str
    namespace: str
    #: The half message: as it was sent, or as the broker has shown it when it asked.
    message: Message | ReceivedMessage
    msg_id: str
    transaction_id: str
    state: TransactionState
    address: str
    #: Whether the broker has asked for it.
    is_checked: bool = False


@runtime_checkable
class SendHook(Protocol):
    """Sees each send."""

    def before_send(self, sending: Sending) -> None:
        """The request is about to leave; each attempt is told."""

    def after_send(self, sending: Sending) -> None:
        """It was answered, or failed, or was given up, or left without wanting an answer."""


@runtime_checkable
class ConsumeHook(Protocol):
    """Sees each call of a handler."""

    def before_consume(self, consuming: Consuming) -> None:
        """A handler is about to get messages."""

    def after_consume(self, consuming: Consuming) -> None:
        """It came back, or raised, or took too long."""


@runtime_checkable
class TransactionHook(Protocol):
    """Sees the end of each transaction."""

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Its outcome is on the way to the broker; told again each time that a broker asks."""


AnyHook = SendHook | ConsumeHook | TransactionHook


class Hooks:
    """A client's hooks, told one after the other."""

    def __init__(self, hooks: Iterable[AnyHook] = ()) -> None:
        self.send: list[SendHook] = []
        self.consume: list[ConsumeHook] = []
        self.transaction: list[TransactionHook] = []
        for hook in hooks:
            self.add(hook)

    def add(self, hook: AnyHook) -> None:
        """Tell this one, too."""
        if not isinstance(hook, SendHook | ConsumeHook | TransactionHook):
            raise OptionError(
                f"{hook!r} is no hook: it has neither before_send and after_send "
                "nor before_consume and after_consume nor end_transaction"
            )
        if isinstance(hook, SendHook):
            self.send.append(hook)
        if isinstance(hook, ConsumeHook):
            self.consume.append(hook)
        if isinstance(hook, TransactionHook):
            self.transaction.append(hook)

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

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Tell all how a transaction ends."""
        for hook in self.transaction:
            _call(hook.end_transaction, ending)


def _call(method: Any, argument: Sending | Consuming | EndingTransaction) -> None:
    try:
        method(argument)
    except Exception:
        logger.exception("hook %r failed: the message goes on without it", method)
