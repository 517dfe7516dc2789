from __future__ import annotations

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerConfig
from pyromq.broker.metrics_settings import EVERY_TOPIC
from tests.support.brokers import local_broker


@pytest.mark.parametrize(
    ("text", "topics"),
    [("", set()), ("a", {"a"}), (" a , b,,", {"a", "b"}), ("*", {EVERY_TOPIC})],
)
def test_topics_with_lag_per_queue(text: str, topics: set[str]) -> None:
    assert local_broker(metrics_queue_topics=text).queue_topics == topics


def test_exporter_names_are_off() -> None:
    assert not BrokerConfig().metrics_exporter_names_enable


def test_inherited_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="metricsLabel"):
        BrokerConfig(metrics_label="?")
    with pytest.raises(ConfigError, match="replicationAccessKey"):
        BrokerConfig(replication_access_key="a")
