"""A context travels in properties, and nothing it meets there fails a message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    CarrierT,
    DefaultGetter,
    Getter,
    Setter,
    TextMapPropagator,
    default_setter,
)

from pyromq.client import Message
from pyromq.client.message import ClientMessage
from pyromq.otel.propagation import context_of, link_to, with_context
from pyromq.protocol.message.properties import MAX_PROPERTIES
from tests.unit.otel.tracing import Recorder, context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spanned() -> Context:
    span = Recorder().tracer.start_span("outer")
    span.end()
    return trace.set_span_in_context(span)


def test_a_copy_carries_the_context_and_the_baggage() -> None:
    outer = baggage.set_baggage("tenant", "a b", spanned())
    message = Message("orders", b"x", tags="t", properties={"own": "1"})
    carrying = with_context(message, outer)
    assert message.properties == {"own": "1"}
    assert (carrying.topic, carrying.body, carrying.tags) == ("orders", b"x", "t")
    assert set(carrying.properties) == {"own", "traceparent", "baggage"}
    found = context_of(carrying)
    wanted = trace.get_current_span(outer).get_span_context()
    assert trace.get_current_span(found).get_span_context().span_id == wanted.span_id
    assert baggage.get_baggage("tenant", found) == "a b"
    link = link_to(carrying)
    assert link is not None
    assert link.context.trace_id == wanted.trace_id


def test_a_copy_is_of_the_same_kind() -> None:
    reply = ClientMessage("orders", b"x", system_properties={"CLUSTER": "c"})
    carrying = with_context(reply, spanned())
    assert isinstance(carrying, ClientMessage)
    assert carrying.system_properties == {"CLUSTER": "c"}


def test_without_a_span_nothing_is_added() -> None:
    message = Message("orders", b"x")
    assert with_context(message, Context()) is message
    assert link_to(message) is None


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"traceparent": "garbage"},
        {"traceparent": PARENT[:-3]},
        {"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"},
        {"traceparent": PARENT + "\u0000\ud800", "tracestate": "=,=;;", "baggage": "%zz=\x7f,,"},
        {"traceparent": "ff" + PARENT[2:]},
    ],
)
def test_garbage_is_no_context(properties: dict[str, str]) -> None:
    message = Message("orders", b"x", properties=properties)
    found = context_of(message)
    assert not trace.get_current_span(found).get_span_context().is_valid
    assert link_to(message) is None


def test_a_bad_state_leaves_the_parent() -> None:
    properties = {"traceparent": PARENT, "tracestate": "===", "baggage": "no"}
    link = link_to(Message("orders", b"x", properties=properties))
    assert link is not None
    assert f"{link.context.span_id:x}" == "b7ad6b7169203331"


def test_a_context_that_does_not_fit_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    message = Message("orders", b"x", properties={"own": "x" * (MAX_PROPERTIES - 200)})
    assert with_context(message, spanned()) is message
    assert "carries no trace context" in caplog.text
    message.wire_properties("K" * 32)
    # The longest that still carries one is accepted as well.
    message = Message("orders", b"x", properties={"own": "x" * (MAX_PROPERTIES - 1300)})
    carrying = with_context(message, spanned())
    assert "traceparent" in carrying.properties
    carrying.wire_properties("K" * 32)


class Odd(TextMapPropagator):
    """Writes what cannot be a property, and raises when it reads."""

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = DefaultGetter(),  # type: ignore[assignment]  # noqa: B008
    ) -> Context:
        assert getter.keys(carrier) is not None
        raise ValueError("odd")

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        for name, value in {"": "a", "b": "", "c": "\x01", "TAGS": "d", "fine": "e"}.items():
            setter.set(carrier, name, value)

    @property
    def fields(self) -> set[str]:
        return set()


@pytest.fixture
def odd() -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Odd())
    yield
    propagate.set_global_textmap(before)


def test_another_propagator(odd: None, caplog: pytest.LogCaptureFixture) -> None:
    carrying = with_context(Message("orders", b"x"), Context())
    assert carrying.properties == {"fine": "e"}
    assert context_of(carrying) == Context()
    assert "cannot be read" in caplog.text


def test_the_context_of_a_span() -> None:
    span = Recorder().provider.get_tracer("t").start_span("one")
    span.end()
    carrying = with_context(Message("orders", b"x"), trace.set_span_in_context(span))
    link = link_to(carrying)
    assert link is not None
    assert link.context.span_id == context(span).span_id  # type: ignore[arg-type]
