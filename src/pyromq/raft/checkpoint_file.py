"""The checkpoint of a raft log: the committed index, and how much of the log is on disk.

Java's file, with keys of ours. It may be missing or old: a node then learns the committed index
from its leader, and checks more bodies at a start.

Called by `log`, under its lock.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.raft.format import (
    CHECKPOINT_FILE,
    CheckpointText,
    FormatError,
    decode_checkpoint,
    encode_checkpoint,
)

logger = logging.getLogger(__name__)


class CheckpointFile:
    """The `checkpoint` of a node's directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CHECKPOINT_FILE
        self._saved: CheckpointText | None = None

    def load(self) -> CheckpointText:
        """Return what was saved last; all -1 without a readable file."""
        # Java removes the file before it renames the new one.
        for path in (self._path, backup_of(self._path)):
            content = read_file(path)
            if content is None:
                continue
            try:
                return decode_checkpoint(content)
            except FormatError as error:
                logger.warning("ignoring %s: %s", path, error)
        return CheckpointText(-1, -1)

    def save(self, text: CheckpointText) -> None:
        """Save new values. Raises OSError."""
        if text != self._saved:
            write_file(self._path, encode_checkpoint(text), backup=True)
            self._saved = text
