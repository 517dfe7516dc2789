"""Settings and state of one node, its roles, and the effects of a step.

Roles change only here: `become_candidate`, `become_leader`, `become_follower`. As in DLedger, a
node that hears of a higher term becomes a candidate at once, but its own term follows at its next
tick (`next_term`), and only then can it vote. The term never falls, and `Persist` precedes every
message that depends on it.

Effects are in the order in which the caller must apply them. The parts of the core share one
`Member`; all of them run on the caller's thread.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pyromq.base.sizes import KIB, MIB
from pyromq.raft.ledger import Ledger
from pyromq.raft.messages import NONE, Body, Envelope

_REQUEST_IDS: Final = 1 << 30


class Role(Enum):
    """What a node is in its group."""

    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"


class CommitRule(Enum):
    """When a leader calls an entry committed that a quorum holds."""

    #: DLedger: always. Unsafe for entries of earlier terms.
    COUNTING = "counting"
    #: The Raft paper: if the entry, or one behind it, is of the leader's own term.
    OWN_TERM = "own term"
    #: As the paper, or if no term lies between the entry's and the leader's, or all nodes hold it.
    NO_TERM_BETWEEN = "no term between"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a node; times in milliseconds. Defaults are DLedger's."""

    group: str
    self_id: str
    #: All nodes, this one too.
    peers: tuple[str, ...]
    preferred_leaders: tuple[str, ...] = ()
    heartbeat_interval: int = 2000
    max_heartbeat_leak: int = 3
    min_vote_interval: int = 300
    max_vote_interval: int = 1000
    min_take_leadership_interval: int = 30
    max_take_leadership_interval: int = 100
    vote_wait: int = 2000
    #: Between the candidacies of nodes whose leader has ended; an election takes about 30 ms.
    candidacy_step: int = 150
    #: What "at once" means to Java's election thread.
    loop_interval: int = 10
    push_timeout: int = 1000
    compare_timeout: int = 3000
    retry_delay: int = 500
    commit_interval: int = 1000
    gap_timeout: int = 1000
    max_pushes_in_flight: int = 1000
    max_waiting_pushes: int = 10000
    batch_push: bool = False
    max_batch_bytes: int = 4096
    max_pending_proposals: int = 10000
    max_transfer_lag: int = 1000
    transfer_wait: int = 1000
    transfer_timeout: int = 3000
    preferred_leader_interval: int = 1000
    #: Bytes of one push to a peer that takes runs.
    max_run_bytes: int = 512 * KIB
    #: Further runs to a peer wait until they are full, so that a busy leader sends fewer.
    max_runs_in_flight: int = 4
    #: Bytes of pushes to one peer without an answer; one push may exceed it.
    max_bytes_in_flight: int = 64 * MIB
    #: Bytes of pushes that wait for a gap before them.
    max_waiting_bytes: int = 64 * MIB
    #: Acknowledge an entry only when it survives a power cut (`dLegerFlushBeforeAck`).
    flush_before_ack: bool = False
    commit_rule: CommitRule = CommitRule.NO_TERM_BETWEEN
    #: Java's followers answer some pushes without a look at the term; ours never do.
    check_term_of_pushes: bool = True
    #: Java's leaders count an equal entry found by COMPARE; ours send TRUNCATE first.
    truncate_after_compare: bool = True
    #: Java leads again in a term in which it voted for itself before a restart, and in one in which
    #: it voted for another; ours do neither.
    new_term_after_own_vote: bool = True
    #: Rounds with a peer of a higher term that a leader with a quorum ignores.
    max_rounds_behind: int = 3

    @property
    def quorum(self) -> int:
        """Number of nodes that decide."""
        return len(self.peers) // 2 + 1

    @property
    def leak(self) -> int:
        """Time without heartbeats after which a leader, or its follower, gives up."""
        return self.heartbeat_interval * self.max_heartbeat_leak


@dataclass(frozen=True, slots=True)
class Persisted:
    """State that survives a restart beside the log."""

    term: int = 0
    vote: str | None = None
    committed: int = NONE
    #: The log lost entries that this node had acknowledged (`RaftLog.must_catch_up`). The node
    #: neither votes nor asks for votes until `CaughtUp`, after which the caller resets it. A node
    #: alone in its group ignores it.
    must_catch_up: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; after everything before it in the list is done."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Persist:
    """Make term and vote durable before the next message leaves."""

    term: int
    vote: str | None


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role, term or leader changed."""

    role: Role
    term: int
    leader: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderReady:
    """A quorum holds everything that the leader's log had: the broker may become master."""

    term: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit index rose: entries up to it may be served, own proposals acknowledged."""

    index: int


@dataclass(frozen=True, slots=True)
class CommittedLost:
    """A leader removed committed entries behind `index`, which our own leaders never do.

    A Java leader that committed entries of an earlier term by counting can cause it. Everything
    built from these entries must be rebuilt.
    """

    index: int
    committed: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The log holds again what it had lost: `must_catch_up` is over and may be forgotten."""


