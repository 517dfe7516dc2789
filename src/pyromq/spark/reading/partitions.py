"""Split ranges of queues into partitions, one for each task.

One task reads a queue, unless it has more than `maxRecordsPerPartition` messages to read or
`minPartitions` asks for more tasks. The partitions of a queue have the same size, give or take
one message. Pure; used by the driver.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from pyromq.spark.origins.origin import QueueRange


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, wanted: QueueRange) -> None:
        self.wanted = wanted


def split(
    ranges: Sequence[QueueRange], min_partitions: int, max_records: int
) -> list[RangePartition]:
    """Return partitions of at most `max_records` messages, `min_partitions` of them if possible."""
    ranges = [wanted for wanted in ranges if wanted.size > 0]
    counts = [-(-wanted.size // max_records) for wanted in ranges]
    missing = min(min_partitions, sum(wanted.size for wanted in ranges)) - sum(counts)
    if missing > 0:
        # Repeatedly split the range with the largest partitions once more.
        largest = [(-wanted.size / counts[at], at) for at, wanted in enumerate(ranges)]
        heapq.heapify(largest)
        for _ in range(missing):
            at = largest[0][1]
            counts[at] += 1
            heapq.heapreplace(largest, (-ranges[at].size / counts[at], at))
    return [
        RangePartition(part)
        for wanted, count in zip(ranges, counts, strict=True)
        for part in _split_evenly(wanted, count)
    ]


def _split_evenly(wanted: QueueRange, count: int) -> list[QueueRange]:
    cuts = [wanted.start + wanted.size * part // count for part in range(count + 1)]
    return [QueueRange(wanted.queue, cuts[at], cuts[at + 1]) for at in range(count)]
