"""A tracer with an exporter in memory, for tests of spans."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from tests.support.patience import until


class Recorder:
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The spans in the order of their ends, all or those of a name."""
        found = self._exporter.get_finished_spans()
        return [span for span in found if not name or span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (found,) = self.spans(name)
        return found

    async def until(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait for spans of a name."""
        await until(lambda: len(self.spans(name)) >= count)
        return self.spans(name)


def context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    """Trace and span of each link."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def place(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span of a span itself, to compare with `linked`."""
    return context(span).trace_id, context(span).span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)
