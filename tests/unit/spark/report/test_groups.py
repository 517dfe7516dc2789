"""Lags of consumer groups are those that brokers tell."""

from __future__ import annotations

from contextlib import closing

from pyromq.client import Message, Producer
from pyromq.spark.origins.broker import BrokerOrigin, ConnectionSettings
from pyromq.spark.report.groups import group_lags
from pyromq.testing import Cluster
from tests.support.patience import PATIENT_PROPERTIES


def test_groups_with_their_lags() -> None:
    with Cluster(brokers=2, settings=PATIENT_PROPERTIES) as cluster:
        for name in ("Read", "Unread"):
            cluster.create_topic(name, queues=1)
        with Producer.sync(cluster.namesrv, group="filler") as producer:
            for number in range(10):
                producer.send(Message("Read", b"%d" % number))
        settings = ConnectionSettings((cluster.namesrv,), request_timeout=60.0)
        with closing(BrokerOrigin(settings)) as origin:
            assert set(origin.brokers().values()) == {each.address for each in cluster.brokers}
            assert group_lags(origin, {"Read"}) == []
            bounds = origin.bounds(origin.queues("Read"))
            origin.commit_offsets("readers", dict.fromkeys(bounds, 2))
            found = group_lags(origin, {"Read", "Unread"})
    assert [(lag.group, lag.topic, lag.lag) for lag in found] == [
        ("readers", "Read", 10 - 2 * len(bounds))
    ]
    assert found[0].last_ms > 0
