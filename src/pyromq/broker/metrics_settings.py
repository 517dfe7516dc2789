"""Settings of metrics and health checks. Those with RocketMQ 5.x' names are `metrics.settings`.

`BrokerConfig` inherits these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.base.settings import setting
from pyromq.broker.upkeep_settings import UpkeepSettings
from pyromq.metrics.settings import ExporterType, MetricsSettings, check_metrics

_METRICS = MetricsSettings(port=5557)

#: In metricsQueueTopics, every topic.
EVERY_TOPIC = "*"


@dataclass(frozen=True, slots=True)
class BrokerMetricsSettings(UpkeepSettings):
    """Which metrics the broker serves, and where."""

    metrics_exporter_type: ExporterType = _METRICS.metrics_exporter_type
    metrics_prom_exporter_port: int = _METRICS.metrics_prom_exporter_port
    metrics_prom_exporter_host: str | None = _METRICS.metrics_prom_exporter_host
    metrics_label: str = _METRICS.metrics_label
    metrics_otel_cardinality_limit: int = _METRICS.metrics_otel_cardinality_limit
    metrics_exporter_names_enable: bool = setting(
        "metricsExporterNamesEnable",
        False,
        "Serve the metrics of rocketmq-exporter as well, under its names, for its dashboards.",
        live=True,
    )
    metrics_queue_topics: str = setting(
        "metricsQueueTopics",
        "",
        "Serve the lag of each queue for these topics, separated by commas; * stands for all. "
        "Without it there is the sum over the queues and their maximum.",
        live=True,
    )

    def check_inherited(self) -> None:
        """Raise ConfigError if inherited settings do not fit together."""
        self.check_credentials()
        self.check_tls()
        self.check_access()
        check_metrics(self)

    @property
    def queue_topics(self) -> frozenset[str]:
        """The topics of metricsQueueTopics."""
        return frozenset(filter(None, map(str.strip, self.metrics_queue_topics.split(","))))
