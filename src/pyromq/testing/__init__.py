"""For tests of programs that use RocketMQ: a cluster in the test's own process.

    from pyromq.testing import Cluster

    with Cluster() as cluster:
        with Producer.sync(cluster.namesrv) as producer:
            ...

With pytest, the fixtures `rocketmq` and `rocketmq_topic` are there once pyromq is installed
(see `plugin`). The servers are those that run in production, with small files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyromq.testing.cluster import Cluster, ClusterBroker

__all__ = ["Cluster", "ClusterBroker"]


def __getattr__(name: str) -> Any:
    # Not before somebody wants it: pytest imports this package in every run.
    if name in __all__:
        from pyromq.testing import cluster

        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
