from __future__ import annotations

import asyncio

from pyromq.client.consumer.lite_pull.read_ahead import Batch, ReadAhead, Reading
from pyromq.client.consumer.process_queue import Limits
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue

A, B = MessageQueue("t", "b0", 0), MessageQueue("t", "b0", 1)


def messages(*offsets: int, size: int = 1) -> list[ReceivedMessage]:
    found = []
    for offset in offsets:
        message = ReceivedMessage()
        message.queue_offset = offset
        message.body_size = size
        found.append(message)
    return found


def ahead(limits: Limits | None = None, max_messages: int = 10_000) -> ReadAhead:
    return ReadAhead(limits or Limits(), max_messages)


def next_offset(waiting: ReadAhead) -> int | None:
    message = waiting.next_message()
    return None if message is None else message.queue_offset


def test_a_message_counts_when_the_next_is_requested() -> None:
    waiting, reading = ahead(), Reading(A, 5)
    waiting.put(reading, messages(5, 6, 8), 10)
    assert (reading.commit_offset, reading.position) == (5, 5)
    seen = [(next_offset(waiting), reading.commit_offset, reading.position) for _ in range(4)]
    assert seen == [(5, 5, 6), (6, 6, 8), (8, 8, 10), (None, 10, 10)]
    assert waiting.count == 0


def test_settled_messages_count_at_once() -> None:
    waiting, reading = ahead(), Reading(A, 0)
    waiting.settle()
    waiting.put(reading, messages(0, 1, 2), 3)
    assert waiting.next_message() is not None
    waiting.settle()
    assert reading.commit_offset == 1
    batch = waiting.next_batch()
    assert batch is not None
    assert [message.queue_offset for message in batch] == [1, 2]
    assert reading.commit_offset == 1
    waiting.settle()
    assert reading.commit_offset == 3


def test_the_owner_is_notified_when_a_queue_is_free() -> None:
    waiting, reading = ahead(), Reading(A, 0)
    waiting.put(reading, messages(0, 1, 2), 3)
    assert reading.is_free
    told: list[int | None] = []
    reading.when_free = lambda: told.append(reading.commit_offset)
    for count, done in enumerate((waiting.settle, waiting.next_batch, waiting.discard), 1):
        assert next_offset(waiting) is not None
        assert not reading.is_free
        waiting.pause(reading)
        done()
        assert reading.is_free
        assert len(told) == count
        waiting.resume(reading)
        waiting.settle()
        told = told[:count]
    # The last one was discarded: it was not consumed.
    assert told == [1, 2, 2]


def test_queues_take_turns() -> None:
    waiting = ahead()
    first, second = Reading(A, 0), Reading(B, 0)
    for offset in range(3):
        waiting.put(first, messages(offset), offset + 1)
    for offset in range(2):
        waiting.put(second, messages(10 + offset), 11 + offset)
    assert [next_offset(waiting) for _ in range(6)] == [0, 10, 1, 11, 2, None]


def test_filtered_messages_are_skipped_after_those_before_them() -> None:
    waiting, reading = ahead(), Reading(A, 0)
    waiting.put(reading, [], 4)
    assert reading.commit_offset == 4
    waiting.put(reading, messages(4), 5)
    waiting.put(reading, [], 9)
    assert reading.commit_offset == 4
    assert next_offset(waiting) == 4
    waiting.put(reading, [], 12)  # while it is in hand
    assert reading.commit_offset == 4
    assert next_offset(waiting) is None
    assert (reading.commit_offset, reading.next_offset) == (12, 12)


def test_a_paused_queue_keeps_its_messages() -> None:
    waiting, reading = ahead(), Reading(A, 0)
    waiting.put(reading, messages(0, 1, 2), 3)
    assert next_offset(waiting) == 0
    waiting.pause(reading)
    assert not waiting.has_room(reading)
    waiting.put(reading, messages(3), 4)
    assert next_offset(waiting) is None
    assert reading.commit_offset == 1
    assert (reading.count, waiting.count) == (3, 3)
    waiting.resume(reading)
    waiting.resume(reading)
    assert [next_offset(waiting) for _ in range(4)] == [1, 2, 3, None]
    assert (reading.commit_offset, waiting.count) == (4, 0)


def test_dropped_messages_do_not_count() -> None:
    waiting, reading = ahead(), Reading(A, 0)
    waiting.put(reading, messages(0, 1), 2)
    waiting.put(reading, messages(2), 3)
    waiting.next_message()
    waiting.next_message()
    waiting.drop(reading)
    waiting.drop(reading)
    waiting.put(reading, messages(3), 4)
    assert (waiting.count, reading.commit_offset) == (0, 1)
    waiting.settle()
    assert next_offset(waiting) is None
    assert reading.commit_offset == 1


def test_discarded_messages_do_not_count() -> None:
    ended: list[bool] = []

    def end(_batch: Batch, is_consumed: bool) -> None:
        ended.append(is_consumed)

    waiting, reading = ReadAhead(Limits(), 100, end=end), Reading(A, 0)
    waiting.discard()
    waiting.put(reading, messages(0, 1), 2)
    waiting.next_batch()
    waiting.discard()
    assert (reading.commit_offset, ended) == (0, [False])


def test_room_is_limited_by_count_size_span_and_total() -> None:
    reading, other = Reading(A, 0), Reading(B, 0)
    waiting = ahead(Limits(messages=3, size=100, span=None), 5)
    waiting.put(reading, messages(0, 1), 2)
    assert waiting.has_room(reading)
    waiting.put(reading, messages(2), 3)
    assert not waiting.has_room(reading)
    assert waiting.has_room(other)
    waiting.put(other, messages(0, 1), 2)
    assert not waiting.has_room(other)  # five in total
    waiting.next_batch()
    assert waiting.has_room(reading)

    waiting = ahead(Limits(messages=10, size=100, span=50))
    reading = Reading(A, 0)
    waiting.put(reading, messages(0, size=100), 1)
    assert not waiting.has_room(reading)

    waiting = ahead(Limits(messages=10, size=100, span=50))
    reading = Reading(A, 0)
    waiting.put(reading, messages(0, 50), 51)
    assert waiting.has_room(reading)
    waiting.put(reading, messages(51), 52)
    assert not waiting.has_room(reading)


async def test_a_pull_waits_for_room() -> None:
    waiting, reading, other = ahead(Limits(messages=1)), Reading(A, 0), Reading(B, 0)
    waiting.put(reading, messages(0), 1)
    await waiting.until_room(other)
    stalled = asyncio.create_task(waiting.until_room(reading))
    await asyncio.sleep(0)
    waiting.notify_room()
    await asyncio.sleep(0)
    assert not stalled.done()
    assert next_offset(waiting) == 0
    await stalled
