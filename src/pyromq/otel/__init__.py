"""OpenTelemetry traces of pyromq's clients: spans for send, receive and process.

    PyromqInstrumentor().instrument()

or, without a change of the program, `opentelemetry-instrument python program.py`. Needs the extra
`pyromq[otel]`. docs/tracing.md describes the spans.
"""

from __future__ import annotations

from pyromq.otel.instrumentor import PyromqInstrumentor
from pyromq.otel.propagation import context_of, link_to

__all__ = ["PyromqInstrumentor", "context_of", "link_to"]
