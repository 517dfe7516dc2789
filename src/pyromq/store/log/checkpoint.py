"""The checkpoint file: the store times up to which log, queues and index are on disk.

After a crash, recovery checks and dispatches again everything stored later than the earliest of
log and queues, less three seconds. The layout is in `protocol.message.units`.

Times only grow. The flush thread writes them, and the start reads them.
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
        """Read the file. Without one, nothing counts as flushed."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        if len(data) < CHECKPOINT.size:
            logger.warning(
                "ignoring checkpoint %s of %d bytes: recovery checks the whole log",
                self._path,
                len(data),
            )
            return
        self.log_timestamp, self.queue_timestamp, self.index_timestamp = CHECKPOINT.unpack_from(
            data
        )

    @property
    def safe_timestamp(self) -> int:
        """Return the store time up to which log and queues are on disk."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - _SAFETY_MARGIN_MS)

    def save(self) -> None:
        """Write the three times and fsync the file."""
        data = CHECKPOINT.pack(self.log_timestamp, self.queue_timestamp, self.index_timestamp)
        with opened(self._path, os.O_RDWR | os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size != CHECKPOINT_FILE_SIZE:
                os.ftruncate(descriptor, CHECKPOINT_FILE_SIZE)
            os.pwrite(descriptor, data, 0)
            os.fsync(descriptor)
