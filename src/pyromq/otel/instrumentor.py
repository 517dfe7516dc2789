"""The entry point of OpenTelemetry's instrumentation: `opentelemetry-instrument` finds it by name.

It installs one hook into the clients of this process. Clients that were created before are not
traced. After `uninstrument` no client makes spans, also none that was created before it.

Called by programs, on any thread, before they create clients.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from pyromq import __version__
from pyromq.client import hooks
from pyromq.otel.spans import TracingHook

#: The version of the semantic conventions that the names of attributes are from.
_SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"


class PyromqInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces every client that is created after `instrument()`.

    `instrument(tracer_provider=...)` takes another provider than the global one.
    """

    _hook: TracingHook | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed."""
        return ("pyromq",)

    def _instrument(self, **kwargs: Any) -> None:
        provider = kwargs.get("tracer_provider")
        tracer = trace.get_tracer("pyromq", __version__, provider, _SCHEMA_URL)
        self._hook = TracingHook(tracer)
        hooks.install(self._hook)

    def _uninstrument(self, **_: Any) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.stop()
            hooks.uninstall(hook)
