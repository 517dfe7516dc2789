"""Back up and restore a raft node: what `store.backup` cannot know.

A backup has the committed entries. A restore writes the node's other files: the index, which is
rebuilt from the entries, the checkpoint, and the term, without a vote.

A node that returns to a running group with an old log must not vote before it has the group's log
(`mustCatchUp`). If all nodes are restored from one backup, there is nothing to catch up with.

Called by `pyromq store backup` and `pyromq store restore`, on their thread.
"""

from __future__ import annotations

from pyromq.raft.format import Vote
from pyromq.raft.log import RaftLog
from pyromq.raft.offline.files import committed_end, find_node
from pyromq.raft.vote_file import VoteFile
from pyromq.store.backup.making import RaftNode
from pyromq.store.backup.manifest import Manifest
from pyromq.store.config import MessageStoreConfig
from pyromq.store.offline.raft_store import entry_directory
from pyromq.store.results import StoreError


def raft_node_of(config: MessageStoreConfig) -> RaftNode | None:
    """Return what a backup needs to know about a store's node; None for any other store.

    Raises StoreError if the node's files cannot be trusted.
    """
    if entry_directory(config) is None:
        return None
    node = find_node(config.root, config)
    term = VoteFile(node.directory).load().term
    return RaftNode(node.node_id, term, committed_end(node))


def complete_node(config: MessageStoreConfig, manifest: Manifest, *, must_catch_up: bool) -> None:
    """Write index, checkpoint and term beside restored entries. Is idempotent.

    Raises StoreError if the entries do not end where the backup does.
    """
    assert manifest.raft is not None
    log = RaftLog(
        config.raft_directory,
        data_file_size=config.mapped_file_size_commit_log,
        data_directory=config.raft_data_directory,
        first_position=manifest.raft.begin,
    )
    log.start()
    try:
        written = log.written
        log.commit(log.end_index)
        log.must_catch_up = must_catch_up
    finally:
        log.stop()
    if written != manifest.log_end:
        raise StoreError(
            f"the entries in the backup end at {written}, not at {manifest.log_end}: they are "
            "damaged, restore another backup"
        )
    VoteFile(config.raft_directory).save(Vote(manifest.raft.term, None))
