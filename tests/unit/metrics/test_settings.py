from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerConfig
from pyromq.metrics.settings import (
    ExporterType,
    check_metrics,
    is_on,
    labels_of,
    listen_host,
)
from pyromq.nameserver.config import NamesrvConfig
from tests.support.brokers import local_broker


def test_metrics_are_off_by_default() -> None:
    assert not is_on(BrokerConfig())
    assert not is_on(NamesrvConfig())
    assert BrokerConfig().metrics_prom_exporter_port == 5557
    assert NamesrvConfig().metrics_prom_exporter_port == 5558


def test_names_are_those_of_rocketmq_5() -> None:
    config, _ = BrokerConfig.load(
        {
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": "0",
            "metricsPromExporterHost": "127.0.0.1",
            "metricsLabel": "rack:r1",
            "metricsOtelCardinalityLimit": "7",
        }
    )
    assert is_on(config)
    assert listen_host(config) == "127.0.0.1"
    assert labels_of(config) == {"rack": "r1"}
    assert config.metrics_otel_cardinality_limit == 7


def test_the_host_is_that_of_the_other_ports() -> None:
    assert listen_host(local_broker(bind_address="127.0.0.9")) == "127.0.0.9"


@pytest.mark.parametrize("value", ["OTLP_GRPC", "LOG", "yes"])
def test_other_exporters_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"metricsExporterType=.*DISABLE.*PROM"):
        BrokerConfig.load({"metricsExporterType": value})


@pytest.mark.parametrize(
    ("text", "labels"),
    [("", {}), ("a:b", {"a": "b"}), (" a : b , c:d:e,", {"a": "b", "c": "d:e"}), ("a:", {"a": ""})],
)
def test_labels(text: str, labels: dict[str, str]) -> None:
    assert labels_of(local_broker(metrics_label=text)) == labels


@pytest.mark.parametrize(
    "text",
    ["a", ":b", "1a:b", "a-b:c", "__a:b", "cluster:b", "topic:b", "a:b,a:c", "a:" + "x" * 256],
)
def test_labels_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigError, match="metricsLabel="):
        local_broker(metrics_label=text)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = local_broker()
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "prometheus_client" else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    check_metrics(config)
    with pytest.raises(ConfigError, match=r"pip install 'pyromq\[metrics\]'"):
        dataclasses.replace(config, metrics_exporter_type=ExporterType.PROM)
