from __future__ import annotations

from pyromq.base.settings import settings_of
from pyromq.broker.config import BrokerConfig
from pyromq.broker.limit_settings import LimitSettings
from pyromq.tls.settings import TlsSettings


def test_each_limit_says_what_happens_to_a_peer_that_reaches_it() -> None:
    of_tls = {item.key for item in settings_of(TlsSettings)}
    for item in settings_of(LimitSettings):
        if item.key in of_tls:
            continue
        assert item.limit.endswith("."), item.key
        assert item.doc.endswith("."), item.key


def test_the_broker_s_configuration_lists_them_after_rocketmq_s_settings() -> None:
    limits = [item.key for item in settings_of(LimitSettings)]
    assert [item.key for item in settings_of(BrokerConfig)][-len(limits) :] == limits


def test_they_are_loaded_with_the_broker_s_settings() -> None:
    config, others = BrokerConfig.load({"maxTopics": "7", "maxConnections": "9"})
    assert (config.max_topics, config.max_connections, others) == (7, 9, [])
