"""A broker of a cluster, as a test sees it; replication is in test_replicas.py."""

from __future__ import annotations

import inspect

from pyromq.testing import Cluster, ClusterBroker


def test_what_a_broker_tells() -> None:
    with Cluster(replicas=1) as cluster:
        (master,) = cluster.brokers
        (replica,) = master.replicas
        assert replica.replicas == [master]
        assert master.address != replica.address
        assert master.directory.parent == cluster.directory / "broker-0"
        replica.stop()
        assert (master.is_running, replica.is_running) == (True, False)
        assert (master.failure, replica.failure) == (None, None)
        replica.start({"fileReservedTime": "12"})
        replica.restart()
        assert replica.is_replica


def test_every_method_has_a_twin_for_coroutines() -> None:
    methods = dict(inspect.getmembers(ClusterBroker, inspect.isfunction))
    plain = {name for name in methods if not name.startswith("_") and not name.endswith("_async")}
    assert plain == {"start", "stop", "kill", "restart", "await_replicas", "promote", "rejoin"}
    for name in plain:
        twin = methods[f"{name}_async"]
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(methods[name])
