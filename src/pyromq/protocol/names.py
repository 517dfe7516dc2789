"""Topic and group names that RocketMQ reserves, and the rules for legal names.

A legal name consists of letters, digits and `% | - _`. It is safe as a folder name in the store and
as a single word in every text format. Topics have at most 127 characters (a record stores the
length in one byte), groups at most 255.

Pure. Used by brokers, NameServers and clients.
"""

from __future__ import annotations

import re

#: The template for topics that are created when a producer first sends to them.
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: Of the entries with which the leader of a raft group commits older ones; it has no queues.
RAFT_TOPIC = "RMQ_SYS_RAFT"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"

#: Topics that RocketMQ itself uses. Each broker adds some that contain its own name.
SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

#: Topics that only the broker may write to.
TOPICS_CLOSED_TO_SENDERS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

#: Topics in whose queues the broker tracks its own progress. They are never removed.
TOPICS_WITH_PROGRESS = frozenset({SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC})

RETRY_TOPIC_PREFIX = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX = "%DLQ%"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

#: Groups of RocketMQ's own tools; they exist on every broker.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
#: Groups with this prefix belong to the system and exist without being created.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
#: Its offsets are the broker's progress in the queues of half and op messages.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 255

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Return the topic for messages that a group will consume again."""
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic for messages that a group failed to consume too many times."""
    return DEAD_LETTER_TOPIC_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic for replies to request-reply messages."""
    return cluster + REPLY_TOPIC_SUFFIX


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic name, or None."""
    return _fault("topic", topic, MAX_TOPIC_LENGTH)


def group_fault(group: str) -> str | None:
    """Return what is wrong with a group name, or None."""
    return _fault("group", group, MAX_GROUP_LENGTH)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic belongs to RocketMQ itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to RocketMQ itself or to its tools."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def _fault(kind: str, name: str, max_length: int) -> str | None:
    if not name.strip():
        return f"{kind} name is blank"
    if len(name) > max_length:
        return f"{kind} name has {len(name)} characters, limit {max_length}"
    if not _LEGAL.fullmatch(name):
        return f"{kind} {name!r} has illegal characters: use letters, digits and %|-_"
    return None
