"""A node of a raft group: core, log, vote file and network on one loop.

| module | what it does |
| --- | --- |
| `raft_node` | the node |
| `settings` | its settings |
| `status` | its state, for operators |
"""

from pyromq.raft.node.raft_node import NodeListener, NodeState, RaftNode
from pyromq.raft.node.settings import NodeSettings
from pyromq.raft.node.status import PeerStatus, RaftStatus

__all__ = [
    "NodeListener",
    "NodeSettings",
    "NodeState",
    "PeerStatus",
    "RaftNode",
    "RaftStatus",
]
