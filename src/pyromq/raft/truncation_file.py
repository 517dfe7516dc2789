"""The truncation of a log that is in progress: the file `truncation` beside Java's.

It exists, fsynced, from before the first change to after the last one. A start that finds it
applies the truncation again; Java knows nothing like it.

Used by `log`, on the loop's thread: each call waits for the disk.
"""

from __future__ import annotations

from pathlib import Path

from pyromq.base.atomic_file import read_file, sync_directory, write_file
from pyromq.raft.format import (
    TRUNCATION_FILE,
    FormatError,
    Truncation,
    decode_truncation,
    encode_truncation,
)
from pyromq.store.results import StoreError


class TruncationFile:
    """The file in the directory of one node."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / TRUNCATION_FILE

    def load(self) -> Truncation | None:
        """Return the truncation that a crash interrupted, or None. Raises StoreError."""
        content = read_file(self._path)
        if content is None:
            return None
        try:
            return decode_truncation(content)
        except FormatError as error:
            raise StoreError(
                f"{self._path}: {error}; restore or remove the node's directory"
            ) from error

    def begin(self, truncation: Truncation) -> None:
        """Note what is about to be done. Raises OSError."""
        write_file(self._path, encode_truncation(truncation))

    def end(self) -> None:
        """Note that it is done, and on disk. Raises OSError."""
        self._path.unlink()
        sync_directory(self._path.parent)
