"""Limit the size of a micro-batch: take a share of each queue's backlog.

As in Kafka's connector, each queue's share of a limit is proportional to its backlog. Every queue
with a backlog gets at least one message, so that none starves; a batch can therefore exceed its
limit by one message per queue. Pure, except that `bytes_per_offset` reads a few records. Used by
the stream reader in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from pyromq.protocol.message.bulk import read_columns
from pyromq.spark.origins.origin import Origin, QueueRange, RecordBlock

#: Messages to sample at each of two positions, to estimate the size of a topic's messages.
_SAMPLED_MESSAGES: Final = 32


def take_offsets(waiting: Sequence[QueueRange], limit: int) -> list[QueueRange]:
    """Return the first messages of each queue, about `limit` in total."""
    total = sum(wanted.size for wanted in waiting)
    return list(waiting) if total <= limit else _share(waiting, limit / total)


def take_bytes(
    waiting: Sequence[QueueRange], limit: int, sizes: Mapping[str, float]
) -> list[QueueRange]:
    """Return the first messages of each queue, about `limit` bytes in total."""
    total = sum(wanted.size * sizes[wanted.queue.topic] for wanted in waiting if wanted.size)
    return list(waiting) if total <= limit else _share(waiting, limit / total)


def bytes_per_offset(origin: Origin, waiting: Sequence[QueueRange]) -> dict[str, float]:
    """Estimate the bytes of records per offset, by topic.

    Samples the start and the middle of the longest backlog of each topic. Records that a filter
    drops count as zero bytes.
    """
    longest: dict[str, QueueRange] = {}
    for wanted in (wanted for wanted in waiting if wanted.size):
        known = longest.get(wanted.queue.topic)
        if known is None or wanted.size > known.size:
            longest[wanted.queue.topic] = wanted
    return {topic: _sampled(origin, wanted) for topic, wanted in longest.items()}


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
        part = QueueRange(wanted.queue, start, min(wanted.end, start + _SAMPLED_MESSAGES))
        offsets += part.size
        for block in origin.blocks(part):
            if isinstance(block, RecordBlock):
                size += int(read_columns(*block).column("total_size").sum())
    return max(size / offsets, 1.0)
