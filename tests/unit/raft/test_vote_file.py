from __future__ import annotations

from pathlib import Path

import pytest

from pyromq.raft.format import Vote
from pyromq.raft.vote_file import VoteFile
from pyromq.store.results import StoreError


def test_a_new_node_has_term_zero_and_no_vote(tmp_path: Path) -> None:
    assert VoteFile(tmp_path / "dledger-n0").load() == Vote(0, None)


def test_votes_are_saved_as_java_saves_them(tmp_path: Path) -> None:
    votes = VoteFile(tmp_path)
    votes.save(Vote(2, "n1"))
    votes.save(Vote(3, None))
    assert VoteFile(tmp_path).load() == Vote(3, None)
    assert (tmp_path / "currterm").read_bytes() == b"currTerm=3\nvoteLeader=\n"
    assert (tmp_path / "currterm.bak").read_bytes() == b"currTerm=2\nvoteLeader=n1\n"


@pytest.mark.parametrize(
    ("temporary", "expected"),
    [
        (b"voteLeader=n1\ncurrTerm=7\n", Vote(7, "n1")),
        (b"voteLeader=n1\ncurrTerm=6\n", Vote(6, "n1")),
        (b"voteL", Vote(6, None)),
        (None, Vote(6, None)),
    ],
)
def test_a_java_node_killed_between_delete_and_rename(
    temporary: bytes | None, expected: Vote, tmp_path: Path
) -> None:
    (tmp_path / "currterm.bak").write_bytes(b"voteLeader=\ncurrTerm=6\n")
    if temporary is not None:
        (tmp_path / "currterm.tmp").write_bytes(temporary)
    assert VoteFile(tmp_path).load() == expected


def test_a_damaged_file_stops_the_node(tmp_path: Path) -> None:
    (tmp_path / "currterm").write_bytes(b"currTerm=\n")
    (tmp_path / "currterm.bak").write_bytes(b"voteLeader=\ncurrTerm=6\n")
    with pytest.raises(StoreError, match="may have voted already: remove the node's directory"):
        VoteFile(tmp_path).load()
