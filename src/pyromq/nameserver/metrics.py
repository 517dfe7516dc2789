"""Metrics and readiness of a NameServer.

Built by `nameserver.server` if metricsExporterType=PROM. `FAMILIES` are all families that a
NameServer may serve, besides those of `prometheus_client`. On the loop.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from pyromq import __version__
from pyromq.metrics import endpoint, security
from pyromq.metrics.endpoint import Endpoint
from pyromq.metrics.family import counter, gauge
from pyromq.metrics.page import Page, Steps, label_text
from pyromq.metrics.security import SecurityMetrics
from pyromq.nameserver.config import NamesrvConfig
from pyromq.nameserver.route_table import RouteTable
from pyromq.protocol.wire.bodies import MASTER_ID
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.connection import Connection, Handler
from pyromq.remoting.service import Result

INFO: Final = gauge(
    "pyromq_nameserver_info", "Always 1; the labels describe the NameServer.", ("version",)
)
BROKERS: Final = gauge(
    "pyromq_nameserver_brokers", "Registered brokers of a cluster.", ("broker_cluster", "role")
)
HAS_MASTER: Final = gauge(
    "pyromq_nameserver_broker_has_master",
    "Whether a broker name has a master: 1 or 0. Without one nobody can send to it.",
    ("broker_cluster", "broker"),
)
LAST_SEEN: Final = gauge(
    "pyromq_nameserver_broker_last_seen_seconds",
    "Seconds since the last registration of a broker, which is removed after 120.",
    ("broker", "address"),
)
TOPICS: Final = gauge("pyromq_nameserver_topics", "Topics with a route.")
REQUESTS: Final = counter(
    "pyromq_nameserver_requests_total", "Requests since the start.", ("request_code",)
)

FAMILIES: Final = (
    INFO,
    BROKERS,
    HAS_MASTER,
    LAST_SEEN,
    TOPICS,
    REQUESTS,
    *security.FAMILIES,
    *endpoint.FAMILIES,
)
#: Series between two points where other work may run.
_STEP: Final = 64


class NameServerMetrics:
    """Metrics and health of one NameServer."""

    def __init__(
        self,
        config: Callable[[], NamesrvConfig],
        routes: RouteTable[Connection],
        clock: Callable[[], float],
        refusals: Callable[[], Mapping[str, int]],
        expiry: Callable[[], Mapping[str, float]],
    ) -> None:
        """`config` returns the current configuration, which an administrator may change."""
        self._routes = routes
        self._clock = clock
        self._requests: Counter[int] = Counter()
        self.is_stopping = False
        self.endpoint = Endpoint(
            config(),
            {"node_type": "nameserver", "node_id": socket.gethostname() or "nameserver"},
            [self._collect, SecurityMetrics(refusals, expiry).collect],
            self._readiness,
            max_series=lambda: config().metrics_otel_cardinality_limit,
        )

    def counted(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers that count their requests."""

        def counting(code: int, handler: Handler) -> Handler:
            def serve(connection: Connection, request: RemotingCommand) -> Result:
                self._requests[code] += 1
                return handler(connection, request)

            return serve

        return {code: counting(code, handler) for code, handler in handlers.items()}

    def _readiness(self) -> dict[str, str | None]:
        return {"running": "the NameServer is stopping" if self.is_stopping else None}

    def _collect(self, page: Page) -> Steps:
        routes = self._routes
        page.add(INFO, (label_text(version=__version__), 1))
        info = routes.cluster_info()
        by_role: Counter[tuple[str, str]] = Counter()
        has_master = page.block(HAS_MASTER)
        for position, (name, data) in enumerate(info.broker_addr_table.items()):
            if not position % _STEP:
                yield None
            for broker_id in data.broker_addrs:
                role = "master" if broker_id == MASTER_ID else "replica"
                by_role[data.cluster, role] += 1
            labels = label_text(broker_cluster=data.cluster, broker=name)
            has_master.add(labels, int(MASTER_ID in data.broker_addrs))
        page.add(
            BROKERS,
            *(
                (label_text(broker_cluster=cluster, role=role), count)
                for (cluster, role), count in by_role.items()
            ),
        )
        page.close(has_master)
        now = self._clock()
        last_seen = page.block(LAST_SEEN)
        for position, (names, address, seen) in enumerate(routes.last_seen()):
            if not position % _STEP:
                yield None
            for name in names:
                last_seen.add(label_text(broker=name, address=address), repr(now - seen))
        page.close(last_seen)
        page.add(TOPICS, ("", routes.topic_count))
        page.add(
            REQUESTS,
            *(
                (label_text(request_code=RequestCode(code).name.lower()), count)
                for code, count in self._requests.items()
            ),
        )
        yield None
