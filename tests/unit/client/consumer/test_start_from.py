from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from pyromq.client.consumer.queue_access import QueueAccess
from pyromq.client.consumer.start_from import Start, StartFrom, consume_from_where, first_offset
from pyromq.protocol.wire.bodies import ConsumeFromWhere, MessageQueue

SOME_TIME = datetime(2026, 11, 1, tzinfo=UTC)


class Asked:
    """A queue with offsets 7 to 20; offset 12 was stored on 1 November."""

    async def min_offset(self, _queue: MessageQueue) -> int:
        return 7

    async def max_offset(self, _queue: MessageQueue) -> int:
        return 20

    async def offset_by_time(self, _queue: MessageQueue, timestamp: int) -> int:
        assert timestamp == 1793491200000
        return 12


@pytest.mark.parametrize(
    ("start", "topic", "offset"),
    [
        (StartFrom.FIRST, "t", 7),
        (StartFrom.LAST, "t", 20),
        (SOME_TIME, "t", 12),
        (StartFrom.LAST, "%RETRY%g", 7),
        (SOME_TIME, "%RETRY%g", 7),
    ],
)
async def test_a_new_group_starts_as_configured(start: Start, topic: str, offset: int) -> None:
    access = cast(QueueAccess, Asked())
    assert await first_offset(access, MessageQueue(topic, "b", 0), start) == offset


def test_heartbeats_use_java_names() -> None:
    assert consume_from_where(StartFrom.FIRST) is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consume_from_where(StartFrom.LAST) is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert consume_from_where(SOME_TIME) is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
