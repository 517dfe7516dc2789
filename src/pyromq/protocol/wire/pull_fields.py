"""The names of the header fields of a pull that the hot path reads.

All but the offsets are the same in every pull of a consumer and queue; together they are the key to
its plan (`broker.handlers.pull_plans`). `headers` has the complete header.

Pure. Used by the broker's pull handlers and by the compiled kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class PullFields(NamedTuple):
    """Wire names: those of the key first, in its order."""

    group: str
    topic: str
    queue_id: str
    max_count: str
    sys_flag: str
    suspend_ms: str
    sub_version: str
    subscription: str
    expression_type: str
    max_bytes: str
    queue_offset: str
    commit_offset: str


NAMES: Final = PullFields(
    "consumerGroup",
    "topic",
    "queueId",
    "maxMsgNums",
    "sysFlag",
    "suspendTimeoutMillis",
    "subVersion",
    "subscription",
    "expressionType",
    "maxMsgBytes",
    "queueOffset",
    "commitOffset",
)
#: How many of them belong to the key; all but the last three of those are required.
KEY_COUNT: Final = NAMES.index(NAMES.queue_offset)
