"""Pushes from the leader: COMPARE, TRUNCATE, APPEND and COMMIT.

An APPEND has no index and term of the entry before it, as the Raft paper demands. Instead, a
leader compares the logs once in its term, and truncates the follower's; after that, the
follower's log is a prefix of the leader's ("in step"), and APPEND only checks the next index and
position. APPENDs beyond a gap wait until it is filled, and fail after 1 to 2 s.

Java's follower answers COMPARE, an APPEND of an entry that it has, and COMMIT without a look at the
term or the leader, and a leader of another term counts these answers. That loses acknowledged
entries (docs/adr/2026-11-17-dledger-rules.md has the traces). Our rules are stricter, with codes
that make a Java leader compare again:

- Every push must be of the current term and from the current leader.
- APPEND and COMMIT need a log in step: a COMPARE that matched the end, or a TRUNCATE, in this
  term, or a last entry of the leader's term. A restarted follower answers 406 to
  COMMIT until then: our leaders compare at once, Java's at the next APPEND.
- A TRUNCATE at an entry that a log in step holds, or held, cuts nothing: it is a late copy.
- A TRUNCATE beyond the end, which restarts the whole log, needs a COMPARE before it.

With `flush_before_ack`, success is answered once the entries survive a power cut; an answer that
still waits is dropped when the role or the log changes.

Called by the core, on its thread.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.raft.member import CommittedLost, Member, Role
from pyromq.raft.messages import NONE, Code, PushRequest, PushResponse, PushType


class _Waiting(NamedTuple):
    sender: str
    request_id: int
    request: PushRequest
    since: int


class _Held(NamedTuple):
    sender: str
    request_id: int
    response: PushResponse
    durable_index: int
    changes: int


class Follower:
    """Writes what the leader pushes."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._settings = member.settings
        self._waiting: dict[int, _Waiting] = {}
        self._held: list[_Held] = []
        #: Terms in which the log was found in step, and compared. Only one leader writes in a term,
        #: so both outlast a time as candidate of the same term.
        self._in_step = NONE
        self._compared = NONE

    def deadline(self) -> int | None:
        """Return when the oldest APPEND beyond a gap fails."""
        if not self._waiting:
            return None
        return min(each.since for each in self._waiting.values()) + self._settings.gap_timeout

    def tick(self, now: int) -> None:
        """Fail what waits for too long; send what is durable."""
        if self._waiting:
            late = [
                index
                for index, each in self._waiting.items()
                if now >= each.since + self._settings.gap_timeout
            ]
            if late:
                # One failure makes the leader compare, which drops the others.
                first = self._waiting[min(late)]
                self._waiting.clear()
                self._answer(first, Code.INCONSISTENT_STATE)
        self.flushed()

    def flushed(self) -> None:
        """Send the answers whose entries have become durable."""
        if not self._held:
            return
        held, self._held = self._held, []
        for each in held:
            if each.changes != self._member.changes:
                continue
            if each.durable_index <= self._member.ledger.durable_index:
                self._member.send(each.sender, each.request_id, each.response)
            else:
                self._held.append(each)

    def push(self, sender: str, request_id: int, request: PushRequest, now: int) -> None:
        """Handle a push; the answer may follow later."""
        push = _Waiting(sender, request_id, request, now)
        if self._member.role is not Role.FOLLOWER:
            self._waiting.clear()
            self._answer(push, Code.NOT_FOLLOWER)
        elif not _is_well_formed(request):
            self._answer(push, Code.UNEXPECTED_ARGUMENT)
        elif request.type is PushType.COMPARE:
            self._compare(push)
        elif request.type is PushType.TRUNCATE:
            self._truncate(push)
        elif request.type is PushType.COMMIT:
            self._commit(push)
        else:
            self._append(push)

    def _is_current(self, request: PushRequest) -> bool:
        member = self._member
        return request.term == member.term and request.leader_id == member.leader

    def _is_in_step(self) -> bool:
        return self._in_step == self._member.term

    def _is_prefix(self) -> bool:
        """Whether the log is a prefix of the leader's: nobody else writes entries of its term."""
        return self._is_in_step() or self._member.ledger.end_term == self._member.term

    def _compare(self, push: _Waiting) -> None:
        self._waiting.clear()
        request, ledger = push.request, self._member.ledger
        if self._settings.check_term_of_pushes and not self._is_current(request):
            self._answer(push, Code.INCONSISTENT_TERM)
            return
        (entry,) = request.entries
        self._compared = self._member.term
        if ledger.entry(entry.index) == entry:
            if entry.index == ledger.end_index and self._is_current(request):
                self._in_step = self._member.term
            self._succeed(push, entry.index)
        else:
            if entry.index <= ledger.end_index:
                self._in_step = NONE
            self._answer(push, Code.INCONSISTENT_STATE)

    def _truncate(self, push: _Waiting) -> None:
        self._waiting.clear()
        member, request, ledger = self._member, push.request, self._member.ledger
        (entry,) = request.entries
        is_held = ledger.entry(entry.index) == entry
        if not self._is_current(request) or not self._may_truncate(entry.index):
            self._answer(push, Code.INCONSISTENT_STATE)
            return
        kept = entry.index if is_held else entry.index - 1
        if not is_held or not (self._is_in_step() and self._settings.check_term_of_pushes):
            self._held.clear()
            if is_held:
                ledger.truncate_after(entry.index)
            elif not ledger.restart_with(entry):
                self._answer(push, Code.INCONSISTENT_STATE)
                return
            if kept < member.committed:
                member.effects.append(CommittedLost(kept, member.committed))
                member.committed = kept
        self._in_step = member.term
        self._succeed(push, entry.index)
        member.commit(request.commit_index)

    def _may_truncate(self, index: int) -> bool:
        """Whether the leader can mean its current log: before the begin and beyond the end, too."""
        ledger = self._member.ledger
        if not self._settings.check_term_of_pushes:
            return True
        if index < ledger.begin_index and self._is_in_step():
            return False
        return index <= ledger.end_index + 1 or self._compared == self._member.term

    def _append(self, push: _Waiting) -> None:
        end, request = self._member.ledger.end_index, push.request
        if request.last_index <= end and not self._settings.check_term_of_pushes:
            self._append_held(push)
        elif not self._is_current(request) or not self._is_prefix():
            self._answer(push, Code.INCONSISTENT_STATE)
        elif request.first_index > end + 1:
            self._wait(push)
        else:
            self._write(push)
            while self._waiting:
                following = self._waiting.pop(self._member.ledger.end_index + 1, None)
                if following is None:
                    break
                self._write(following)

    def _append_held(self, push: _Waiting) -> None:
        ledger = self._member.ledger
        if all(ledger.entry(entry.index) == entry for entry in push.request.entries):
            self._succeed(push, push.request.last_index)
        else:
            self._answer(push, Code.INCONSISTENT_STATE)

    def _wait(self, push: _Waiting) -> None:
        if push.request.first_index in self._waiting:
            self._answer(push, Code.REPEATED_PUSH)
        elif len(self._waiting) >= self._settings.max_waiting_pushes:
            self._answer(push, Code.PUSH_REQUEST_IS_FULL)
        else:
            self._waiting[push.request.first_index] = push

    def _write(self, push: _Waiting) -> None:
        member, ledger = self._member, self._member.ledger
        for entry in push.request.entries:
            if entry.index <= ledger.end_index:
                is_written = ledger.entry(entry.index) == entry
            else:
                is_written = ledger.append(entry)
            if not is_written:
                self._in_step = NONE
                self._answer(push, Code.INCONSISTENT_STATE)
                return
        self._in_step = member.term
        self._succeed(push, push.request.last_index)
        member.commit(push.request.commit_index)

    def _commit(self, push: _Waiting) -> None:
        request = push.request
        if self._settings.check_term_of_pushes:
            may_commit = self._is_current(request) and self._is_prefix()
        else:
            may_commit = request.term >= self._member.term
        if may_commit:
            self._member.commit(request.commit_index)
        self._answer(push, Code.SUCCESS if may_commit else Code.INCONSISTENT_STATE)

    def _succeed(self, push: _Waiting, index: int) -> None:
        """Acknowledge that the log holds the leader's entries up to `index`."""
        member = self._member
        if self._settings.flush_before_ack and index > member.ledger.durable_index:
            response = self._response(push.request, Code.SUCCESS)
            self._held.append(
                _Held(push.sender, push.request_id, response, index, member.changes),
            )
        else:
            self._answer(push, Code.SUCCESS)

    def _answer(self, push: _Waiting, code: Code) -> None:
        self._member.send(push.sender, push.request_id, self._response(push.request, code))

    def _response(self, request: PushRequest, code: Code) -> PushResponse:
        ledger = self._member.ledger
        return PushResponse(
            code=code,
            term=request.term,
            index=request.first_index,
            count=len(request.entries),
            begin_index=ledger.begin_index,
            end_index=ledger.end_index,
        )


def _is_well_formed(request: PushRequest) -> bool:
    """Whether the entries fit the type, and follow each other."""
    entries = request.entries
    if request.type is PushType.COMMIT:
        return not entries
    if request.type is not PushType.APPEND:
        return len(entries) == 1 and entries[0].index >= 0
    return bool(entries) and all(
        entry.index == entries[0].index + count and 0 <= entry.term <= request.term
        for count, entry in enumerate(entries)
    )
