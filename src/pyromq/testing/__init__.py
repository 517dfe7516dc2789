"""A RocketMQ cluster inside your test process.

    from pyromq.testing import Cluster

    with Cluster() as cluster:
        with Producer.sync(cluster.namesrv) as producer:
            ...

pytest finds the fixtures `rocketmq` and `rocketmq_topic` once pyromq is installed (see `plugin`).
The servers are the production ones, with small files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyromq.testing.broker import ClusterBroker
    from pyromq.testing.cluster import Cluster
    from pyromq.testing.raft_broker import RaftBroker
    from pyromq.testing.replicas import DivergedError, PromotionError

__all__ = ["Cluster", "ClusterBroker", "DivergedError", "PromotionError", "RaftBroker"]


def __getattr__(name: str) -> Any:
    # Load on first use: pytest imports this package in every run.
    if name in __all__:
        from pyromq.testing import broker, cluster, raft_broker, replicas

        for module in (cluster, broker, raft_broker, replicas):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
