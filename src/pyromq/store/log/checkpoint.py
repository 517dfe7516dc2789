"""The checkpoint file: up to which store time log, queues and index are on the disk.

After a crash everything that was stored later than the earliest of the three, less
three seconds, is checked and dispatched again. Layout: `protocol.units`.

Times only grow. Written by the flush thread, read at start.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from pyromq.base.descriptors import opened
from pyromq.protocol.message.units import CHECKPOINT, CHECKPOINT_FILE_SIZE

logger = logging.getLogger(__name__)

_SAFETY_MARGIN_MS: Final = 3_000


class Checkpoint:
    """Three store timestamps in milliseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.log_timestamp = 0
        self.queue_timestamp = 0
        self.index_timestamp = 0

    def load(self) -> None:
        """Read the file; without one everything counts as not yet flushed."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        if len(data) < CHECKPOINT.size:
            logger.warning(
                "%s has %d bytes: ignored, the whole log counts as not flushed",
                self._path,
                len(data),
            )
            return
        self.log_timestamp, self.queue_timestamp, self.index_timestamp = CHECKPOINT.unpack_from(
            data
        )

    @property
    def safe_timestamp(self) -> int:
        """What was stored up to this time is on the disk, in log and queues."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - _SAFETY_MARGIN_MS)

    def save(self) -> None:
        """Write the three times and wait until they are on the disk."""
        data = CHECKPOINT.pack(self.log_timestamp, self.queue_timestamp, self.index_timestamp)
        with opened(self._path, os.O_RDWR | os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size != CHECKPOINT_FILE_SIZE:
                os.ftruncate(descriptor, CHECKPOINT_FILE_SIZE)
            os.pwrite(descriptor, data, 0)
            os.fsync(descriptor)
