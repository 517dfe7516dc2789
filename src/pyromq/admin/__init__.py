"""The admin API: examine and change a cluster of pyromq or Apache RocketMQ (4.9 and 5.x).

`Admin` is for asyncio, `Admin.sync(...)` for programs without an event loop. Results are frozen
dataclasses, errors `AdminError`s.
"""

from __future__ import annotations

from pyromq.admin.access import (
    AccessConfiguration,
    AccessControl,
    AccessFileVersion,
    Account,
)
from pyromq.admin.admin import (
    Admin,
    AdminOptions,
)
from pyromq.admin.cluster import (
    BrokerGroup,
    BrokerOverview,
    Clusters,
    ProbeResult,
    ProducerState,
    Promotion,
    PromotionCheck,
    ReplicaState,
    ReplicationState,
    RuntimeInfo,
    SendTimes,
)
from pyromq.admin.configuration import (
    Configurations,
    ServerSettings,
    WritePermissionChange,
)
from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    NotPermittedError,
    PartialFailureError,
    RefusedError,
    UnknownBrokerError,
    UnknownClusterError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
    UnreadableAnswerError,
    UnsupportedRequestError,
)
from pyromq.admin.export import (
    Export,
    Exports,
)
from pyromq.admin.maintenance import (
    Cleaning,
    Maintenance,
)
from pyromq.admin.raft import (
    Raft,
    RaftNodeState,
)
from pyromq.admin.statistics import (
    BrokerLags,
    Period,
    QueueLag,
    Statistic,
    Statistics,
    TopicStatistics,
)
from pyromq.admin.sync import (
    SyncAdmin,
)
from pyromq.admin.topics import (
    PermissionChange,
    QueueStatus,
    TopicChange,
    TopicConfiguration,
    TopicDeletion,
    TopicOverview,
    TopicQueues,
    TopicRoute,
    Topics,
)

__all__ = [
    "AccessConfiguration",
    "AccessControl",
    "AccessFileVersion",
    "Account",
    "Admin",
    "AdminError",
    "AdminOptions",
    "BrokerGroup",
    "BrokerLags",
    "BrokerOverview",
    "Cleaning",
    "Clusters",
    "Configurations",
    "Export",
    "Exports",
    "Maintenance",
    "NotFoundError",
    "NotPermittedError",
    "PartialFailureError",
    "Period",
    "PermissionChange",
    "ProbeResult",
    "ProducerState",
    "Promotion",
    "PromotionCheck",
    "QueueLag",
    "QueueStatus",
    "Raft",
    "RaftNodeState",
    "RefusedError",
    "ReplicaState",
    "ReplicationState",
    "RuntimeInfo",
    "SendTimes",
    "ServerSettings",
    "Statistic",
    "Statistics",
    "SyncAdmin",
    "TopicChange",
    "TopicConfiguration",
    "TopicDeletion",
    "TopicOverview",
    "TopicQueues",
    "TopicRoute",
    "TopicStatistics",
    "Topics",
    "UnknownBrokerError",
    "UnknownClusterError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnreachableError",
    "UnreadableAnswerError",
    "UnsupportedRequestError",
    "WritePermissionChange",
]
