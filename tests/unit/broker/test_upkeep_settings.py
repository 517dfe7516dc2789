from __future__ import annotations

import pytest

from pyromq.base.settings import ConfigError
from pyromq.broker.config import BrokerConfig, load_broker_properties


def test_the_defaults_are_rocketmq_s() -> None:
    config = BrokerConfig()
    assert config.disable_consume_if_consumer_read_slowly is False
    assert config.consumer_fallbehind_threshold == 16 * 1024**3


def test_a_file_sets_them() -> None:
    loaded = load_broker_properties(
        {
            "disableConsumeIfConsumerReadSlowly": "true",
            "consumerFallbehindThreshold": "34359738368",
            "loopHangMillis": "0",
        }
    )
    assert loaded.warnings == []
    assert loaded.broker.disable_consume_if_consumer_read_slowly
    assert loaded.broker.consumer_fallbehind_threshold == 32 * 1024**3
    assert loaded.broker.loop_hang_millis == 0


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match="consumerFallbehindThreshold=-1"):
        load_broker_properties({"consumerFallbehindThreshold": "-1"})
