"""Observe every message that is sent or consumed, for tracing, metrics and audits.

    class Count:
        def before_send(self, sending): ...
        def after_send(self, sending): ...

    Producer(..., hooks=[Count()])

A hook is an object with the methods of `PublishHook`, `SendHook`, `ReceiveHook`, `ConsumeHook`,
`TransactionHook`, or several of these. The client calls them on its event loop, so they must be
quick. An exception in a hook is logged and has no other effect. The calls before and after get the
same object, whose `notes` are free for the hook's own data.

`install` adds a hook to every client that is created afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pyromq.client.errors import OptionError

if TYPE_CHECKING:
    from pyromq.client.message import Message
    from pyromq.client.received import ReceivedMessage
    from pyromq.client.results import SendResult, TransactionState
    from pyromq.protocol.wire.bodies import MessageQueue

logger = logging.getLogger(__name__)


class PublishOperation(Enum):
    """The producer's method that publishes."""

    SEND = "send"
    BATCH = "send_batch"
    ONEWAY = "send_oneway"
    REQUEST = "request"
    TRANSACTION = "send_in_transaction"


@dataclass(slots=True)
class Publishing:
    """A call of a producer's method and its messages; its outcome is set before `after_publish`."""

    operation: PublishOperation
    group: str
    namespace: str
    #: A hook may replace them by copies with other properties; it must not change the originals.
    messages: Sequence[Message]
    #: The results of the messages that were stored, in order.
    results: Sequence[SendResult] = ()
    #: The address of the broker that stored the first message.
    address: str = ""
    #: The reply to a request.
    reply: ReceivedMessage | None = None
    #: The outcome of a transaction.
    state: TransactionState | None = None
    #: The exception of the call, or that of a transaction's `execute`.
    error: BaseException | None = None
    #: Free for the hook's own data.
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Sending:
    """A send request and its messages; its outcome is set before `after_send`."""

    group: str
    namespace: str
    messages: Sequence[Message]
    #: The messages' unique keys, in order.
    msg_ids: Sequence[str]
    queue: MessageQueue
    address: str
    is_oneway: bool = False
    #: Whether the message is the half message of a transaction.
    is_half: bool = False
    #: Size of the request's body in bytes: compressed, or the whole batch.
    body_size: int = 0
    #: `time.monotonic()` when the request left.
    began: float = 0.0
    #: The result of the first message. A oneway send has neither result nor error.
    result: SendResult | None = None
    #: The results of all messages, in order.
    results: Sequence[SendResult] = ()
    #: The exception that ended the attempt.
    error: BaseException | None = None
    #: Free for the hook's own data.
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Receiving:
    """Messages that a program gets from a pull or lite pull consumer."""

    group: str
    namespace: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    #: `time.monotonic()` when the program asked for messages.
    began: float


@dataclass(slots=True)
class Consuming:
    """A call of a handler and its messages; its outcome is set before `after_consume`."""

    group: str
    namespace: str
    messages: Sequence[ReceivedMessage]
    queue: MessageQueue
    #: `time.monotonic()` when the handler was called.
    began: float = 0.0
    #: False if the program reads from a lite pull consumer: there is no handler.
    has_handler: bool = True
    #: Whether the messages were consumed.
    success: bool = False
    #: The exception of a handler that failed.
    error: BaseException | None = None
    #: Free for the hook's own data.
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class EndingTransaction:
    """The outcome of a transaction, about to be sent to its broker."""

    group: str
    namespace: str
    #: The half message as sent, or as received in the broker's check.
    message: Message | ReceivedMessage
    msg_id: str
    transaction_id: str
    state: TransactionState
    address: str
    #: Whether the broker asked for the outcome.
    is_checked: bool = False


@runtime_checkable
class PublishHook(Protocol):
    """Observes the calls of a producer's methods, each once, whatever is retried."""

    def before_publish(self, publishing: Publishing) -> None:
        """Handle messages that are about to be encoded. Called in the caller's task."""

    def after_publish(self, publishing: Publishing) -> None:
        """Handle the outcome of the call. Called in the same task."""