@dataclass(frozen=True, slots=True)
class LedgerFailed:
    """The disk refused a read or a write, which is retried later; reported once per series."""

    error: OSError


@dataclass(frozen=True, slots=True)
class LedgerWorks:
    """What `LedgerFailed` reported is over."""


Effect = (
    Send
    | Persist
    | RoleChanged
    | LeaderReady
    | Committed
    | CommittedLost
    | CaughtUp
    | LedgerFailed
    | LedgerWorks
)


@dataclass(slots=True)
class Member:
    """The state that the parts of a core share."""

    settings: Settings
    ledger: Ledger
    random: random.Random
    term: int
    vote: str | None
    committed: int
    must_catch_up: bool = False
    role: Role = Role.CANDIDATE
    leader: str | None = None
    known_max_term: int = NONE
    #: A higher term was heard of: take it at the next tick.
    must_raise_term: bool = False
    #: Term in which this node tries to take leadership over, or -1.
    term_to_take: int = NONE
    #: Node that this leader hands over to.
    transferee: str | None = None
    #: Counts changes of role: pending work of an earlier role is void.
    changes: int = 0
    effects: list[Effect] = field(default_factory=list)
    _last_request_id: int = 0

    def __post_init__(self) -> None:
        self._last_request_id = self.random.randrange(_REQUEST_IDS)

    def request(self, recipient: str, body: Body) -> int:
        """Send a request; return the id that its response carries."""
        self._last_request_id += 1
        self.send(recipient, self._last_request_id, body)
        return self._last_request_id

    def send(self, recipient: str, request_id: int, body: Body) -> None:
        """Add a message to the effects."""
        self.effects.append(
            Send(Envelope(self.settings.self_id, recipient, request_id, body)),
        )

    def is_peer(self, node: str | None) -> bool:
        """Whether a node belongs to the group."""
        return node in self.settings.peers

    def others(self) -> list[str]:
        """Return all nodes but this one."""
        return [peer for peer in self.settings.peers if peer != self.settings.self_id]

    def become_candidate(self, term: int, reason: str) -> None:
        """Give up any leader; a higher term is taken by `next_term`."""
        if term < self.term:
            return
        self.known_max_term = max(self.known_max_term, term)
        self._change(Role.CANDIDATE, None, reason)

    def become_leader(self, reason: str) -> None:
        """Lead in the current term."""
        self._change(Role.LEADER, self.settings.self_id, reason)

    def become_follower(self, leader: str, reason: str) -> None:
        """Follow a leader of the current term."""
        self._change(Role.FOLLOWER, leader, reason)

    def _change(self, role: Role, leader: str | None, reason: str) -> None:
        self.transferee = None
        self.changes += 1
        self.role, self.leader = role, leader
        self.effects.append(RoleChanged(role, self.term, leader, reason))

    def next_term(self) -> None:
        """Take the highest known term, or else the next one, without a vote."""
        assert self.role is Role.CANDIDATE
        self.term = max(self.known_max_term, self.term + 1)
        self.vote = None
        self.effects.append(Persist(self.term, None))

    def vote_for(self, candidate: str) -> None:
        """Give this term's only vote."""
        assert self.vote in (None, candidate)
        if self.vote is None:
            self.vote = candidate
            self.effects.append(Persist(self.term, candidate))

    def commit(self, index: int) -> None:
        """Raise the commit index, up to the end of the log."""
        index = min(index, self.ledger.end_index)
        if index > self.committed and index >= self.ledger.begin_index:
            self.committed = index
            self.effects.append(Committed(index))

    def is_taking_leadership(self) -> bool:
        """Whether this preferred leader was ordered to win the current term."""
        return (
            self.term_to_take == self.term
            and self.settings.self_id in self.settings.preferred_leaders
        )


@dataclass(slots=True)
class Trouble:
    """A series of failures of the ledger, of which the first and the end are reported."""

    member: Member
    is_on: bool = False

    def failed(self, error: OSError) -> None:
        """Report a failure, unless the one before failed as well."""
        if not self.is_on:
            self.is_on = True
            self.member.effects.append(LedgerFailed(error))

    def over(self) -> None:
        """Report that the ledger works, if it had failed."""
        if self.is_on:
            self.is_on = False
            self.member.effects.append(LedgerWorks())
