"""Hands leadership to another node, on request or to a preferred leader.

The leader refuses proposals and orders the transferee, which waits up to a second until it has
the leader's last entry, becomes a candidate of the next term, and answers once it has won (200) or
lost (418). The other nodes vote as ever; a transferee that is a preferred leader asks sooner, and
gives its own vote to nobody else.

A leader that is not in its list of preferred leaders checks once a second whether one of them is
alive and less than `max_transfer_lag` entries behind.

Called by the core, on its thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.raft.election import Election
from pyromq.raft.leader import Leader
from pyromq.raft.member import Member, Role
from pyromq.raft.messages import NONE, Code, Failed, TransferRequest, TransferResponse


@dataclass(slots=True)
class _Order:
    """The leader's order to a transferee; `client` asked for it, unless it was this node."""

    request_id: int
    deadline: int
    change: int
    client: tuple[str, int] | None


@dataclass(slots=True)
class _Task:
    """What a transferee was ordered to do."""

    sender: str
    request_id: int
    request: TransferRequest
    deadline: int
    is_started: bool = False


class Transfer:
    """Both ends of a transfer."""

    def __init__(self, member: Member, leader: Leader, election: Election, now: int) -> None:
        self._member = member
        self._settings = member.settings
        self._leader = leader
        self._election = election
        self._order: _Order | None = None
        self._task: _Task | None = None
        self._next_check = now + self._settings.preferred_leader_interval

    def deadline(self) -> int | None:
        """Return when `tick` has work."""
        deadlines = list[int]()
        if self._order:
            deadlines.append(self._order.deadline)
        if self._task and not self._task.is_started:
            deadlines.append(self._task.deadline)
        if self._prefers_another():
            deadlines.append(self._next_check)
        return min(deadlines, default=None)

    def _prefers_another(self) -> bool:
        preferred = self._settings.preferred_leaders
        return (
            self._member.role is Role.LEADER
            and bool(preferred)
            and self._settings.self_id not in preferred
        )

    def request(self, sender: str, request_id: int, request: TransferRequest, now: int) -> None:
        """Handle an order; the answer may follow later."""
        if request.transfer_id == self._settings.self_id:
            code = self._refusal(request)
            if code is None:
                self._start(request.transferee_id, (sender, request_id), now)
            else:
                self._answer(sender, request_id, code)
        elif request.transferee_id != self._settings.self_id:
            self._answer(sender, request_id, Code.UNEXPECTED_ARGUMENT)
        elif request.transfer_id != self._member.leader:
            self._answer(sender, request_id, Code.INCONSISTENT_LEADER)
        elif self._member.must_catch_up:
            self._answer(sender, request_id, Code.TAKE_LEADERSHIP_FAILED)
        else:
            deadline = now + self._settings.transfer_wait
            self._task = _Task(sender, request_id, request, deadline)
            self.tick(now)

    def _refusal(self, request: TransferRequest) -> Code | None:
        member, transferee = self._member, request.transferee_id
        if not member.is_peer(transferee) or transferee == self._settings.self_id:
            return Code.UNKNOWN_MEMBER
        if request.term != member.term:
            return Code.INCONSISTENT_TERM
        if member.role is not Role.LEADER:
            return Code.NOT_LEADER
        if member.transferee is not None:
            return Code.LEADER_TRANSFERRING
        if self._lag(transferee) >= self._settings.max_transfer_lag:
            return Code.FALL_BEHIND_TOO_MUCH
        return None

    def _lag(self, peer: str) -> int:
        return self._member.ledger.end_index - self._leader.watermark(peer)

    def _start(self, transferee: str, client: tuple[str, int] | None, now: int) -> None:
        member, settings = self._member, self._settings
        member.transferee = transferee
        request = TransferRequest(
            group=settings.group,
            local_id=settings.self_id,
            remote_id=transferee,
            leader_id=settings.self_id,
            term=member.term,
            transfer_id=settings.self_id,
            transferee_id=transferee,
            take_leadership_ledger_index=member.ledger.end_index,
        )
        self._order = _Order(
            member.request(transferee, request),
            now + settings.transfer_timeout,
            member.changes,
            client,
        )

    def answered(self, request_id: int, response: TransferResponse | Failed) -> None:
        """Handle the transferee's answer."""
        if self._order and self._order.request_id == request_id:
            failed = isinstance(response, Failed)
            self._end_order(Code.UNKNOWN if failed else response.code)  # type: ignore[union-attr]

    def _end_order(self, code: Code) -> None:
        order, self._order = self._order, None
        assert order is not None
        if self._member.changes == order.change:
            self._member.transferee = None
        if order.client:
            self._answer(*order.client, code)

    def tick(self, now: int) -> None:
        """Give up what takes too long, start what can start, look for a preferred leader."""
        if self._order and now >= self._order.deadline:
            self._end_order(Code.UNKNOWN)
        if self._task and not self._task.is_started:
            self._try_task(self._task, now)
        if self._prefers_another() and now >= self._next_check:
            self._next_check = now + self._settings.preferred_leader_interval
            if self._member.transferee is None:
                self._transfer_to_preferred(now)

    def _try_task(self, task: _Task, now: int) -> None:
        member, request = self._member, task.request
        if member.ledger.end_index < request.take_leadership_ledger_index:
            if now >= task.deadline:
                self._end_task(Code.TAKE_LEADERSHIP_FAILED)
        elif member.term != request.term or member.role is not Role.FOLLOWER:
            self._end_task(Code.INCONSISTENT_TERM)
        else:
            task.is_started = True
            member.term_to_take = request.term + 1
            member.become_candidate(
                request.term + 1, f"{request.transfer_id} hands leadership over"
            )
            member.must_raise_term = True

    def check(self) -> None:
        """Answer the order once this node has won or lost; called after a change of role."""
        member, task = self._member, self._task
        if not task or not task.is_started:
            return
        if max(member.term, member.known_max_term) > member.term_to_take:
            self._end_task(Code.EXPIRED_TERM)
        elif member.role is Role.LEADER and member.term == member.term_to_take:
            self._end_task(Code.SUCCESS)
        elif member.role is not Role.CANDIDATE:
            self._end_task(Code.TAKE_LEADERSHIP_FAILED)

    def _end_task(self, code: Code) -> None:
        task, self._task = self._task, None
        assert task is not None
        self._member.term_to_take = NONE
        self._answer(task.sender, task.request_id, code)

    def _answer(self, recipient: str, request_id: int, code: Code) -> None:
        response = TransferResponse(term=self._member.term, code=code)
        self._member.send(recipient, request_id, response)

    def _transfer_to_preferred(self, now: int) -> None:
        candidates = [
            peer for peer in self._settings.preferred_leaders if peer in self._election.live
        ]
        best = min(candidates, key=self._lag, default=None)
        if best is not None and self._lag(best) < self._settings.max_transfer_lag:
            self._start(best, None, now)
