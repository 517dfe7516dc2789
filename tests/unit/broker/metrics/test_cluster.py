from __future__ import annotations

import dataclasses
from typing import Any

from pyromq.broker.metrics.cluster import ClusterMetrics
from pyromq.broker.services.registration import Registration
from pyromq.remoting.client import RemotingClient
from tests.support.metrics import Scrape, collected
from tests.unit.broker.metrics.metered import MeteredBroker


def registration(broker: MeteredBroker, name_servers: str | None = None) -> Registration:
    return Registration(
        dataclasses.replace(broker.config, namesrv_addr=name_servers),
        broker.topics,
        RemotingClient(),
        broker_address="127.0.0.1:1",
        ha_address="127.0.0.1:2",
        role=broker.parts.role,
    )


async def scrape(
    broker: MeteredBroker, figures: dict[str, Any] | None = None, name_servers: str | None = None
) -> Scrape:
    parts = dataclasses.replace(broker.parts, replication_figures=lambda: figures or {})
    return await collected(ClusterMetrics(parts, registration(broker, name_servers)).collect)


async def test_facts(broker: MeteredBroker) -> None:
    found = await scrape(broker)
    assert found.value("rocketmq_broker_permission") == 6
    assert found.value("rocketmq_topic_number") == len(broker.topics)
    assert found.value("rocketmq_consumer_group_number") == len(broker.groups)
    assert found.value("pyromq_broker_info") == 1
    assert found.value("pyromq_broker_role", role="ASYNC_MASTER") == 1
    assert found.value("pyromq_broker_role", role="SLAVE") == 0
    assert found.series("pyromq_raft_has_leader") == []


async def test_registrations(broker: MeteredBroker) -> None:
    found = await scrape(broker, name_servers="127.0.0.1:1;127.0.0.1:2")
    assert found.value("pyromq_registered", name_server="127.0.0.1:2") == 0
    assert len(found.series("pyromq_registered")) == 2


async def test_topics_that_sends_create(broker: MeteredBroker) -> None:
    metrics = ClusterMetrics(broker.parts, registration(broker))
    broker.put(b"a", topic="new")
    broker.topics.create_for_send_back("%RETRY%g", 1)
    found = await collected(metrics.collect)
    assert found.value("pyromq_auto_created_topics_total") == 1


async def test_replicas(broker: MeteredBroker) -> None:
    replica = {"address": "10.0.0.2:5", "lag_bytes": 7, "lag_millis": 1500}
    found = await scrape(broker, {"following": None, "replicas": [replica]})
    assert found.value("pyromq_replicas") == 1
    assert found.value("pyromq_replica_lag_bytes", replica="10.0.0.2:5") == 7
    assert found.value("pyromq_replica_lag_seconds", replica="10.0.0.2:5") == 1.5
    assert found.series("pyromq_following_master") == []


async def test_a_replica(broker: MeteredBroker) -> None:
    found = await scrape(broker, {"following": {"is_connected": False}, "replicas": []})
    assert found.value("pyromq_following_master") == 0
    assert found.series("pyromq_replicas") == []


async def test_a_raft_group(broker: MeteredBroker) -> None:
    raft = {
        "role": "LEADER",
        "leader": "n0",
        "term": 5,
        "endIndex": 9,
        "committedIndex": 8,
        "peers": [
            {"id": "n1", "lag": 3, "connected": True},
            {"id": "n2", "lag": None, "connected": False},
        ],
    }
    found = await scrape(broker, {"following": None, "replicas": [], "raft": raft})
    assert found.value("pyromq_raft_has_leader") == 1
    assert found.value("pyromq_raft_is_leader") == 1
    assert found.value("pyromq_raft_term") == 5
    assert found.value("pyromq_raft_end_index") == 9
    assert found.value("pyromq_raft_committed_index") == 8
    assert found.value("pyromq_raft_peer_lag_entries", peer="n1") == 3
    assert found.value("pyromq_raft_peer_connected", peer="n2") == 0
    follower = {**raft, "role": "CANDIDATE", "leader": None}
    found = await scrape(broker, {"following": None, "replicas": [], "raft": follower})
    assert found.value("pyromq_raft_has_leader") == 0
    assert found.series("pyromq_raft_peer_lag_entries") == []
