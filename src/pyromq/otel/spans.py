"""A hook that makes spans of what clients do.

    send, send_oneway, send_in_transaction
                `send TOPIC` (producer); the message carries its context
    send_batch  `create TOPIC` (producer) for each message, which carries its context, and
                `send TOPIC` (client), linked to all of them
    request     `request TOPIC` (client), linked to the reply; inside it, `send TOPIC`
    pulls       `receive TOPIC` (client), linked to each message
    handlers    `process TOPIC` (consumer), linked to each message, current in the handler; for one
                message it is also a child of the linked span, and the message's baggage is current
    the end of a transaction
                `settle TOPIC` (client), linked to the message

Invariants:
1. Nothing here fails or delays a message: the client logs an exception of a hook and continues.
2. After `stop` the hook does nothing, also in clients that still have it.
3. The current context is restored in the task that changed it.

Called by the client's hooks on its event loop, before and after in one task.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from pyromq.client.hooks import (
    Consuming,
    EndingTransaction,
    Publishing,
    PublishOperation,
    Receiving,
)
from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.client.trace import is_trace_group
from pyromq.otel import attributes
from pyromq.otel.attributes import OperationType
from pyromq.otel.propagation import context_of, link_of, link_to, with_context

#: Key of an open span in the notes of a hook's argument.
_NOTE: Final = "pyromq.otel"
_RETRY: Final = "retry"


class _Open(NamedTuple):
    """A span that has begun, and what makes it no longer current."""

    span: Span
    token: object


class TracingHook:
    """Makes spans with a tracer until `stop`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._is_stopped = False

    def stop(self) -> None:
        """Make no more spans; open ones end as usual."""
        self._is_stopped = True

    # Producers

    def before_publish(self, publishing: Publishing) -> None:
        """Begin a span, and put its context into copies of the messages."""
        if self._is_off(publishing.group):
            return
        operation, messages = publishing.operation, publishing.messages
        is_request = operation is PublishOperation.REQUEST
        is_half = operation is PublishOperation.TRANSACTION
        kind, links = SpanKind.PRODUCER, _links(messages)
        if is_request:
            kind = SpanKind.CLIENT
        elif len(messages) > 1:
            kind = SpanKind.CLIENT
            publishing.messages, links = self._created(publishing)
        span = self._begin(
            "request" if is_request else "send",
            OperationType.SEND,
            messages[0].topic,
            publishing.namespace,
            kind,
            links,
        )
        if span.is_recording():
            span.set_attribute(attributes.PRODUCER_GROUP, publishing.group)
            if len(messages) == 1:
                span.set_attributes(attributes.of_message(messages[0], is_half=is_half))
            else:
                span.set_attribute(attributes.BATCH_COUNT, len(messages))
        inside = trace.set_span_in_context(span)
        if kind is SpanKind.PRODUCER:
            publishing.messages = [with_context(message, inside) for message in messages]
        publishing.notes[_NOTE] = _Open(span, current.attach(inside))

    def after_publish(self, publishing: Publishing) -> None:
        """End the span with the outcome."""
        opened: _Open | None = publishing.notes.pop(_NOTE, None)
        if opened is None:
            return
        span = opened.span
        if span.is_recording():
            address = publishing.address or getattr(publishing.error, "address", "")
            span.set_attributes(attributes.of_results(publishing.results, str(address)))
            if publishing.state is not None:
                span.set_attribute(attributes.TRANSACTION_STATE, publishing.state.name)
            reply = None if publishing.reply is None else link_to(publishing.reply)
            if reply is not None:
                span.add_link(reply.context)
        _end(opened, publishing.error)

    def end_transaction(self, ending: EndingTransaction) -> None:
        """Make a span for the outcome that is about to be sent."""
        if self._is_off(ending.group):
            return
        message = ending.message
        span = self._begin(
            "settle",
            OperationType.SETTLE,
            message.topic,
            ending.namespace,
            SpanKind.CLIENT,
            _links([message]),
        )
        if span.is_recording():
            span.set_attributes(attributes.of_message(message, is_half=True))
            span.set_attributes(attributes.of_address(ending.address))
            span.set_attributes(
                {
                    attributes.PRODUCER_GROUP: ending.group,
                    attributes.MESSAGE_ID: ending.msg_id,
                    attributes.TRANSACTION_STATE: ending.state.name,
                }
            )
        span.end()

    # Consumers

    def after_receive(self, receiving: Receiving) -> None:
        """Make a span from the program's question to the messages that it gets."""
        if self._is_off(receiving.group):
            return
        waited = time.monotonic() - receiving.began
        span = self._begin(
            "receive",
            OperationType.RECEIVE,
            receiving.messages[0].topic,
            receiving.namespace,
            SpanKind.CLIENT,
            _links(receiving.messages),
            start_time=time.time_ns() - int(waited * 1e9),
        )
        if span.is_recording():
            found = attributes.of_consumer(receiving.group, receiving.queue, receiving.messages)
            # A pull may bring any number of messages: also one is a batch.
            span.set_attributes({**found, attributes.BATCH_COUNT: len(receiving.messages)})
        span.end()

    def before_consume(self, consuming: Consuming) -> None:
        """Begin a span, current in the handler."""
        if not consuming.has_handler or self._is_off(consuming.group):
            return
        messages = consuming.messages
        if len(messages) == 1:
            outside = context_of(messages[0])
            link = link_of(outside)
            links = [] if link is None else [link]
        else:
            outside, links = Context(), _links(messages)
        span = self._begin(
            "process",
            OperationType.PROCESS,
            messages[0].topic,  # not that of a retry queue
            consuming.namespace,
            SpanKind.CONSUMER,
            links,
            context=outside,
        )
        if span.is_recording():
            span.set_attributes(attributes.of_consumer(consuming.group, consuming.queue, messages))
        token = current.attach(trace.set_span_in_context(span, outside))
        consuming.notes[_NOTE] = _Open(span, token)

    def after_consume(self, consuming: Consuming) -> None:
        """End the span with the handler's outcome."""
        opened: _Open | None = consuming.notes.pop(_NOTE, None)
        if opened is None:
            return
        if consuming.error is None and not consuming.success:
            opened.span.set_attribute(attributes.ERROR_TYPE, _RETRY)
            opened.span.set_status(Status(StatusCode.ERROR, "the handler asked for a retry"))
        _end(opened, consuming.error)

    # Helpers

    def _is_off(self, group: str) -> bool:
        return self._is_stopped or is_trace_group(group) or not is_instrumentation_enabled()

    def _created(self, publishing: Publishing) -> tuple[list[Message], list[Link]]:
        """Make a span for each message of a batch; return copies with its context, and links."""
        messages, links = [], []
        for message in publishing.messages:
            span = self._begin(
                "create",
                OperationType.CREATE,
                message.topic,
                publishing.namespace,
                SpanKind.PRODUCER,
                _links([message]),
            )
            if span.is_recording():
                span.set_attributes(attributes.of_message(message))
            messages.append(with_context(message, trace.set_span_in_context(span)))
            links.append(Link(span.get_span_context()))
            span.end()
        return messages, links

    def _begin(
        self,
        name: str,
        operation: OperationType,
        topic: str,
        namespace: str,
        kind: SpanKind,
        links: Sequence[Link],
        *,
        context: Context | None = None,
        start_time: int | None = None,
    ) -> Span:
        return self._tracer.start_span(
            f"{name} {topic}",
            context,
            kind,
            attributes.of_operation(name, operation, topic, namespace),
            links,
            start_time,
        )


def _links(messages: Iterable[Message | ReceivedMessage]) -> list[Link]:
    """Return links to the spans that created messages, as far as they name one."""
    return [link for message in messages if (link := link_to(message)) is not None]


def _end(opened: _Open, error: BaseException | None) -> None:
    span, token = opened
    if error is not None:
        span.record_exception(error)
        span.set_attribute(attributes.ERROR_TYPE, type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end()
    current.detach(token)  # type: ignore[arg-type]
