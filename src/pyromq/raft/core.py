"""The consensus core of one node: a pure state machine, compatible with DLedger 0.3.1.2.

`step` takes a message, `tick` the time, `appended` notes new entries; each returns effects, which
the caller applies in their order. Nothing else happens: no socket, file, clock or thread.
Randomness is injected. A follower's entries are written through `Ledger` while a step runs; the
leader's by the caller, between `append_refusal` and `appended`.

The caller

- calls `tick` at `deadline()`, or later,
- makes `Persist` durable before it sends anything that follows it,
- calls `flushed` when the ledger's durable index has risen,
- reports failed requests with the body `Failed`, or not at all,
- tells which peers take runs (`set_takes_runs`), after each new connection,
- may tell that the leader's process has ended (`leader_ended`), also wrongly,
- acknowledges its entries when `committed` has reached them while this node still leads in their
  term (`Committed`; `RoleChanged` ends the wait),
- stops the node at an exception: the log contradicts the leader's, or cannot be trusted.

## Safety
1. At most one leader per term: a node votes once in a term, and its vote is durable.
2. Two logs that hold the same entry at an index are equal up to it.
3. An entry that any of our nodes reports as committed is in the log of every later leader, and at
   its index on every node that commits that index.
4. The commit index of a running node never falls.

With `flush_before_ack`, 1 to 4 also hold if nodes lose unsynced bytes. Without it, as in DLedger,
an acknowledged entry may exist in page caches only, and a power cut of one node can be one too
many: then only 1 and 2 hold. Java nodes in the group weaken 3 and 4 while they lead.

## DLedger's deviations from the Raft paper
`election` lists those of votes and heartbeats, `follower` and `dispatcher` those of replication,
`leader` those of commitment, each with its reason and our answer. `tests/raft` searches the rules
exhaustively and simulates groups under faults; results: docs/adr/2026-11-17-dledger-rules.md.

Runs on the caller's thread.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from pyromq.raft.dispatcher import Dispatcher
from pyromq.raft.election import Election
from pyromq.raft.follower import Follower
from pyromq.raft.leader import Leader
from pyromq.raft.ledger import Ledger
from pyromq.raft.member import Effect, Member, Persisted, Role, Settings
from pyromq.raft.messages import (
    Code,
    Entry,
    Envelope,
    Failed,
    HeartbeatRequest,
    HeartbeatResponse,
    PushRequest,
    PushResponse,
    Request,
    Response,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from pyromq.raft.transfer import Transfer


class Core:
    """One node of a group."""

    def __init__(
        self,
        settings: Settings,
        persisted: Persisted,
        ledger: Ledger,
        generator: random.Random,
        now: int,
    ) -> None:
        self._settings = settings
        self._member = member = Member(
            settings,
            ledger,
            generator,
            term=persisted.term,
            vote=persisted.vote,
            committed=min(persisted.committed, ledger.end_index),
            must_catch_up=persisted.must_catch_up and settings.quorum > 1,
        )
        self._election = Election(member, now)
        self._follower = Follower(member)
        self._leader = Leader(member)
        self._transfer = Transfer(member, self._leader, self._election, now)
        self._seen_changes = member.changes

    @property
    def role(self) -> Role:
        """Return the role."""
        return self._member.role

    @property
    def term(self) -> int:
        """Return the current term."""
        return self._member.term

    @property
    def leader(self) -> str | None:
        """Return the leader of the current term, if it is known."""
        return self._member.leader

    @property
    def committed(self) -> int:
        """Return the commit index."""
        return self._member.committed

    @property
    def durable_committed(self) -> int:
        """Return the commit index that may be saved for the next start.

        Beyond the durable entries a power cut can bring back others, which nobody committed.
        """
        return min(self._member.committed, self._member.ledger.durable_index)

    @property
    def counted(self) -> int:
        """Return the index that a quorum holds, as far as this leader knows."""
        return self._leader.counted

    @property
    def has_uncommitted_tail(self) -> bool:
        """Whether entries of earlier terms wait for an entry of this leader's term."""
        return self._leader.has_uncommitted_tail

    @property
    def must_catch_up(self) -> bool:
        """Whether this node has lost entries, and takes no part in elections until `CaughtUp`."""
        return self._member.must_catch_up

    @property
    def followers(self) -> Mapping[str, Dispatcher]:
        """Return the dispatchers of a leader by peer; nobody else has any."""
        return self._leader.dispatchers

    def set_takes_runs(self, peer: str, *, takes: bool) -> None:
        """Note whether a peer takes pushes with runs; none does until this says so."""
        self._leader.set_takes_runs(peer, takes=takes)

    def deadline(self) -> int:
        """Return the time at which `tick` has work again, if nothing else happens."""
        earliest = self._election.deadline()
        for part in (self._leader, self._follower, self._transfer):
            deadline = part.deadline()
            if deadline is not None and deadline < earliest:
                earliest = deadline
        return earliest

    def tick(self, now: int) -> list[Effect]:
        """Do everything that is due."""
        self._election.tick(now)
        self._settle(now)
        self._leader.tick(now)
        self._follower.tick(now)
        self._transfer.tick(now)
        return self._taken(now)

    def leader_ended(self, leader: str, now: int) -> list[Effect]:
        """Take note that the leader's process has ended: ask for votes without further waiting."""
        self._election.leader_ended(leader, now)
        return self._taken(now)

    def flushed(self, now: int) -> list[Effect]:
        """Take note that more of the ledger is durable."""
        self._follower.flushed()
        self._leader.count()
        return self._taken(now)

    def propose(self, body: bytes, now: int) -> tuple[Entry | Code, list[Effect]]:
        """Append one entry as leader; return it, or the reason why not. Raises OSError."""
        refusal = self.append_refusal()
        if refusal is not None:
            return refusal, []
        entry = self._member.ledger.append_body(self._member.term, body)
        return entry, self.appended(now)

    def append_refusal(self) -> Code | None:
        """Return why the caller may not write entries now; None if it may."""
        return self._leader.append_refusal()

    def appended(self, now: int) -> list[Effect]:
        """Push and count entries of the current term that the caller has written to the ledger."""
        self._leader.appended(now)
        return self._taken(now)

    def step(self, envelope: Envelope, now: int) -> list[Effect]:
        """Handle a request of another node, or its answer to one of ours."""
        body = envelope.body
        if isinstance(body, Request):
            self._request(envelope, body, now)
        else:
            self._response(envelope, body, now)
        return self._taken(now)

    def _request(self, envelope: Envelope, request: Request, now: int) -> None:
        sender, request_id = envelope.sender, envelope.request_id
        misrouted = self._misrouted(request)
        if misrouted is not None:
            self._member.send(sender, request_id, _refusal(request, misrouted))
        elif isinstance(request, VoteRequest):
            self._member.send(sender, request_id, self._election.vote(request))
        elif isinstance(request, HeartbeatRequest):
            self._member.send(sender, request_id, self._election.heartbeat(request, now))
        elif isinstance(request, PushRequest):
            self._follower.push(sender, request_id, request, now)
            self._transfer.tick(now)  # this may be the entry that a transferee waits for
        elif isinstance(request, TransferRequest):
            self._transfer.request(sender, request_id, request, now)

    def _misrouted(self, request: Request) -> Code | None:
        if request.remote_id != self._settings.self_id:
            return Code.UNKNOWN_MEMBER
        if request.group != self._settings.group:
            return Code.UNKNOWN_GROUP
        return None

    def _response(self, envelope: Envelope, response: Response | Failed, now: int) -> None:
        sender, request_id = envelope.sender, envelope.request_id
        if isinstance(response, PushResponse):
            self._leader.pushed(sender, request_id, response, now)
        elif isinstance(response, VoteResponse | HeartbeatResponse):
            self._election.answered(request_id, response, now)
        elif isinstance(response, TransferResponse):
            self._transfer.answered(request_id, response)
        elif isinstance(response, Failed):  # of any kind: the id tells
            self._leader.pushed(sender, request_id, response, now)
            self._election.answered(request_id, response, now)
            self._transfer.answered(request_id, response)

    def _settle(self, now: int) -> None:
        """Let the parts follow a change of role."""
        if self._seen_changes != self._member.changes:
            self._seen_changes = self._member.changes
            self._leader.refresh(now)
            self._transfer.check()
            self._leader.tick(now)

    def _taken(self, now: int) -> list[Effect]:
        self._settle(now)
        effects, self._member.effects = self._member.effects, []
        return effects


def _refusal(request: Request, code: Code) -> Response:
    if isinstance(request, VoteRequest):
        return VoteResponse(term=request.term, code=code)
    if isinstance(request, HeartbeatRequest):
        return HeartbeatResponse(term=request.term, code=code)
    if isinstance(request, PushRequest):
        return PushResponse(term=request.term, code=code)
    return TransferResponse(term=request.term, code=code)
