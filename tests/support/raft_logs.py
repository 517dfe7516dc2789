"""Small raft logs: the steps of tests/golden/java/GoldenLedger.java on our log.

A list of steps can be carried out by Java and by us; what is stored must be equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.raft.format import Entry, Vote
from pyromq.raft.log import RaftLog
from pyromq.raft.placement import MismatchError
from pyromq.raft.vote_file import VoteFile

#: A few entries fill a file of either kind.
DATA_FILE = 4096
INDEX_FILE = 16 * 32

State = dict[str, Any]


def open_log(directory: Path, **settings: Any) -> RaftLog:
    """Start a log with small files."""
    sizes = {"data_file_size": DATA_FILE, "index_file_size": INDEX_FILE}
    log = RaftLog(directory, **{**sizes, **settings})
    log.start()
    return log


def body_of(index: int, term: int, size: int) -> bytes:
    """Return the body that GoldenLedger gives an entry."""
    first = index * 31 + term * 7
    return bytes((first + k) & 0xFF for k in range(size))


def entries_of(log: RaftLog) -> list[Entry]:
    """Return all entries, with their bodies copied."""
    if log.end_index < 0:
        return []
    found = [log.entry(index) for index in range(log.begin_index, log.end_index + 1)]
    return [Entry(each.index, each.term, each.position, bytes(each.body)) for each in found]


class Ledger:
    """A node's directory that carries out GoldenLedger's steps."""

    def __init__(self, base: Path) -> None:
        self._directory = base / "dledger-n0"
        self._votes = VoteFile(self._directory)
        self._vote = self._votes.load()
        self.log = open_log(self._directory)

    def run(self, *steps: str) -> None:
        """Carry out steps."""
        for step in steps:
            name, *words = step.split(":")
            getattr(self, f"_{name}")(*map(int, words))

    def stop(self) -> None:
        """Stop the log."""
        self.log.stop()

    def dump(self) -> list[State]:
        """Return what GoldenLedger prints for `dump`."""
        log = self.log
        state = {
            "begin": log.begin_index,
            "end": log.end_index,
            "endTerm": log.end_term,
            "written": log.written,
            "committed": log.committed_index,
            "committedPos": log.committed_position if log.committed_index >= 0 else -1,
            "term": self._vote.term,
            "vote": self._vote.voted_for,
        }
        lines = [
            {
                "index": entry.index,
                "term": entry.term,
                "pos": entry.position,
                "size": entry.size,
                "body": bytes(entry.body).hex(),
            }
            for entry in entries_of(log)
        ]
        return [{name: value for name, value in state.items() if value is not None}, *lines]

    def _lead(self, term: int) -> None:
        self._save(Vote(max(term, self._vote.term), "n0"))

    def _follow(self, term: int) -> None:
        if term > self._vote.term:
            self._save(Vote(term, None))

    def _save(self, vote: Vote) -> None:
        self._vote = vote
        self._votes.save(vote)

    def _append(self, size: int, count: int = 1) -> None:
        log, term = self.log, self._vote.term
        first = log.next_index
        log.append_bodies(term, [body_of(first + k, term, size) for k in range(count)])

    def _entry(self, index: int, position: int, size: int) -> Entry:
        term = self._vote.term
        return Entry(index, term, position, body_of(index, term, size))

    def _accept(self, size: int, position: int) -> None:
        self.log.append([self._entry(self.log.next_index, position, size)])

    def _cut(self, index: int) -> None:
        self.log.truncate_to(self.log.entry(index))

    def _replace(self, index: int, position: int, size: int) -> None:
        log, entry = self.log, self._entry(index, position, size)
        if 0 <= log.begin_index <= index <= log.end_index:
            log.truncate(index)
        try:
            log.append([entry])  # Java keeps what is before it, if it fits; our followers do not
        except MismatchError:
            log.truncate_to(entry)

    def _commit(self, index: int) -> None:
        self.log.commit(index)

    def _restart(self) -> None:
        self.log.stop()
        self._vote = self._votes.load()
        self.log = open_log(self._directory)


def stored_bytes(base: Path, written: int, end_index: int) -> tuple[bytes, bytes]:
    """Return the bytes of data and index files up to the log's end, all files joined.

    Java does not remove what it truncates.
    """
    directory = base / "dledger-n0"
    joined = []
    for name, end in (("data", written), ("index", (end_index + 1) * 32)):
        content = b""
        for path in sorted((directory / name).iterdir()):
            start = int(path.name)
            content += path.read_bytes()[: max(0, end - start)]
        joined.append(content)
    return joined[0], joined[1]
