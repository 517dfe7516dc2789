"""Settings of metrics and health that brokers and NameServers share.

Names are RocketMQ 5.x' where it has one. `MetricsSettings` declares the fields; a configuration
class takes them over one by one. `check_metrics` runs when a configuration is built. Pure, except
that it looks for the package `prometheus-client`.
"""

from __future__ import annotations

import enum
import importlib.util
import re
from typing import Any, Final, Protocol

from pyromq.base.settings import ConfigError, setting, shown

#: Maximum characters of a label's value in metricsLabel.
_MAX_LABEL_VALUE: Final = 255
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Labels that the servers set themselves, or that have a meaning for Prometheus.
_RESERVED: Final = frozenset(
    {"cluster", "node_type", "node_id", "le", "quantile", "topic", "consumer_group", "queue_id"}
)


class ExporterType(enum.Enum):
    """How metrics leave the server; RocketMQ 5.x also has OTLP_GRPC and LOG."""

    DISABLE = "DISABLE"
    PROM = "PROM"


class MetricsConfig(Protocol):
    """The part of a server's configuration that `MetricsSettings` declares."""

    @property
    def metrics_exporter_type(self) -> ExporterType:
        """Whether there is a port for metrics and health."""

    @property
    def metrics_prom_exporter_port(self) -> int:
        """The port, 0 for any."""

    @property
    def metrics_prom_exporter_host(self) -> str | None:
        """The address to listen on, None for bindAddress."""

    @property
    def metrics_label(self) -> str:
        """More labels, as `name:value,name:value`."""

    @property
    def metrics_otel_cardinality_limit(self) -> int:
        """The series of one metric."""


class ServerMetricsConfig(MetricsConfig, Protocol):
    """The whole configuration of a server."""

    @property
    def bind_address(self) -> str:
        """The address of the server's other ports."""


class MetricsSettings:
    """Fields for a configuration class; each class needs an instance of its own."""

    def __init__(self, port: int) -> None:
        """`port` is the default port."""
        self.metrics_exporter_type: Any = setting(
            "metricsExporterType",
            ExporterType.DISABLE,
            "Serve metrics for Prometheus and health checks over HTTP (PROM), or nothing at all "
            "(DISABLE). PROM needs pip install 'pyromq[metrics]'.",
        )
        self.metrics_prom_exporter_port: Any = setting(
            "metricsPromExporterPort",
            port,
            "Serve /metrics, /healthz and /readyz on this port; 0 takes any free port.",
            minimum=0,
            maximum=65535,
        )
        self.metrics_prom_exporter_host: Any = setting(
            "metricsPromExporterHost",
            None,
            "Listen on this local address for metrics and health checks. The default is "
            "bindAddress.",
        )
        self.metrics_label: Any = setting(
            "metricsLabel",
            "",
            "Add these labels to every metric of the server, as name:value pairs, separated by "
            "commas.",
        )
        self.metrics_otel_cardinality_limit: Any = setting(
            "metricsOtelCardinalityLimit",
            50_000,
            "Serve at most this many series of one metric; a counter tells how many were dropped.",
            minimum=1,
            live=True,
        )


def is_on(config: MetricsConfig) -> bool:
    """Return whether the server has a port for metrics and health."""
    return config.metrics_exporter_type is ExporterType.PROM


def listen_host(config: ServerMetricsConfig) -> str:
    """Return the address to listen on."""
    return config.metrics_prom_exporter_host or config.bind_address


def check_metrics(config: MetricsConfig) -> None:
    """Raise ConfigError for labels that cannot be used, and without `prometheus-client`."""
    labels_of(config)
    if is_on(config) and importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "metricsExporterType=PROM: the package prometheus-client is not installed; run pip "
            "install 'pyromq[metrics]', or set metricsExporterType=DISABLE"
        )


def labels_of(config: MetricsConfig) -> dict[str, str]:
    """Return the labels of metricsLabel. Raises ConfigError."""
    labels: dict[str, str] = {}
    for pair in filter(None, map(str.strip, config.metrics_label.split(","))):
        name, colon, value = map(str.strip, pair.partition(":"))
        fault = None
        if not colon or not _LABEL.fullmatch(name) or name.startswith("__"):
            fault = "expected name:value pairs, with names of letters, digits and _"
        elif name in _RESERVED or name in labels:
            fault = f"{name} is taken"
        elif len(value) > _MAX_LABEL_VALUE:
            fault = f"expected at most {_MAX_LABEL_VALUE} characters per value"
        if fault is not None:
            raise ConfigError(f"metricsLabel={shown(config.metrics_label)}: {fault}")
        labels[name] = value
    return labels
