"""Names that RocketMQ gives a meaning, and the rules for names of topics and groups.

A legal name has only letters, digits and `% | - _`: it is safe as a folder of the store
and as one word in every text format. Topics have at most 127 characters (a record stores
the length in one byte), groups at most 255.

Pure. Used by brokers, NameServers and clients.
"""

from __future__ import annotations

import re

#: The template of topics that are created by sending to them.
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"

#: Topics that exist for the system itself; each broker adds some under its own names.
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

#: Topics that only the broker itself writes to.
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

#: Topics in whose queues the broker keeps its own place: they are never removed.
TOPICS_WITH_PROGRESS = frozenset({SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC})

RETRY_TOPIC_PREFIX = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX = "%DLQ%"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

#: Groups of RocketMQ's own tools, which exist on every broker.
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
#: Its offsets say how far the broker has come with halves and their ends.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 255

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """The topic of a group's messages that are to be consumed again."""
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of a group's messages that were given up."""
    return DEAD_LETTER_TOPIC_PREFIX + group


def reply_topic(cluster: str) -> str:
    """The topic of replies to request-reply messages."""
    return cluster + REPLY_TOPIC_SUFFIX


def topic_fault(topic: str) -> str | None:
    """What is wrong with a topic's name; None when nothing is."""
    return _fault("topic", topic, MAX_TOPIC_LENGTH)


def group_fault(group: str) -> str | None:
    """What is wrong with a group's name; None when nothing is."""
    return _fault("group", group, MAX_GROUP_LENGTH)


def is_system_topic(topic: str) -> bool:
    """Whether a topic exists for the system itself on every broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether a group exists for the system or its tools on every broker."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def _fault(kind: str, name: str, max_length: int) -> str | None:
    if not name.strip():
        return f"the {kind}'s name is blank"
    if len(name) > max_length:
        return f"the {kind}'s name has {len(name)} characters, at most {max_length} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"{kind} {name!r} has illegal characters: letters, digits and %|-_ are allowed"
    return None
