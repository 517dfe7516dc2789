"""The broker in its cluster: role, NameServers, replicas, raft group.

Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyromq import __version__
from pyromq.broker.parts import BrokerParts
from pyromq.broker.services.registration import Registration
from pyromq.metrics.family import Source, counter, gauge
from pyromq.metrics.page import Page, Steps, label_text
from pyromq.protocol import kernel
from pyromq.store.config import BrokerRole

PERMISSION: Final = gauge(
    "rocketmq_broker_permission",
    "What clients may do: 2 write, 4 read, 6 both.",
    (),
    Source.ROCKETMQ,
)
TOPIC_NUMBER: Final = gauge(
    "rocketmq_topic_number", "Topics, with those of the system.", (), Source.ROCKETMQ
)
GROUP_NUMBER: Final = gauge(
    "rocketmq_consumer_group_number",
    "Consumer groups, with those of the system.",
    (),
    Source.ROCKETMQ,
)
INFO: Final = gauge(
    "pyromq_broker_info", "Always 1; the labels describe the broker.", ("version", "kernel")
)
ROLE: Final = gauge(
    "pyromq_broker_role", "1 for the role that the broker has now, else 0.", ("role",)
)
REGISTERED: Final = gauge(
    "pyromq_registered",
    "Whether the last registration with a NameServer succeeded: 1 or 0.",
    ("name_server",),
)
AUTO_CREATED: Final = counter(
    "pyromq_auto_created_topics_total", "Topics that sends created since the start."
)
REPLICAS: Final = gauge("pyromq_replicas", "Replicas that are connected to this master.")
REPLICA_LAG: Final = gauge(
    "pyromq_replica_lag_bytes", "Bytes of the log that a replica lacks.", ("replica",)
)
REPLICA_LAG_SECONDS: Final = gauge(
    "pyromq_replica_lag_seconds",
    "For how long a replica has lacked the oldest message that it lacks, in seconds.",
    ("replica",),
)
FOLLOWING: Final = gauge(
    "pyromq_following_master",
    "Whether this replica is connected to its master: 1 or 0; absent on a master.",
)
RAFT_LEADER: Final = gauge(
    "pyromq_raft_has_leader",
    "Whether this node of a raft group knows its leader: 1 or 0; absent outside of a group.",
)
RAFT_IS_LEADER: Final = gauge("pyromq_raft_is_leader", "Whether this node leads: 1 or 0.")
RAFT_TERM: Final = gauge("pyromq_raft_term", "The term of this node.")
RAFT_END: Final = gauge("pyromq_raft_end_index", "Index of the last entry of this node's log.")
RAFT_COMMITTED: Final = gauge("pyromq_raft_committed_index", "Index of the last committed entry.")
RAFT_PEER_LAG: Final = gauge(
    "pyromq_raft_peer_lag_entries", "Entries that another node lacks; on the leader.", ("peer",)
)
RAFT_PEER_CONNECTED: Final = gauge(
    "pyromq_raft_peer_connected", "Whether another node is connected: 1 or 0.", ("peer",)
)
FAMILIES: Final = (
    PERMISSION,
    TOPIC_NUMBER,
    GROUP_NUMBER,
    INFO,
    ROLE,
    REGISTERED,
    AUTO_CREATED,
    REPLICAS,
    REPLICA_LAG,
    REPLICA_LAG_SECONDS,
    FOLLOWING,
    RAFT_LEADER,
    RAFT_IS_LEADER,
    RAFT_TERM,
    RAFT_END,
    RAFT_COMMITTED,
    RAFT_PEER_LAG,
    RAFT_PEER_CONNECTED,
)


class ClusterMetrics:
    """The broker among others."""

    def __init__(self, parts: BrokerParts, registration: Registration) -> None:
        self._config = parts.config
        self._role = parts.role
        self._tables = parts.tables
        self._figures: Callable[[], dict[str, Any]] = parts.replication_figures
        self._registration = registration
        self._auto_created = 0
        parts.tables.topics.add_creation_listener(self._topic_created)

    def _topic_created(self, _: object) -> None:
        self._auto_created += 1

    def collect(self, page: Page) -> Steps:
        """Write the families of this module."""
        page.add(PERMISSION, ("", self._config.broker_permission))
        page.add(TOPIC_NUMBER, ("", len(self._tables.topics)))
        page.add(GROUP_NUMBER, ("", len(self._tables.groups)))
        page.add(INFO, (label_text(version=__version__, kernel=kernel.describe()), 1))
        page.add(
            ROLE,
            *((label_text(role=role.name), role is self._role.current) for role in BrokerRole),
        )
        page.add(
            REGISTERED,
            *(
                (label_text(name_server=address), is_registered)
                for address, is_registered in self._registration.registered.items()
            ),
        )
        page.add(AUTO_CREATED, ("", self._auto_created))
        self._replication(page)
        yield None

    def _replication(self, page: Page) -> None:
        figures = self._figures()
        raft = figures.get("raft")
        if raft is not None:
            _write_raft(page, raft)
        elif figures.get("following") is not None:
            page.add(FOLLOWING, ("", figures["following"]["is_connected"]))
        elif figures:
            replicas = [(label_text(replica=each["address"]), each) for each in figures["replicas"]]
            page.add(REPLICAS, ("", len(replicas)))
            page.add(REPLICA_LAG, *((label, each["lag_bytes"]) for label, each in replicas))
            page.add(
                REPLICA_LAG_SECONDS,
                *((label, each["lag_millis"] / 1000) for label, each in replicas),
            )


def _write_raft(page: Page, raft: dict[str, Any]) -> None:
    is_leader = raft["role"] == "LEADER"
    page.add(RAFT_LEADER, ("", raft["leader"] is not None))
    page.add(RAFT_IS_LEADER, ("", is_leader))
    page.add(RAFT_TERM, ("", raft["term"]))
    page.add(RAFT_END, ("", raft["endIndex"]))
    page.add(RAFT_COMMITTED, ("", raft["committedIndex"]))
    peers = raft["peers"] if is_leader else []
    page.add(
        RAFT_PEER_LAG,
        *((label_text(peer=p["id"]), p["lag"]) for p in peers if p["lag"] is not None),
    )
    page.add(RAFT_PEER_CONNECTED, *((label_text(peer=p["id"]), p["connected"]) for p in peers))
