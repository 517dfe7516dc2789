"""How much of what has come a micro-batch takes: shares of all queues within a limit.

As in Kafka's connector a limit is divided in proportion to what waits in each queue, and every
queue in which something waits gets at least one message, so that none starves: a batch can be
larger than its limit by one message for each queue. Pure, but for `bytes_per_offset`, which
reads a few records; used by the stream reader in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pyromq.protocol.message.bulk import read_columns
from pyromq.spark.origins.origin import Origin, QueueRange, RecordBlock

#: Messages that are looked at for the size of a topic's messages, at each of two places.
_SAMPLE: Final = 32


def take_offsets(waiting: Sequence[QueueRange], limit: int) -> list[QueueRange]:
    """The first messages of each queue, about `limit` in all."""
    total = sum(wanted.size for wanted in waiting)
    return list(waiting) if total <= limit else _share(waiting, limit / total)


def take_bytes(
    waiting: Sequence[QueueRange], limit: int, sizes: Mapping[str, float]
) -> list[QueueRange]:
    """The first messages of each queue, about `limit` bytes in all, given a size by topic."""
    total = sum(wanted.size * sizes[wanted.queue.topic] for wanted in waiting if wanted.size)
    return list(waiting) if total <= limit else _share(waiting, limit / total)


def bytes_per_offset(origin: Origin, waiting: Sequence[QueueRange]) -> dict[str, float]:
    """About how many bytes of records lie behind an offset, by topic.

    The records at the beginning and in the middle of what waits in the topic's fullest queue
    say so; those that a filter leaves out count as nothing.
    """
    fullest: dict[str, QueueRange] = {}
    for wanted in (wanted for wanted in waiting if wanted.size):
        known = fullest.get(wanted.queue.topic)
        if known is None or wanted.size > known.size:
            fullest[wanted.queue.topic] = wanted
    return {topic: _sampled(origin, wanted) for topic, wanted in fullest.items()}


def _share(waiting: Sequence[QueueRange], fraction: float) -> list[QueueRange]:
    shares = []
    for queue, start, end in waiting:
        share = (end - start) * fraction
        count = math.ceil(share) if share < 1 else math.floor(share)
        shares.append(QueueRange(queue, start, min(end, start + count)))
    return shares


def _sampled(origin: Origin, wanted: QueueRange) -> float:
    size = offsets = 0
    for start in {wanted.start, wanted.start + wanted.size // 2}:
        part = QueueRange(wanted.queue, start, min(wanted.end, start + _SAMPLE))
        offsets += part.size
        for block in origin.blocks(part):
            if isinstance(block, RecordBlock):
                size += int(read_columns(*block).column("total_size").sum())
    return max(size / offsets, 1.0)
