"""The leader's part: proposals, watermarks and the commit index.

DLedger commits an entry when a quorum holds it ("counting"), also if it is of an earlier term, and
appends no entry of its own at the start of a term. That can uncommit an entry (figure 8 of the Raft
paper; trace and proof in docs/adr/2026-11-17-dledger-rules.md), so this leader counts differently:

- `counted` is Java's index. `LeaderReady` waits until it reaches the end, because the broker must
  know that a quorum has the old entries before it takes new ones. It promises nothing else.
- `committed` rises to `counted` if that entry is of the own term or of the term just before:
  nobody can hold an entry of a term in between. Entries that all nodes hold are committed as well.
  Other entries of earlier terms wait for the first own entry behind them.

Followers get `committed`. A Java follower cannot tell the difference: it sees a leader whose commit
index is late. If old entries must be served although nobody proposes anything, the caller proposes
an entry (`has_uncommitted_tail`).

The caller writes its entries to the ledger itself, many at a time (`append_refusal`, `appended`).

Called by the core, on its thread.
"""

from __future__ import annotations

from pyromq.raft.dispatcher import Dispatcher
from pyromq.raft.member import CommitRule, LeaderReady, Member, Role
from pyromq.raft.messages import NONE, Code, Failed, PushResponse


class Leader:
    """Feeds the followers while this node leads."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._settings = member.settings
        self.dispatchers: dict[str, Dispatcher] = {}
        self.counted = NONE
        self._is_ready = False
        self._change = NONE
        #: Peers that take runs, also while this node does not lead.
        self._run_takers: set[str] = set()
        #: Entries from here on may be committed by counting: terms never fall in a log.
        self._countable_from: int | None = None

    def refresh(self, now: int) -> None:
        """Start or stop leading, after a change of role."""
        member = self._member
        if member.changes == self._change:
            return
        self._change = member.changes
        self.counted = NONE
        self._is_ready = False
        self._countable_from = None
        self.dispatchers = {}
        if member.role is Role.LEADER:
            for peer in member.others():
                takes_runs = peer in self._run_takers
                self.dispatchers[peer] = Dispatcher(member, peer, now, takes_runs=takes_runs)

    def set_takes_runs(self, peer: str, *, takes: bool) -> None:
        """Note whether a peer takes runs."""
        if takes:
            self._run_takers.add(peer)
        else:
            self._run_takers.discard(peer)
        if dispatcher := self.dispatchers.get(peer):
            dispatcher.set_takes_runs(takes=takes)

    def deadline(self) -> int | None:
        """Return when a dispatcher has work."""
        deadlines = [each.deadline() for each in self.dispatchers.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: int) -> None:
        """Send what can be sent, and count."""
        for dispatcher in self.dispatchers.values():
            dispatcher.pump(now)
        self.count()

    def append_refusal(self) -> Code | None:
        """Return why no entry may be written now."""
        member = self._member
        if member.role is not Role.LEADER:
            return Code.NOT_LEADER
        if member.transferee is not None:
            return Code.LEADER_TRANSFERRING
        # Old entries that wait for this one must not keep it out.
        settled = max(member.committed, self.counted)
        if member.ledger.end_index - settled > self._settings.max_pending_proposals:
            return Code.LEADER_PENDING_FULL
        return None

    def appended(self, now: int) -> None:
        """Push and count entries of this term that were written to the ledger."""
        member = self._member
        assert member.role is Role.LEADER, member.role
        assert member.ledger.end_term == member.term, (member.ledger.end_term, member.term)
        self.tick(now)

    def pushed(self, peer: str, request_id: int, response: PushResponse | Failed, now: int) -> None:
        """Hand a follower's answer to its dispatcher."""
        if dispatcher := self.dispatchers.get(peer):
            dispatcher.answered(request_id, response, now)
            self.count()

    def watermark(self, peer: str) -> int:
        """Return the last entry that a node is known to hold in this term."""
        if peer == self._settings.self_id:
            ledger = self._member.ledger
            return ledger.durable_index if self._settings.flush_before_ack else ledger.end_index
        return self.dispatchers[peer].watermark

    def count(self) -> None:
        """Raise `counted` and the commit index as far as the watermarks allow."""
        member = self._member
        if member.role is not Role.LEADER or self._change != member.changes:
            return
        marks = sorted((self.watermark(peer) for peer in self._settings.peers), reverse=True)
        self.counted = max(self.counted, marks[len(marks) // 2])
        if not self._is_ready and self.counted == member.ledger.end_index:
            self._is_ready = True
            member.effects.append(LeaderReady(member.term))
        if self.counted > member.committed:
            member.commit(
                self.counted if self._may_commit(self.counted) else self._held_by_all(marks)
            )

    def _may_commit(self, index: int) -> bool:
        rule = self._settings.commit_rule
        if rule is CommitRule.COUNTING:
            return True
        if self._countable_from is not None and index >= self._countable_from:
            return True
        term = self._member.ledger.term_of(index)
        least = self._member.term if rule is CommitRule.OWN_TERM else self._member.term - 1
        if term is None or term < least:
            return False
        self._countable_from = index
        return True

    def _held_by_all(self, marks: list[int]) -> int:
        return marks[-1] if self._settings.commit_rule is CommitRule.NO_TERM_BETWEEN else NONE

    @property
    def has_uncommitted_tail(self) -> bool:
        """Whether a quorum holds entries that only an entry of this term can commit."""
        return self._member.role is Role.LEADER and self.counted > self._member.committed
