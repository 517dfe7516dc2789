"""Votes and heartbeats, by DLedger's rules.

Java's peers depend on these rules, and they differ from the Raft paper:

1. A voter compares the logs before the terms. Reason: a node with a stale log cannot depose a
   leader. Consequence: it keeps its high term alone. Safe, as it only rejects more.
2. A higher term is answered with "not ready" and taken about 10 ms later, by Java's one election
   thread. Consequence: a candidate asks twice. Safe, as nobody votes before.
3. The first vote runs in term 0: a new node has term 0 and no vote. Consequence: there are entries
   of term 0, and an empty log has term -1. Safe.
4. A candidate asks in its current term first, as its vote may be unused. Consequence: a leader may
   win its term a second time. Safe as long as its log has lost nothing in between.
5. There is no pre-vote. Consequence: a node that returns with an equal log deposes the leader.
6. A leader needs a quorum of heartbeats in its first round, and one every 6 s. Consequence: a
   leader without a quorum stops within 6 to 8 s, and proposals time out until then.
7. A leader with a quorum ignores higher terms. Consequence: a stale node of a higher term, which
   rule 1 keeps from deposing anybody, stays out for ever.

Four rules are our own, all legal for any node:

- Against 4: a node leads only in a term in which it voted for itself since its start; if it wins
  another one, it asks in a new term. Java leads with the votes of others, and again in a term that
  it won before a restart. If a power cut has shortened the log meanwhile, the node would write
  other entries with the same index and term, and the group could not tell them apart. It must win
  the old term first: a node that is behind and takes a new term is out for ever (rule 7).
- Against 7: a leader that sees a peer of a higher term in `max_rounds_behind` rounds in succession
  becomes a candidate of that term, so that the peer can follow somebody again.
- A node whose log lost entries at a start (`must_catch_up`) takes terms and follows leaders, but
  neither asks for votes nor gives one until it has caught up: it may have been one of the quorum
  that held a committed entry. Candidates count its answer, UNKNOWN, as none.

- A follower that learns that its leader's process has ended (`leader_ended`) does not wait for the
  6 s without heartbeats: it asks in a new term, since voters that still follow the dead leader
  would answer "has a leader" in the old one. The nodes ask one after the other, `candidacy_step`
  apart, in the order of their ids, so that they do not split the votes. A heartbeat in between
  ends that. The caller does not tell if a Java node may vote: one that rejects the candidate for
  its log would keep it waiting for longer than the heartbeats.

Called by the core, on its thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pyromq.raft.member import Member, Role
from pyromq.raft.messages import (
    NONE,
    Code,
    Failed,
    HeartbeatRequest,
    HeartbeatResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)

#: Results that tell the voter's term.
_HIGHER_TERM: Final = frozenset(
    {VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER}
)


class _Next(Enum):
    """How a candidate continues after a round."""

    SAME_TERM = "same term"
    NEW_TERM = "new term"


@dataclass(slots=True)
class _Round:
    """Requests to all other nodes, and their answers so far. The own one counts at once."""

    term: int
    deadline: int
    requests: dict[int, str] = field(default_factory=dict)
    answered: int = 1
    max_term: int = NONE


@dataclass(slots=True)
class _VoteRound(_Round):
    results: dict[str, VoteResult] = field(default_factory=dict)

    def count(self, *results: VoteResult) -> int:
        return sum(result in results for result in self.results.values())

    def take(self, voter: str, response: VoteResponse) -> None:
        result = response.vote_result
        if result is not VoteResult.UNKNOWN:
            self.results[voter] = result
        if result in _HIGHER_TERM:
            self.max_term = max(self.max_term, response.term)


@dataclass(slots=True)
class _HeartbeatRound(_Round):
    succeeded: int = 1
    not_ready: int = 0
    is_inconsistent: bool = False

    def take(self, response: HeartbeatResponse) -> None:
        self.succeeded += response.code is Code.SUCCESS
        self.not_ready += response.code is Code.TERM_NOT_READY
        self.is_inconsistent |= response.code is Code.INCONSISTENT_LEADER
        if response.code is Code.EXPIRED_TERM:
            self.max_term = max(self.max_term, response.term)


class Election:
    """Elects a leader, and keeps or loses it."""

    def __init__(self, member: Member, now: int) -> None:
        self._member = member
        self._settings = member.settings
        self._votes: _VoteRound | None = None
        self._next = _Next.SAME_TERM
        self._next_vote_at = now
        self._beats: _HeartbeatRound | None = None
        self._next_beat_at = now
        self._last_good_round: int | None = None
        self._last_heartbeat = now
        #: When this follower asks for votes, because its leader has ended.
        self._candidacy_at: int | None = None
        self._rounds_behind = 0
        #: Peers that answered the last heartbeat.
        self.live: set[str] = set()
        #: The term in which this node may have led before its start.
        self._former_term = member.term if member.vote == self._settings.self_id else NONE

    def deadline(self) -> int:
        """Return when `tick` has work again."""
        member = self._member
        if member.role is Role.FOLLOWER:
            silent_at = self._last_heartbeat + self._settings.leak + 1
            return silent_at if self._candidacy_at is None else min(silent_at, self._candidacy_at)
        if member.role is Role.LEADER:
            return self._beats.deadline if self._beats else self._next_beat_at
        if member.must_raise_term:
            return 0
        return self._votes.deadline if self._votes else self._next_vote_at

    def tick(self, now: int) -> None:
        """Do everything that is due."""
        member = self._member
        if member.role is not Role.LEADER:
            self._beats = None
        if member.role is not Role.CANDIDATE:
            self._votes = None
        if member.role is not Role.FOLLOWER:
            self._candidacy_at = None
        if member.role is Role.FOLLOWER:
            self._tick_follower(now)
        if member.role is Role.CANDIDATE:
            self._tick_candidate(now)
        elif member.role is Role.LEADER:
            if self._beats and now >= self._beats.deadline:
                self._end_heartbeats(now)
            elif not self._beats and now >= self._next_beat_at:
                self._start_heartbeats(now)

    def _tick_follower(self, now: int) -> None:
        member = self._member
        silence = now - self._last_heartbeat
        if self._candidacy_at is not None and now >= self._candidacy_at:
            member.become_candidate(member.term, f"{member.leader} has ended")
            self._next, self._next_vote_at = _Next.NEW_TERM, now
        elif silence > self._settings.leak:
            member.become_candidate(member.term, f"no heartbeat for {silence} ms")
            self._next_vote_at = max(self._next_vote_at, now)

    def leader_ended(self, leader: str, now: int) -> None:
        """Ask for votes soon: the leader's process has ended."""
        member, settings = self._member, self._settings
        if member.role is Role.FOLLOWER and member.leader == leader and not member.must_catch_up:
            others = sorted(peer for peer in settings.peers if peer != leader)
            self._candidacy_at = now + others.index(settings.self_id) * settings.candidacy_step

    def _tick_candidate(self, now: int) -> None:
        member = self._member
        if member.must_raise_term:
            self._votes = None
            member.must_raise_term = False
            member.next_term()
            self._next = _Next.SAME_TERM
            self._next_vote_at = now + self._interval()
        elif self._votes:
            if now >= self._votes.deadline:
                self._end_votes(now)
        elif now >= self._next_vote_at:
            if member.must_catch_up:
                self._next_vote_at = now + self._settings.leak
                return
            if self._next is _Next.NEW_TERM:
                member.next_term()
                self._next = _Next.SAME_TERM
            self._start_votes(now)

    def _interval(self) -> int:
        settings = self._settings
        if self._member.is_taking_leadership():
            low, high = settings.min_take_leadership_interval, settings.max_take_leadership_interval
        else:
            low, high = settings.min_vote_interval, settings.max_vote_interval
        return self._member.random.randrange(low, high)

    # Votes.

    def _start_votes(self, now: int) -> None:
        member, settings = self._member, self._settings
        wait = settings.vote_wait + member.random.randrange(settings.max_vote_interval)
        self._votes = votes = _VoteRound(member.term, now + wait)
        own = self._vote_request(settings.self_id)
        votes.results[settings.self_id] = self._decide(own, is_own=True).vote_result
        for peer in member.others():
            votes.requests[member.request(peer, self._vote_request(peer))] = peer
        self._check_votes(now)

    def _vote_request(self, peer: str) -> VoteRequest:
        member = self._member
        return VoteRequest(
            group=self._settings.group,
            local_id=self._settings.self_id,
            remote_id=peer,
            leader_id=self._settings.self_id,
            term=member.term,
            ledger_end_index=member.ledger.end_index,
            ledger_end_term=member.ledger.end_term,
        )

    def vote(self, request: VoteRequest) -> VoteResponse:
        """Answer a candidate."""
        return self._decide(request, is_own=False)

    def _decide(self, request: VoteRequest, *, is_own: bool) -> VoteResponse:
        member = self._member
        term = member.term
        result = self._objection(request, is_own=is_own)
        if result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER:
            term = member.ledger.end_term
        elif result is VoteResult.ACCEPT:
            assert request.leader_id is not None
            member.vote_for(request.leader_id)
        elif result is VoteResult.REJECT_TERM_NOT_READY:
            member.become_candidate(
                request.term, f"{request.leader_id} asks for votes in term {request.term}"
            )
            member.must_raise_term = True
        return VoteResponse(term=term, vote_result=result)

    def _objection(self, request: VoteRequest, *, is_own: bool) -> VoteResult:
        """Return why a candidate gets no vote, or ACCEPT; Java's peers expect this order."""
        member = self._member
        if member.must_catch_up:
            return VoteResult.UNKNOWN
        end_index, end_term = member.ledger.end_index, member.ledger.end_term
        if not member.is_peer(request.leader_id):
            return VoteResult.REJECT_UNKNOWN_LEADER
        if not is_own and request.leader_id == self._settings.self_id:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        if request.ledger_end_term < end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == end_term and request.ledger_end_index < end_index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if request.term < member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.term > member.term:
            return VoteResult.REJECT_TERM_NOT_READY
        if member.vote not in (None, request.leader_id):
            if member.leader is not None:
                return VoteResult.REJECT_ALREADY_HAS_LEADER
            return VoteResult.REJECT_ALREADY_VOTED
        if request.term < end_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        if (
            not is_own
            and member.is_taking_leadership()
            and request.ledger_end_term == end_term
            and end_index >= request.ledger_end_index
        ):
            return VoteResult.REJECT_TAKING_LEADERSHIP
        return VoteResult.ACCEPT

    def answered(
        self, request_id: int, response: VoteResponse | HeartbeatResponse | Failed, now: int
    ) -> None:
        """Count an answer to the current round of votes or heartbeats; others are ignored."""
        role = self._member.role
        votes = self._votes if role is Role.CANDIDATE else None
        beats = self._beats if role is Role.LEADER else None
        current = votes or beats
        peer = current.requests.pop(request_id, None) if current else None
        if current is None or peer is None:
            return
        current.answered += 1
        if votes:
            if isinstance(response, VoteResponse):
                votes.take(peer, response)
            self._check_votes(now)
        elif beats:
            if isinstance(response, HeartbeatResponse):
                self.live.add(peer)
                beats.take(response)
            else:
                self.live.discard(peer)
            self._check_heartbeats(now)

    def _check_votes(self, now: int) -> None:
        votes = self._votes
        assert votes is not None
        quorum = self._settings.quorum
        if (
            votes.answered == len(self._settings.peers)
            or votes.count(VoteResult.REJECT_ALREADY_HAS_LEADER)
            or votes.count(VoteResult.ACCEPT, VoteResult.REJECT_TERM_NOT_READY) >= quorum
        ):
            self._end_votes(now)

    def _end_votes(self, now: int) -> None:
        member, settings, votes = self._member, self._settings, self._votes
        assert votes is not None
        self._votes = None
        self._next = _Next.SAME_TERM
        self._next_vote_at = now + self._interval()
        answers = len(votes.results)
        accepted = votes.count(VoteResult.ACCEPT)
        not_ready = votes.count(VoteResult.REJECT_TERM_NOT_READY)
        longer = votes.count(
            VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        )
        if votes.max_term > votes.term:
            self._next = _Next.NEW_TERM
            member.become_candidate(votes.max_term, f"a voter has term {votes.max_term}")
        elif votes.count(VoteResult.REJECT_ALREADY_HAS_LEADER):
            self._next_vote_at += settings.leak
        elif answers < settings.quorum:
            pass
        elif answers - longer < settings.quorum:
            self._next_vote_at += settings.max_vote_interval
        elif accepted >= settings.quorum:
            if self._may_lead():
                self._lead(now, accepted)
            else:
                self._next = _Next.NEW_TERM
                self._next_vote_at = now + settings.loop_interval
        elif accepted + not_ready >= settings.quorum:
            self._next_vote_at = now + settings.loop_interval
        else:
            self._next = _Next.NEW_TERM

    def _may_lead(self) -> bool:
        member, own = self._member, self._settings.self_id
        is_new_vote = member.vote == own and member.term != self._former_term
        return is_new_vote or not self._settings.new_term_after_own_vote

    def _lead(self, now: int, accepted: int) -> None:
        self._member.become_leader(f"{accepted} of {len(self._settings.peers)} nodes accepted")
        self.live.clear()
        self._rounds_behind = 0
        self._start_heartbeats(now)

    # Heartbeats.

    def heartbeat(self, request: HeartbeatRequest, now: int) -> HeartbeatResponse:
        """Answer a leader."""
        member, leader = self._member, request.leader_id
        if leader is None or not member.is_peer(leader):
            return HeartbeatResponse(code=Code.UNKNOWN_MEMBER, term=member.term)
        if leader == self._settings.self_id:
            return HeartbeatResponse(code=Code.UNEXPECTED_MEMBER, term=member.term)
        if request.term < member.term:
            return HeartbeatResponse(code=Code.EXPIRED_TERM, term=member.term)
        if request.term > member.term:
            member.become_candidate(request.term, f"{leader} leads in term {request.term}")
            member.must_raise_term = True
            return HeartbeatResponse(code=Code.TERM_NOT_READY)
        if member.leader is None:
            self._next = _Next.SAME_TERM
            member.become_follower(leader, f"{leader} leads in term {request.term}")
        elif member.leader != leader:
            return HeartbeatResponse(code=Code.INCONSISTENT_LEADER)
        self._last_heartbeat = now
        self._candidacy_at = None
        return HeartbeatResponse()

    def _start_heartbeats(self, now: int) -> None:
        member, settings = self._member, self._settings
        self._beats = beats = _HeartbeatRound(member.term, now + settings.heartbeat_interval)
        self._next_beat_at = now + settings.heartbeat_interval + 1
        for peer in member.others():
            request = HeartbeatRequest(
                group=settings.group,
                local_id=settings.self_id,
                remote_id=peer,
                leader_id=settings.self_id,
                term=member.term,
            )
            beats.requests[member.request(peer, request)] = peer
        self._check_heartbeats(now)

    def _check_heartbeats(self, now: int) -> None:
        beats = self._beats
        assert beats is not None
        if beats.answered == len(self._settings.peers):
            self._end_heartbeats(now)
        elif beats.succeeded >= self._settings.quorum:
            self._last_good_round = now  # later answers may still tell of a higher term
        elif beats.succeeded + beats.not_ready >= self._settings.quorum:
            self._end_heartbeats(now)

    def _end_heartbeats(self, now: int) -> None:
        member, settings, beats = self._member, self._settings, self._beats
        assert beats is not None
        self._beats = None
        if beats.succeeded >= settings.quorum:
            self._last_good_round = now
            self._rounds_behind = self._rounds_behind + 1 if beats.max_term > member.term else 0
            if self._rounds_behind >= settings.max_rounds_behind:
                member.become_candidate(
                    beats.max_term, f"a node of term {beats.max_term} cannot follow"
                )
                member.must_raise_term = True
        elif beats.succeeded + beats.not_ready >= settings.quorum:
            self._next_beat_at = now + settings.loop_interval
        elif beats.max_term > member.term:
            member.become_candidate(beats.max_term, f"a node has term {beats.max_term}")
        elif beats.is_inconsistent:
            member.become_candidate(member.term, "a node follows another leader of this term")
        elif self._last_good_round is None or now - self._last_good_round > settings.leak:
            member.become_candidate(
                member.term, f"{beats.succeeded} of {len(settings.peers)} nodes answer heartbeats"
            )
        if member.role is Role.CANDIDATE:
            self._next_vote_at = max(self._next_vote_at, now)