@runtime_checkable
class SendHook(Protocol):
    """Observes send requests."""

    def before_send(self, sending: Sending) -> None:
        """Handle a request that is about to leave. Called once for each attempt."""

    def after_send(self, sending: Sending) -> None:
        """Handle a request that was answered, failed, was cancelled, or was sent oneway."""


@runtime_checkable
class ReceiveHook(Protocol):
    """Observes messages that a program pulls."""

    def after_receive(self, receiving: Receiving) -> None:
        """Handle messages that the program is about to get."""


@runtime_checkable
class ConsumeHook(Protocol):
    """Observes calls of a consumer's handler."""

    def before_consume(self, consuming: Consuming) -> None:
        """Handle messages that the handler is about to get."""

    def after_consume(self, consuming: Consuming) -> None:
        """Handle the outcome: the handler returned, raised or timed out."""


@runtime_checkable
class TransactionHook(Protocol):
    """Observes the outcomes of transactions."""

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Handle an outcome that is about to be sent. Called again for each check by a broker."""


AnyHook = PublishHook | SendHook | ReceiveHook | ConsumeHook | TransactionHook


def install(hook: AnyHook) -> None:
    """Add a hook to every client of this process that is created from now on."""
    Hooks([hook])  # refuses an object without the methods
    _installed.append(hook)


def uninstall(hook: AnyHook) -> None:
    """Undo `install`; clients that exist keep the hook."""
    _installed.remove(hook)


_installed: list[AnyHook] = []


class Hooks:
    """A client's hooks, called in order."""

    def __init__(self, hooks: Iterable[AnyHook] = ()) -> None:
        self.publish: list[PublishHook] = []
        self.send: list[SendHook] = []
        self.receive: list[ReceiveHook] = []
        self.consume: list[ConsumeHook] = []
        self.transaction: list[TransactionHook] = []
        for hook in (*hooks, *_installed):
            self.add(hook)

    def add(self, hook: AnyHook) -> None:
        """Add a hook; raises OptionError if it has none of the methods."""
        if not isinstance(hook, AnyHook):
            raise OptionError(
                f"{hook!r} is not a hook: it needs before_publish and after_publish, before_send "
                "and after_send, after_receive, before_consume and after_consume, or "
                "end_transaction"
            )
        if isinstance(hook, PublishHook):
            self.publish.append(hook)
        if isinstance(hook, SendHook):
            self.send.append(hook)
        if isinstance(hook, ReceiveHook):
            self.receive.append(hook)
        if isinstance(hook, ConsumeHook):
            self.consume.append(hook)
        if isinstance(hook, TransactionHook):
            self.transaction.append(hook)

    def before_publish(self, publishing: Publishing) -> None:
        """Call the hooks for messages that are about to be encoded."""
        for hook in self.publish:
            _call(hook.before_publish, publishing)

    def after_publish(self, publishing: Publishing) -> None:
        """Call the hooks with the outcome of a call, the last hook first."""
        for hook in reversed(self.publish):
            _call(hook.after_publish, publishing)

    def before_send(self, sending: Sending) -> None:
        """Call the hooks for a request that is about to leave."""
        for hook in self.send:
            _call(hook.before_send, sending)

    def after_send(self, sending: Sending) -> None:
        """Call the hooks with a request's outcome."""
        for hook in self.send:
            _call(hook.after_send, sending)

    def after_receive(self, receiving: Receiving) -> None:
        """Call the hooks for messages that the program is about to get."""
        for hook in self.receive:
            _call(hook.after_receive, receiving)

    def before_consume(self, consuming: Consuming) -> None:
        """Call the hooks for messages that a handler is about to get."""
        for hook in self.consume:
            _call(hook.before_consume, consuming)

    def after_consume(self, consuming: Consuming) -> None:
        """Call the hooks with a handler's outcome."""
        for hook in self.consume:
            _call(hook.after_consume, consuming)

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Call the hooks with a transaction's outcome."""
        for hook in self.transaction:
            _call(hook.end_transaction, ending)


def _call(method: Any, argument: Any) -> None:
    try:
        method(argument)
    except Exception:
        logger.exception("hook %r failed; the message is not affected", method)
