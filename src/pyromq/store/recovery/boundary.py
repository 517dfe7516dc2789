"""Find where records start in a log: `boundary_at_or_below`.

A boundary is an offset at which a log can end: the start of a record, of the blank record that
fills a segment, or of a segment, and the end of the log. Reads one segment up to the offset, with
the walk of recovery but without CRCs, and changes nothing.

Called by `truncate`, and by replicas, whose log is live: only bytes below its `written` mark count.
Any thread may call it, as it may read a whole segment from the disk.
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np

from pyromq.protocol.message.delay import DelayLevels
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.recovery.walk import LogWalk
from pyromq.store.results import StoreError

#: The walk does not evaluate delays.
_ANY_LEVELS: Final = DelayLevels("1s")


def boundary_at_or_below(log: CommitLog, offset: int) -> int:
    """Return the largest boundary that is not above `offset`; `offset` itself if it is one.

    Raises StoreError if no segment holds the offset.
    """
    segments = log.segments
    file = segments.find(offset)
    if file is None and offset == segments.end_offset and segments.files:
        file = segments.files[-1]
    if file is None:
        raise StoreError(
            f"offset {offset} is not in the log, whose files hold {segments.first_offset} to "
            f"{segments.end_offset}"
        )
    boundary = file.base
    if offset == boundary:
        return boundary
    walk = LogWalk(log, boundary, delay_levels=_ANY_LEVELS, check_crc=False, alone=True)
    with contextlib.closing(iter(walk)) as pieces:
        for piece in pieces:
            if piece.base >= offset:
                break
            end = piece.base + len(piece.data)
            if offset < end:
                row = int(np.searchsorted(piece.starts, offset - piece.base, side="right")) - 1
                return piece.base + int(piece.starts[row])
            boundary = end
    # After the segment's last record. The walk is past it if a blank record fills the segment.
    is_full = offset == file.base + file.size and walk.end >= offset
    return offset if is_full else boundary
