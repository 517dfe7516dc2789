"""Ranges of queues divided into the parts that tasks read.

A queue is read by one task unless it has more than `maxRecordsPerPartition` messages to read,
or `minPartitions` asks for more tasks than there are. Parts of a queue are of equal size, to
one message. Pure; used by the driver.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from pyromq.spark.origins.origin import QueueRange


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: QueueRange) -> None:
        self.wanted = wanted


def split(
    ranges: Sequence[QueueRange], min_partitions: int, max_records: int
) -> list[RangePartition]:
    """Parts of at most `max_records` messages; as many as asked for, if there are messages."""
    ranges = [wanted for wanted in ranges if wanted.size > 0]
    counts = [-(-wanted.size // max_records) for wanted in ranges]
    missing = min(min_partitions, sum(wanted.size for wanted in ranges)) - sum(counts)
    if missing > 0:
        # One part more, again and again, for the range that has the largest parts.
        largest = [(-wanted.size / counts[at], at) for at, wanted in enumerate(ranges)]
        heapq.heapify(largest)
        for _ in range(missing):
            at = largest[0][1]
            counts[at] += 1
            heapq.heapreplace(largest, (-ranges[at].size / counts[at], at))
    return [
        RangePartition(part)
        for wanted, count in zip(ranges, counts, strict=True)
        for part in _parts(wanted, count)
    ]


def _parts(wanted: QueueRange, count: int) -> list[QueueRange]:
    cuts = [wanted.start + wanted.size * part // count for part in range(count + 1)]
    return [QueueRange(wanted.queue, cuts[at], cuts[at + 1]) for at in range(count)]
