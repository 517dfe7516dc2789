"""Ranges of queues: merged where they touch."""

from __future__ import annotations

from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange, merge_ranges

QUEUE = Queue("T", "broker-a", 0)
OTHER = Queue("T", "broker-a", 1)


def test_neighbours_are_joined() -> None:
    ranges = [QueueRange(QUEUE, 5, 9), QueueRange(QUEUE, 0, 5), QueueRange(QUEUE, 7, 8)]
    assert merge_ranges(ranges) == [QueueRange(QUEUE, 0, 9)]


def test_gaps_and_other_queues_stay() -> None:
    ranges = [QueueRange(OTHER, 5, 9), QueueRange(QUEUE, 0, 5), QueueRange(QUEUE, 6, 8)]
    assert merge_ranges(ranges) == [ranges[1], ranges[2], ranges[0]]
    assert ranges[0].size == 4


def test_the_text_of_a_loss() -> None:
    lost = LostRecords(QUEUE, 3, 5, "they have expired")
    assert str(lost) == "T@broker-a:0: offsets 3 to 4 are lost: they have expired"
