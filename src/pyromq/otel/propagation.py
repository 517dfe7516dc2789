"""Carry the context of a trace in the properties of a message.

The configured propagator chooses the names: `traceparent`, `tracestate` and `baggage` by default,
as Java's clients under OpenTelemetry's agent write and read them.

Invariants:
1. A message that the application passes is never changed; a copy carries the context.
2. A message that a broker accepts without the context is accepted with it: what does not fit, or
   cannot be a property, is left out.
3. Nothing in a received message can make `context_of` raise.

Called by `spans` on the client's event loop, and by applications on any thread.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link

from pyromq.client.message import Message
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.message.properties import MAX_PROPERTIES
from pyromq.protocol.message.system_properties import fault_of

logger = logging.getLogger(__name__)

#: Bytes for what a client adds: unique key, flags, the ids of a request.
_RESERVED_BYTES: Final = 1024
_SEPARATORS: Final = ("\x01", "\x02")


def with_context(message: Message, context: Context) -> Message:
    """Return a copy of a message that carries a context, or the message itself if nothing fits."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    fitting = {name: value for name, value in carrier.items() if _is_sendable(name, value)}
    if not fitting or not isinstance(message.properties, Mapping):
        return message
    properties = {**message.properties, **fitting}
    if _size_of(message, properties) > MAX_PROPERTIES - _RESERVED_BYTES:
        logger.warning(
            "message for %s carries no trace context: its properties would exceed %d bytes",
            message.topic,
            MAX_PROPERTIES,
        )
        return message
    carrying = copy.copy(message)
    carrying.properties = properties
    return carrying


def context_of(message: ReceivedMessage | Message) -> Context:
    """Return the context that a message carries, with its baggage; an empty one if it has none."""
    try:
        properties = message.properties
        return propagate.extract(properties, Context(), _GETTER) if properties else Context()
    except Exception:
        logger.exception("the trace context of %r cannot be read", message)
        return Context()


def link_to(message: ReceivedMessage | Message) -> Link | None:
    """Return a link to the span that created a message, or None if the message names none."""
    return link_of(context_of(message))


def link_of(context: Context) -> Link | None:
    """Return a link to the span of a context, or None if it has none."""
    span = trace.get_current_span(context).get_span_context()
    return Link(span) if span.is_valid else None


class _PropertyGetter(Getter[Mapping[str, str]]):
    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return [*carrier]


_GETTER: Final = _PropertyGetter()


def _is_sendable(name: str, value: str) -> bool:
    return bool(
        name
        and value
        and fault_of(name) is None
        and not any(each in name or each in value for each in _SEPARATORS)
    )


def _size_of(message: Message, properties: Mapping[str, str]) -> int:
    keys: str | Sequence[str] = message.keys
    texts = [message.tags, message.ordering_key, *([keys] if isinstance(keys, str) else keys)]
    texts += [text for entry in properties.items() for text in entry]
    return sum(len(str(text).encode(errors="replace")) + 1 for text in texts)
