"""Turn a broker with a commit log into a node of a raft group, as Java's mixed mode does.

The old log is kept: a blank record closes its last segment, and the raft log begins at the next
segment border, the divided offset. Offsets below it are of the old files, all others of the raft
log. At later starts the divided offset is where the first data file begins.

The old logs of all nodes must be identical; only new messages are replicated.

Called by the store at its start, on the loop's thread.
"""

from __future__ import annotations

import logging

from pyromq.protocol.message.record import BLANK, BLANK_MAGIC, BLANK_SIZE
from pyromq.store.log.segments import Segments

logger = logging.getLogger(__name__)


def close_old_log(segments: Segments, end: int) -> int:
    """Close a recovered commit log that ends at `end`; return the divided offset.

    Is idempotent. Raises OSError if the disk has no room for the blank record.
    """
    if not segments.files:
        return 0
    last = segments.files[-1]
    divided = last.base + last.size
    assert last.base <= end <= divided, (last.base, end, divided)
    at = end - last.base
    if end == divided or _is_blank(last.read(at, at + BLANK_SIZE)):
        return divided
    last.reserve(at + BLANK_SIZE)
    last.write(at, BLANK.pack(divided - end, BLANK_MAGIC))
    last.sync()
    logger.info("closed the old commit log at %d: the raft log begins at %d", end, divided)
    return divided


def _is_blank(data: bytes) -> bool:
    size, magic = BLANK.unpack(data)
    return bool(size > 0 and magic == BLANK_MAGIC)
