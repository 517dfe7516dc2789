"""The HTTP port of a server: /metrics, /healthz and /readyz.

    endpoint = Endpoint(config, {"cluster": "c", ...}, collectors, readiness)
    endpoint.bind()           # raises OSError
    await endpoint.start()
    ...
    await endpoint.stop()

Invariants
1. Values are made at scrape time from live tables: a deleted topic has no series in the next
   scrape.
2. A scrape works in slices of `SLICE_SECONDS` on the loop, with a loop iteration between two of
   them, so a send waits for one slice. A thread would hold the GIL for its switch interval whenever
   the loop wants it back, which is worse (docs/adr, 2026-11-17-own-text-writer).
3. One scrape runs at a time; more than `MAX_WAITING_SCRAPES` are refused with 503.

The families of this module, of the process and of Python's garbage collector come from the
registry of `prometheus_client`, everything else from the server's collectors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson

from pyromq.metrics.family import Family, counter, gauge
from pyromq.metrics.http_server import HttpServer, Response
from pyromq.metrics.loop_delay import LOOP_DELAY, LoopDelay
from pyromq.metrics.page import Collector, Page, Steps, label_text
from pyromq.metrics.settings import ServerMetricsConfig, labels_of, listen_host
from pyromq.remoting.server import bound_socket

logger = logging.getLogger(__name__)

#: Work on the loop between two loop iterations.
SLICE_SECONDS: Final = 0.001
MAX_WAITING_SCRAPES: Final = 8

SCRAPE_SECONDS: Final[Family] = gauge(
    "pyromq_scrape_seconds",
    "How long the last scrape took, in seconds; part `loop`: on the loop.",
    ("part",),
)
SCRAPE_SERIES: Final[Family] = gauge(
    "pyromq_scrape_series", "Series of the server in the last scrape, without those of Python."
)
SCRAPES: Final[Family] = counter("pyromq_scrapes_total", "Scrapes since the start.")
DROPPED: Final[Family] = counter(
    "pyromq_scrape_dropped_series_total",
    "Series that scrapes left out because their metric reached metricsOtelCardinalityLimit.",
    ("metric",),
)

FAMILIES: Final = (SCRAPE_SECONDS, SCRAPE_SERIES, SCRAPES, DROPPED, LOOP_DELAY)

#: Returns what keeps a server from doing its job, by the name of the check; None if it passes.
Readiness = Callable[[], Mapping[str, str | None]]


async def nothing() -> None:
    """Prepare nothing."""


class Endpoint:
    """The port for metrics and health of one server."""

    def __init__(
        self,
        config: ServerMetricsConfig,
        labels: Mapping[str, str],
        collectors: Sequence[Collector],
        readiness: Readiness,
        prepare: Callable[[], Awaitable[None]] = nothing,
        *,
        max_series: Callable[[], int] | None = None,
    ) -> None:
        """Every series gets `labels` and those of metricsLabel. `prepare` runs before a scrape.

        `max_series` returns the current limit, if the configuration does not.
        """
        self._max_series = max_series or (lambda: config.metrics_otel_cardinality_limit)
        self._config = config
        self._labels = {**labels, **labels_of(config)}
        self._collectors = [*collectors, self._collect_own]
        self._readiness = readiness
        self._prepare = prepare
        self._registry = _registry()
        self._socket: socket.socket | None = None
        self._port = config.metrics_prom_exporter_port
        self._http = HttpServer(
            {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}
        )
        self.loop_delay = LoopDelay()
        self._one = asyncio.Lock()
        self._waiting = 0
        self._started = time.monotonic()
        self._scrapes = 0
        self._series = 0
        self._took = {"all": 0.0, "loop": 0.0}
        self._dropped: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """Return the port, also if the configuration says 0."""
        return self._port

    def bind(self) -> None:
        """Take the port. Raises OSError that names the setting."""
        host, port = listen_host(self._config), self._config.metrics_prom_exporter_port
        try:
            self._socket = bound_socket(host, port, is_chosen=port != 0)
        except OSError as error:
            # Without a number: callers would advise another port for clients.
            raise OSError(
                f"metrics cannot be served on {host}:{port}: {error.strerror or error}; choose "
                "another port with metricsPromExporterPort, or set metricsExporterType=DISABLE",
            ) from error
        self._port = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Serve."""
        assert self._socket is not None, "bind comes first"
        bound, self._socket = self._socket, None
        self.loop_delay.start()
        await self._http.start(bound)
        logger.info("metrics on http://%s:%d/metrics", listen_host(self._config), self._port)

    async def stop(self) -> None:
        """Stop serving and give the port back. Idempotent."""
        self.loop_delay.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        await self._http.stop()

    # Pages

    async def _metrics(self, headers: Mapping[str, str]) -> Response:
        from prometheus_client.exposition import choose_encoder

        if self._waiting >= MAX_WAITING_SCRAPES:
            return Response(HTTPStatus.SERVICE_UNAVAILABLE, [b"too many scrapes\n"])
        encode, content_type = choose_encoder(headers.get("accept", ""))
        self._waiting += 1
        try:
            async with self._one:
                page = await self._scrape(content_type.startswith("application/openmetrics-text"))
        finally:
            self._waiting -= 1
        # In a thread: the number of open files is that of the entries of a directory.
        standard = await asyncio.to_thread(encode, self._registry)
        if page.is_open_metrics:
            standard = standard.removesuffix(b"# EOF\n")
            page.parts += [standard, b"# EOF\n"]
        else:
            page.parts.append(standard)
        return Response(HTTPStatus.OK, page.parts, content_type)

    async def _health(self, _: Mapping[str, str]) -> Response:
        """Answer: the loop runs, or this would not."""
        return _json(
            HTTPStatus.OK,
            {
                "status": "alive",
                "uptimeSeconds": round(time.monotonic() - self._started, 3),
                "loopDelaySeconds": round(self.loop_delay.last, 6),
            },
        )

    async def _ready(self, _: Mapping[str, str]) -> Response:
        checks = self._readiness()
        faults = [f"{name}: {reason}" for name, reason in checks.items() if reason is not None]
        return _json(
            HTTPStatus.SERVICE_UNAVAILABLE if faults else HTTPStatus.OK,
            {
                "status": "not ready" if faults else "ready",
                "reasons": faults,
                "checks": {name: reason or "ok" for name, reason in checks.items()},
            },
        )

    # Scrapes

    async def _scrape(self, is_open_metrics: bool) -> Page:
        begun = time.perf_counter()
        await self._prepare()
        page = Page(
            self._labels,
            max_series=self._max_series(),
            is_open_metrics=is_open_metrics,
        )
        on_loop = await run_collectors(self._collectors, page)
        self._scrapes += 1
        self._series = page.series
        self._dropped.update(page.dropped)
        self._took = {"all": time.perf_counter() - begun, "loop": on_loop}
        return page

    def _collect_own(self, page: Page) -> Steps:
        page.add(SCRAPES, ("", self._scrapes))
        page.add(SCRAPE_SERIES, ("", self._series))
        page.add(
            SCRAPE_SECONDS, *((label_text(part=part), took) for part, took in self._took.items())
        )
        page.add(
            DROPPED, *((label_text(metric=name), count) for name, count in self._dropped.items())
        )
        page.add_histogram(LOOP_DELAY, ("", self.loop_delay.histogram))
        yield None


async def run_collectors(
    collectors: Sequence[Collector], page: Page, slice_seconds: float = SLICE_SECONDS
) -> float:
    """Run collectors in slices on the loop; return the seconds that they used there."""
    used = 0.0
    begun = time.perf_counter()
    for collect in collectors:
        steps = collect(page)
        result = None
        while True:
            try:
                work = steps.send(result)
            except StopIteration:
                break
            result = None
            now = time.perf_counter()
            if work is not None:
                used += now - begun
                result = await asyncio.to_thread(work)
                begun = time.perf_counter()
            elif now - begun >= slice_seconds:
                used += now - begun
                await asyncio.sleep(0)
                begun = time.perf_counter()
    return used + time.perf_counter() - begun


def _registry() -> Any:
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
    from prometheus_client.platform_collector import PlatformCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _json(status: HTTPStatus, values: Mapping[str, object]) -> Response:
    return Response(
        status, [orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)], "application/json"
    )
