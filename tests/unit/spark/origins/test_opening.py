from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from pyromq.client.consumer.subscription import Subscription
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.origins.opening import BrokerSource, StoreSource
from pyromq.spark.origins.origin import OriginError
from pyromq.spark.origins.store import StoreOrigin


def test_brokers() -> None:
    source = BrokerSource(ConnectionSettings(("127.0.0.1:9876",)))
    assert pickle.loads(pickle.dumps(source)) == source
    with closing(source.open()) as origin:
        assert isinstance(origin, BrokerOrigin)


def test_store(tmp_path: Path) -> None:
    source = StoreSource(str(tmp_path), "broker-a")
    assert pickle.loads(pickle.dumps(source)) == source
    with pytest.raises(OriginError, match="commitlog"):
        source.open()
    (tmp_path / "commitlog").mkdir()
    with closing(source.open()) as origin:
        assert isinstance(origin, StoreOrigin)
        assert origin.broker_name == "broker-a"


def test_a_subscription_goes_to_brokers_only(tmp_path: Path) -> None:
    wanted = Subscription.tags("a")
    with closing(BrokerSource(ConnectionSettings(("127.0.0.1:1",))).open(wanted)) as origin:
        assert origin._subscription == wanted
    (tmp_path / "commitlog").mkdir()
    StoreSource(str(tmp_path)).open(wanted).close()
