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
from pyromq.admin.groups.connections import (
    ClientConnection,
    Connections,
    ConsumerConnections,
    GroupSubscription,
    NotOnlineError,
)
from pyromq.admin.groups.groups import (
    GroupAtBroker,
    GroupProgress,
    Groups,
    GroupSettings,
    GroupStatus,
    GroupSummary,
    MemberStatus,
    QueueProgress,
)
from pyromq.admin.groups.monitoring import (
    Monitor,
    MonitorRound,
    OffsetMoved,
    Undone,
)
from pyromq.admin.groups.offsets import (
    OffsetChange,
    OffsetChanges,
    Offsets,
    OnlineGroupError,
    QueueOffset,
)
from pyromq.admin.groups.running_info import (
    RunningInfo,
)
from pyromq.admin.maintenance import (
    Cleaning,
    Maintenance,
)
from pyromq.admin.message_view import (
    MessageView,
)
from pyromq.admin.messages.dead_letters import (
    DeadLetter,
    DeadLetterGroup,
    DeadLetterQueue,
    DeadLetters,
    ResendProgress,
    ResendResult,
)
from pyromq.admin.messages.delayed import (
    Delayed,
    DelayedMessage,
    DelayLevel,
    FoundDelayed,
)
from pyromq.admin.messages.half_messages import (
    FoundHalves,
    HalfMessage,
    HalfMessages,
)
from pyromq.admin.messages.messages import (
    DirectConsumption,
    FoundMessages,
    Messages,
    QueueEntries,
    QueueEntry,
)
from pyromq.admin.messages.sending import (
    SendLatency,
)
from pyromq.admin.messages.tracks import (
    MessageTrack,
    TraceEvent,
    TrackType,
)
from pyromq.admin.queue_reader import (
    Pulled,
    PullStatus,
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
    "ClientConnection",
    "Clusters",
    "Configurations",
    "Connections",
    "ConsumerConnections",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterQueue",
    "DeadLetters",
    "DelayLevel",
    "Delayed",
    "DelayedMessage",
    "DirectConsumption",
    "Export",
    "Exports",
    "FoundDelayed",
    "FoundHalves",
    "FoundMessages",
    "GroupAtBroker",
    "GroupProgress",
    "GroupSettings",
    "GroupStatus",
    "GroupSubscription",
    "GroupSummary",
    "Groups",
    "HalfMessage",
    "HalfMessages",
    "Maintenance",
    "MemberStatus",
    "MessageTrack",
    "MessageView",
    "Messages",
    "Monitor",
    "MonitorRound",
    "NotFoundError",
    "NotOnlineError",
    "NotPermittedError",
    "OffsetChange",
    "OffsetChanges",
    "OffsetMoved",
    "Offsets",
    "OnlineGroupError",
    "PartialFailureError",
    "Period",
    "PermissionChange",
    "ProbeResult",
    "ProducerState",
    "Promotion",
    "PromotionCheck",
    "PullStatus",
    "Pulled",
    "QueueEntries",
    "QueueEntry",
    "QueueLag",
    "QueueOffset",
    "QueueProgress",
    "QueueStatus",
    "Raft",
    "RaftNodeState",
    "RefusedError",
    "ReplicaState",
    "ReplicationState",
    "ResendProgress",
    "ResendResult",
    "RunningInfo",
    "RuntimeInfo",
    "SendLatency",
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
    "TraceEvent",
    "TrackType",
    "Undone",
    "UnknownBrokerError",
    "UnknownClusterError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnreachableError",
    "UnreadableAnswerError",
    "UnsupportedRequestError",
    "WritePermissionChange",
]
