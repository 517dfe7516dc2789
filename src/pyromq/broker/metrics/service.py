"""Puts the collectors of a broker together, and gives them a port.

Built by `broker.broker` if metricsExporterType=PROM, after the request families. `FAMILIES` are all
families that a broker may serve, besides those of `prometheus_client`. On the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.assembly import Assembly
from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.metrics import clients, cluster, delays, exporter, lag, storage, topics
from pyromq.broker.metrics.clients import ClientMetrics
from pyromq.broker.metrics.cluster import ClusterMetrics
from pyromq.broker.metrics.delays import DelayMetrics
from pyromq.broker.metrics.exporter import ExporterMetrics
from pyromq.broker.metrics.lag import LagMetrics
from pyromq.broker.metrics.readiness import Readiness
from pyromq.broker.metrics.storage import SAMPLE_SECONDS, StorageMetrics
from pyromq.broker.metrics.topics import TopicMetrics
from pyromq.broker.services.registration import Registration
from pyromq.metrics import endpoint, security
from pyromq.metrics.endpoint import Endpoint
from pyromq.metrics.family import Family
from pyromq.metrics.security import SecurityMetrics
from pyromq.tls.server import ServerTls

FAMILIES: Final[tuple[Family, ...]] = (
    *topics.FAMILIES,
    *lag.FAMILIES,
    *clients.FAMILIES,
    *storage.FAMILIES,
    *delays.FAMILIES,
    *cluster.FAMILIES,
    *security.FAMILIES,
    *endpoint.FAMILIES,
    *exporter.FAMILIES,
)


class BrokerMetrics:
    """Metrics and health of one broker."""

    def __init__(
        self,
        assembly: Assembly,
        instruments: BrokerInstruments,
        registration: Registration,
        tls: ServerTls,
        fault: Callable[[], str | None],
    ) -> None:
        """`fault` returns why the broker as a whole is of no use, or None."""
        parts = assembly.parts
        config = parts.config
        self._storage = StorageMetrics(parts, instruments)
        self._periodic = PeriodicTasks()
        lag_metrics = LagMetrics(parts)
        collectors = [
            TopicMetrics(
                parts, orphans=lambda: assembly.transaction_check.without_producer
            ).collect,
            lag_metrics.collect,
            ClientMetrics(parts, instruments).collect,
            self._storage.collect,
            DelayMetrics(parts).collect,
            ClusterMetrics(parts, registration).collect,
            SecurityMetrics(parts.refusals, lambda: tls.expiry).collect,
            ExporterMetrics(parts, lag_metrics).collect,
        ]
        parts.stats.measure_sizes()
        parts.store.growth.time_seals(instruments.sealed)
        parts.store.time_flushes(instruments.flushed)
        self.endpoint = Endpoint(
            config,
            {
                "cluster": config.broker_cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
            },
            collectors,
            Readiness(parts, registration, fault),
            parts.stats.count,
        )

    async def start(self) -> None:
        """Serve. Raises OSError if the port is taken."""
        self.endpoint.bind()
        self._periodic.start(SAMPLE_SECONDS, self._storage.sample)
        await self.endpoint.start()

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        await self._periodic.stop()
        await self.endpoint.stop()
