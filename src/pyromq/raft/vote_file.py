"""The term and the vote of a node, which must survive a crash: no node votes twice in a term.

`save` returns when the new values are on disk, so a caller answers a vote after it. The files are
Java's: `currterm`, and the values before as `currterm.bak`.

Java removes `currterm` before it renames `currterm.tmp`. A Java node that was killed in between
starts again in term 0; here the newest of the other two files counts. A `currterm` that cannot be
read stops the node, because its vote is unknown.

Called by the node, on the loop's thread: a save waits for the disk.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.raft.format import TERM_FILE, FormatError, Vote, decode_vote, encode_vote
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)


class VoteFile:
    """The `currterm` of a node's directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / TERM_FILE

    def load(self) -> Vote:
        """Return the last saved vote; term 0 without one on a new node. Raises StoreError."""
        content = read_file(self._path)
        if content is not None:
            try:
                return decode_vote(content)
            except FormatError as error:
                raise StoreError(
                    f"{self._path} is damaged ({error}), so this node may have voted already: "
                    "remove the node's directory and let the group fill it again"
                ) from error
        temporary = self._path.with_name(self._path.name + ".tmp")
        # The newest first: of equal terms, it has the vote.
        found = [self._try(path) for path in (temporary, backup_of(self._path))]
        votes = [vote for vote in found if vote is not None]
        if not votes:
            return Vote(0, None)
        best = max(votes, key=lambda vote: vote.term)
        logger.warning("%s is missing: continuing with %s", self._path, best)
        return best

    def save(self, vote: Vote) -> None:
        """Save a vote. Raises OSError."""
        write_file(self._path, encode_vote(vote), backup=True)

    def _try(self, path: Path) -> Vote | None:
        content = read_file(path)
        if content is None:
            return None
        try:
            return decode_vote(content)
        except FormatError as error:
            logger.warning("ignoring %s: %s", path, error)
            return None
