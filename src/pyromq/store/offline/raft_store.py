"""Tell whether a store belongs to a node of a raft group, and where its entries are.

Such a store has its messages in `<root>/dledger-<id>/data`, each as the body of an entry, perhaps
behind a commit log from before the broker joined the group (mixed mode). Both are one stream of
segments: the entries begin where the commit log ends.

Tools that need the commit log alone call `refuse_raft_store`. Called by the other modules of
`offline` and by Spark's drivers, on their own threads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pyromq.store.config import MessageStoreConfig
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.results import StoreError

_SEGMENT: Final = "[0-9]" * 20


def entry_directory(config: MessageStoreConfig) -> Path | None:
    """Return the directory of a raft node's entries; None for any other store.

    Without the node's settings, it is found by its name. Raises StoreError if there are several.
    """
    if config.enable_dleger_commit_log:
        return config.raft_data_directory or config.raft_directory / "data"
    found = sorted(
        path.parent for path in config.root.glob("dledger-*/data") if any(path.glob(_SEGMENT))
    )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise StoreError(
            f"{config.root} has the entries of several raft nodes ({names}): pass the broker's "
            "properties file (--config)"
        )
    return found[0] / "data" if found else None


def refuse_raft_store(config: MessageStoreConfig, instead: str) -> None:
    """Raise StoreError for the store of a raft node; `instead` says what to do."""
    entries = entry_directory(config)
    if entries is not None and entries.is_dir():
        raise StoreError(
            f"{config.root} belongs to a node of a raft group, with its messages in {entries}: "
            f"{instead}"
        )


class StoreLog(CommitLog):
    """The log of a store of either kind, for reading."""

    __slots__ = ("_entries_in",)

    def __init__(self, config: MessageStoreConfig, *, open_files: OpenFiles | None = None) -> None:
        entries = entry_directory(config)
        super().__init__(
            config.commit_log_directory,
            config.mapped_file_size_commit_log,
            more=(*config.more_commit_log_directories, *([] if entries is None else [entries])),
            read_only=config.read_only_commit_log_directories,
            open_files=open_files,
        )
        self._entries_in = entries

    def load(self) -> None:
        """Map all segments; the log ends with the last one. Raises StoreError."""
        self.segments.load()
        self.watermarks.assume_written(self.segments.end_offset)
        bases = (file.base for file in self.segments.files if file.path.parent == self._entries_in)
        self._entries_from = min(bases, default=sys.maxsize)
