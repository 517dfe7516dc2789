from __future__ import annotations

import dataclasses
from typing import Any

from pyromq.broker.metrics.readiness import Readiness
from tests.unit.broker.metrics.metered import MeteredBroker
from tests.unit.broker.metrics.test_cluster import registration


def faults(
    broker: MeteredBroker,
    figures: dict[str, Any] | None = None,
    name_servers: str | None = None,
    fault: str | None = None,
) -> dict[str, str]:
    parts = dataclasses.replace(broker.parts, replication_figures=lambda: figures or {})
    checks = Readiness(parts, registration(broker, name_servers), lambda: fault)()
    return {name: reason for name, reason in checks.items() if reason is not None}


def test_a_sound_broker_is_ready(broker: MeteredBroker) -> None:
    assert faults(broker) == {}


def test_a_broker_that_no_name_server_knows(broker: MeteredBroker) -> None:
    found = faults(broker, name_servers="127.0.0.1:1;127.0.0.1:2")
    assert found == {"registered": "no NameServer of 127.0.0.1:1;127.0.0.1:2 has the broker"}


def test_a_full_disk(broker: MeteredBroker) -> None:
    broker.store._set_disk_full("disk of /x is 96% full")
    assert faults(broker) == {"store": "disk of /x is 96% full"}
    broker.store._set_disk_full(None)
    assert faults(broker) == {}


def test_a_failed_and_a_stopped_store(broker: MeteredBroker) -> None:
    broker.store._fail("commit log flush failed")
    assert "restart" in faults(broker)["store"]
    broker.store.stop()
    assert faults(broker)["store"] == "the store is not running"


def test_a_broker_that_failed_or_stops(broker: MeteredBroker) -> None:
    assert faults(broker, fault="stopping") == {"running": "stopping"}


def test_sends_are_not_accepted_yet(broker: MeteredBroker) -> None:
    object.__setattr__(broker.config, "start_accept_send_request_time_stamp", broker.now + 1)
    assert "accepts_sends" in faults(broker)
    broker.now += 1
    assert faults(broker) == {}


def test_a_replica_without_its_master(broker: MeteredBroker) -> None:
    alone = {"is_connected": False, "master": None}
    expected = {"following": "not connected to the master (unknown)"}
    assert faults(broker, {"following": alone}) == expected
    connected = {"is_connected": True, "master": "10.0.0.1:10912"}
    assert faults(broker, {"following": connected}) == {}


def test_a_group_without_a_leader(broker: MeteredBroker) -> None:
    found = faults(broker, {"raft": {"leader": None, "group": "g0"}})
    assert found == {"leader": "group g0 has no leader"}
    assert faults(broker, {"raft": {"leader": "n0", "group": "g0"}}) == {}
