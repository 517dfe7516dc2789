"""Find the files of a raft node in a store directory, and read the small ones.

A store has the node's files in `<root>/dledger-<id>`, and perhaps its entries elsewhere
(storePathDLedgerCommitLog). Nothing is ever written or locked.

Called by the command line, on its own thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyromq.base.atomic_file import backup_of, read_file
from pyromq.raft.format import (
    CHECKPOINT_FILE,
    DATA_DIRECTORY,
    INDEX_DIRECTORY,
    INDEX_UNIT_SIZE,
    CheckpointText,
    FormatError,
    Place,
    decode_checkpoint,
    decode_unit,
)
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.check_files import SegmentFiles
from pyromq.store.results import StoreError

PREFIX: Final = "dledger-"


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The directories of one node."""

    #: The store's root; None if only the node's directory is known.
    root: Path | None
    directory: Path
    data: Path

    @property
    def index(self) -> Path:
        """Directory of the index."""
        return self.directory / INDEX_DIRECTORY

    @property
    def node_id(self) -> str:
        """The id of the node, as its directory has it."""
        return self.directory.name.removeprefix(PREFIX)


def find_node(path: Path, config: MessageStoreConfig | None = None) -> NodeFiles:
    """Return the node in a store, or in its own directory `dledger-<id>`.

    `config` are the broker's settings, if they are known. Raises StoreError if there is no node
    there, or more than one.
    """
    if config is not None and config.enable_dleger_commit_log:
        directory = config.raft_directory
        if not directory.is_dir():
            raise StoreError(f"{directory} is not a directory: the node has never started here")
        return NodeFiles(
            config.root, directory, config.raft_data_directory or directory / DATA_DIRECTORY
        )
    if path.name.startswith(PREFIX):
        return NodeFiles(path.parent, path, path / DATA_DIRECTORY)
    found = sorted(each for each in path.glob(f"{PREFIX}*") if each.is_dir())
    if not found:
        raise StoreError(
            f"{path} has no node of a raft group: expected a directory {PREFIX}<id> in it"
        )
    if len(found) > 1:
        raise StoreError(
            f"{path} has several nodes ({', '.join(each.name for each in found)}): give the "
            "directory of one of them"
        )
    return NodeFiles(path, found[0], found[0] / DATA_DIRECTORY)


def read_checkpoint(node: NodeFiles) -> CheckpointText:
    """Return what the node saved last; all -1 without a readable file."""
    path = node.directory / CHECKPOINT_FILE
    for each in (path, backup_of(path)):
        content = read_file(each)
        try:
            if content is not None:
                return decode_checkpoint(content)
        except FormatError:
            continue
    return CheckpointText(-1, -1)


def unit_at(files: SegmentFiles, index: int) -> Place | None:
    """Return the place of an entry, as the index has it."""
    data = files.read(index * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE)
    place = decode_unit(data) if len(data) == INDEX_UNIT_SIZE else None
    return place if place is not None and place.index == index else None


def committed_end(node: NodeFiles) -> int:
    """Return the position after the last entry that is known to be committed.

    That is the start of the entries if none is. Raises StoreError if the index lacks it.
    """
    data = SegmentFiles(node.data, 0)
    units = SegmentFiles(node.index, 0)
    for files in (data, units):
        for violation in files.load():
            raise StoreError(f"{violation.file} {violation.message}: run pyromq raft check")
    committed = read_checkpoint(node).committed_index
    if committed < 0:
        return data.first_offset
    place = unit_at(units, committed)
    if place is None:
        raise StoreError(
            f"the index of {node.directory} lacks entry {committed}, which is committed: run "
            "pyromq raft check, or start the broker, which repairs the index"
        )
    return place.end
