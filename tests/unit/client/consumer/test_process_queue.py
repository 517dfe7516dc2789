from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from tests.unit.client.received_messages import QUEUE, received

ROOMY = Limits()


def test_the_first_unfinished_message_limits_the_commit() -> None:
    queue = ProcessQueue(QUEUE, 5, ROOMY)
    assert queue.commit_offset == 5
    messages = queue.put([received(offset) for offset in (5, 6, 8)], 10)
    assert (queue.commit_offset, queue.count, queue.span) == (5, 3, 3)
    queue.finish([messages[1]])
    assert queue.commit_offset == 5
    queue.finish([messages[0]])
    assert (queue.commit_offset, queue.cached_offsets) == (8, (8, 8))
    queue.finish([messages[2]])
    # Filtered messages after the last one are skipped as well.
    assert (queue.commit_offset, queue.count, queue.size, queue.span) == (10, 0, 0, 0)
    assert queue.cached_offsets == (0, 0)


async def test_a_queue_is_idle_once_the_last_handler_returns() -> None:
    queue = ProcessQueue(QUEUE, 0, ROOMY)
    await queue.until_idle()
    queue.begin_handling()
    queue.begin_handling()
    waiting = asyncio.create_task(queue.until_idle())
    await asyncio.sleep(0)
    queue.end_handling()
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.end_handling()
    await waiting


@given(st.permutations(range(12)), st.integers(1, 12))
def test_messages_may_finish_in_any_order(order: list[int], batch: int) -> None:
    queue = ProcessQueue(QUEUE, 0, ROOMY)
    messages = [received(offset, bytes(offset + 1)) for offset in range(12)]
    for start in range(0, 12, batch):
        queue.put(messages[start : start + batch], min(start + batch, 12))
    left = set(range(12))
    for offset in order:
        queue.finish([messages[offset], messages[offset]])  # the second time is ignored
        left.discard(offset)
        assert queue.commit_offset == min(left, default=12)
        assert queue.size == sum(offset + 1 for offset in left)


def test_messages_are_taken_once_and_in_order() -> None:
    queue = ProcessQueue(QUEUE, 0, ROOMY)
    first = queue.put([received(0), received(1)], 2)
    again = queue.put([received(2), received(1), received(2)], 3)
    assert [message.queue_offset for message in (*first, *again)] == [0, 1, 2]
    assert queue.count == 3


def test_a_queue_is_full_by_count_size_or_span() -> None:
    for limits, enough in (
        (Limits(messages=2), 2),
        (Limits(size=8), 2),
        (Limits(span=1), 3),
        (Limits(span=None), 4),
    ):
        queue = ProcessQueue(QUEUE, 0, limits)
        for offset in range(4):
            assert queue.is_full() == (offset >= enough)
            queue.put([received(offset)], offset + 1)


def test_room_is_notified_once() -> None:
    told: list[int] = []
    queue = ProcessQueue(QUEUE, 0, Limits(messages=2))
    messages = queue.put([received(offset) for offset in range(3)], 3)
    queue.when_room = lambda: told.append(queue.count)
    queue.finish(messages[:1])
    assert told == []
    queue.finish(messages[1:2])
    queue.finish(messages[2:])
    assert told == [1]


def test_a_dropped_queue_has_no_unfinished_messages() -> None:
    queue = ProcessQueue(QUEUE, 0, ROOMY)
    (message,) = queue.put([received(0)], 1)
    queue.waiting.append(message)
    assert queue.is_unfinished(message)
    queue.drop()
    assert not queue.is_unfinished(message)
    assert not queue.waiting
