"""Settings of the broker that RocketMQ does not have: limits on clients and connections.

Each of them protects the broker from its peers; its `limit` says what happens to a peer that
reaches it. `BrokerConfig` inherits these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.base.settings import setting
from pyromq.remoting.limits import PeerSettings
from pyromq.tls.settings import TlsSettings

_PEERS = PeerSettings(received=256 << 20, unsent=512 << 20)

_BUSY = "The broker answers the pull with SYSTEM_BUSY; clients retry after some seconds."
_HEARTBEAT_REFUSED = "The broker refuses the whole heartbeat with SYSTEM_ERROR."
_NO_FILTER = "Another subscription gets no filter: its pulls fail with FILTER_DATA_NOT_EXIST."


@dataclass(frozen=True, slots=True)
class LimitSettings(TlsSettings):
    """Limits on what clients can make the broker hold or do."""

    bulk_pull_max_bytes: int = setting(
        "bulkPullMaxBytes",
        4 * 1024 * 1024,
        "Return at most this many bytes to a pull that asks for a large response (maxMsgBytes); "
        "0 turns large responses off.",
        minimum=0,
        maximum=15 * 1024 * 1024,
        live=True,
        limit="The response carries fewer messages than requested.",
    )
    max_suspend_timeout_millis: int = setting(
        "maxSuspendTimeoutMillis",
        300_000,
        "Hold a pull for at most this many milliseconds, even if its client asks for more.",
        minimum=1,
        live=True,
        limit="The broker answers the pull with PULL_NOT_FOUND at this time.",
    )
    max_parked_pulls: int = setting(
        "maxParkedPulls",
        400_000,
        "Hold at most this many pulls at the same time.",
        minimum=1,
        live=True,
        limit=_BUSY,
    )
    max_parked_pulls_per_connection: int = setting(
        "maxParkedPullsPerConnection",
        100_000,
        "Hold at most this many pulls of one connection at the same time.",
        minimum=1,
        live=True,
        limit=_BUSY,
    )
    max_parked_expression_size: int = setting(
        "maxParkedExpressionSize",
        64 * 1024 * 1024,
        "Keep at most this many characters of filter expressions that come with held pulls.",
        minimum=0,
        live=True,
        limit="The broker answers a pull that carries an expression with SYSTEM_BUSY.",
    )
    max_topics: int = setting(
        "maxTopics",
        # Below the NameServer's maxTopicsPerBroker: the broker's system topics are not counted.
        90_000,
        "Keep at most this many topics, including retry and dead-letter topics.",
        minimum=0,
        live=True,
        limit="A request that needs a new topic fails with SYSTEM_ERROR; existing topics keep "
        "working.",
    )
    max_subscription_groups: int = setting(
        "maxSubscriptionGroups",
        100_000,
        "Keep at most this many consumer groups.",
        minimum=0,
        live=True,
        limit="A request that needs a new group fails with SUBSCRIPTION_GROUP_NOT_EXIST and the "
        "reason.",
    )
    max_groups_per_heartbeat: int = setting(
        "maxGroupsPerHeartbeat",
        5_000,
        "Accept at most this many consumer and producer groups in one heartbeat.",
        minimum=1,
        live=True,
        limit=_HEARTBEAT_REFUSED,
    )
    max_groups_per_connection: int = setting(
        "maxGroupsPerConnection",
        10_000,
        "Accept at most this many consumer and producer groups, and thus client ids, on one "
        "connection.",
        minimum=1,
        live=True,
        limit=_HEARTBEAT_REFUSED,
    )
    max_subscriptions_per_heartbeat: int = setting(
        "maxSubscriptionsPerHeartbeat",
        20_000,
        "Accept at most this many subscriptions in one heartbeat, over all its groups.",
        minimum=1,
        live=True,
        limit=_HEARTBEAT_REFUSED,
    )
    max_subscription_bytes: int = setting(
        "maxSubscriptionBytes",
        256 * 1024 * 1024,
        "Use at most this many bytes of memory for the subscriptions of connected groups.",
        bits=64,
        minimum=0,
        live=True,
        limit="A heartbeat with larger subscriptions fails with SYSTEM_ERROR; its group does not "
        "join.",
    )
    max_consumer_filters: int = setting(
        "maxConsumerFilters",
        10_000,
        "Keep the SQL92 filters of at most this many subscriptions.",
        minimum=0,
        live=True,
        limit=_NO_FILTER,
    )
    max_consumer_filter_bytes: int = setting(
        "maxConsumerFilterBytes",
        16 * 1024 * 1024,
        "Keep at most this many bytes of SQL92 expressions, over all subscriptions.",
        bits=64,
        minimum=0,
        live=True,
        limit=_NO_FILTER,
    )
    max_queues_per_lock_request: int = setting(
        "maxQueuesPerLockRequest",
        65_536,
        "Accept at most this many queues in one request to lock or unlock queues.",
        minimum=1,
        live=True,
        limit="The request fails with SYSTEM_ERROR; no queue is locked or unlocked.",
    )
    max_queue_locks: int = setting(
        "maxQueueLocks",
        500_000,
        "Keep at most this many queue locks. Orderly consumers hold them, and all consumers of "
        "pyromq use them to hand queues over.",
        minimum=1,
        live=True,
        limit="Queues above the limit are not locked; the client retries.",
    )
    max_consumer_offsets: int = setting(
        "maxConsumerOffsets",
        200_000,
        "Keep the offsets of at most this many pairs of topic and group. Unknown groups get at "
        "most a tenth of them.",
        minimum=1,
        live=True,
        limit="The first commit of another pair fails with SYSTEM_ERROR.",
    )
    max_request_body_size: int = setting(
        "maxRequestBodySize",
        1024 * 1024,
        "Accept bodies of at most this many bytes in requests other than messages, heartbeats and "
        "locks, and in the status reports of clients.",
        minimum=0,
        live=True,
        limit="The request fails with SYSTEM_ERROR before its body is parsed; a status report is "
        "dropped.",
    )
    max_heartbeat_body_size: int = setting(
        "maxHeartbeatBodySize",
        8 * 1024 * 1024,
        "Accept bodies of at most this many bytes in heartbeats and in requests to lock or unlock "
        "queues.",
        minimum=0,
        live=True,
        limit="The request fails with SYSTEM_ERROR before its body is parsed.",
    )
    max_connections: int = _PEERS.max_connections
    max_connections_per_address: int = _PEERS.max_connections_per_address
    max_received_bytes: int = _PEERS.max_received_bytes
    max_unsent_bytes: int = _PEERS.max_unsent_bytes
    max_frame_seconds: int = _PEERS.max_frame_seconds
