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
- A TRUNCATE with an entry that this log does not hold restarts the log with it: it is the leader's
  first one, as no other was equal. Java keeps what precedes it if the positions fit; nobody has
  compared that.

A push that the disk refuses is answered with DISK_FULL or DISK_ERROR: the leader tries again later,
and the node lives on. A log that contradicts a leader in committed entries raises, and ends the
node.

A node that lost entries at a start (`must_catch_up`) demands a COMPARE of the current leader first,
which begins with the leader's last entry. Entries that this node acknowledged before its start, and
which were committed, are in that leader's log: it was elected without this node's vote, or pushed
them itself. Once the log is in step and has reached that last entry, the node has them all again
(`CaughtUp`). Requests die with their connection, so a COMPARE from the middle of an exchange with
the process before the start does not pass for a first one.

With `flush_before_ack`, success is answered once the entries survive a power cut; an answer that
still waits is dropped when the role or the log changes.

Called by the core, on its thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, NamedTuple

from pyromq.raft.member import CaughtUp, CommittedLost, Member, Role, Trouble
from pyromq.raft.messages import NONE, Code, Entry, PushRequest, PushResponse, PushType

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


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
        self._trouble = Trouble(member)
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._held: list[_Held] = []
        #: Terms in which the log was found in step, and compared. Only one leader writes in a term,
        #: so both outlast a time as candidate of the same term.
        self._in_step = NONE
        self._compared = NONE
        #: Last entry of the leader that compared, for a node that must catch up.
        self._leader_end = NONE

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
                self._drop_waiting()
                self._answer(first, Code.INCONSISTENT_STATE)
        self.flushed()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def flushed(self) -> None:
        """Send the answers whose entries have become durable."""
        if self._member.must_catch_up:
            self._check_caught_up()
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
            self._drop_waiting()
            self._answer(push, Code.NOT_FOLLOWER)
        elif not _is_well_formed(request):
            self._answer(push, Code.UNEXPECTED_ARGUMENT)
        elif request.type is PushType.APPEND:
            self._append(push)
        elif request.type is PushType.COMMIT:
            self._commit(push)
        else:
            self._drop_waiting()
            self._safely(
                push, self._compare if request.type is PushType.COMPARE else self._truncate
            )
        if self._member.must_catch_up:
            self._check_caught_up()

    def _safely(self, push: _Waiting, handle: Callable[[_Waiting], None]) -> None:
        """Handle a push; answer with a code of its own if the disk fails."""
        try:
            handle(push)
        except OSError as error:
            self._trouble.failed(error)
            is_full = error.errno in _FULL
            self._answer(push, Code.DISK_FULL if is_full else Code.DISK_ERROR)

    def _is_current(self, request: PushRequest) -> bool:
        member = self._member
        return request.term == member.term and request.leader_id == member.leader

    def _is_in_step(self) -> bool:
        return self._in_step == self._member.term

    def _is_prefix(self) -> bool:
        """Whether the log is a prefix of the leader's: nobody else writes entries of its term."""
        if self._member.must_catch_up and self._compared != self._member.term:
            return False
        return self._is_in_step() or self._member.ledger.end_term == self._member.term

    def _check_caught_up(self) -> None:
        """End the time without votes once everything that was lost is there again."""
        member, ledger = self._member, self._member.ledger
        held = ledger.durable_index if self._settings.flush_before_ack else ledger.end_index
        is_compared = self._compared == member.term and self._is_in_step()
        if is_compared and held >= self._leader_end:
            member.must_catch_up = False
            member.effects.append(CaughtUp())

    def _compare(self, push: _Waiting) -> None:
        request, ledger = push.request, self._member.ledger
        if self._settings.check_term_of_pushes and not self._is_current(request):
            self._answer(push, Code.INCONSISTENT_TERM)
            return
        (entry,) = request.entries
        if self._member.must_catch_up:
            known = self._leader_end if self._compared == self._member.term else NONE
            self._leader_end = max(known, entry.index)
        self._compared = self._member.term
        if ledger.entry(entry.index) == entry:
            if entry.index == ledger.end_index and self._is_current(request):
                self._in_step = self._member.term
            self._succeed(push, entry.index)
        else:
            if entry.index <= ledger.end_index:
                self._contradict(entry.index)
            self._answer(push, Code.INCONSISTENT_STATE)

    def _contradict(self, index: int) -> None:
        """Take note of an entry that differs; one before the begin has expired, and proves nothing.

        Else a late copy of it would let a late TRUNCATE pass, which empties the log.
        """
        if index >= self._member.ledger.begin_index:
            self._in_step = NONE

    def _truncate(self, push: _Waiting) -> None:
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
        is_strict = self._settings.check_term_of_pushes or request.run is not None
        if request.last_index <= end and not is_strict:
            self._append_held(push)
        elif not self._is_current(request) or not self._is_prefix():
            self._answer(push, Code.INCONSISTENT_STATE)
        elif request.first_index > end + 1:
            self._wait(push)
        else:
            self._safely(push, self._write)
            while self._waiting and (following := self._next_waiting()):
                self._safely(following, self._write)

    def _next_waiting(self) -> _Waiting | None:
        """Take a push that the log has reached; its begin may be there already."""
        end = self._member.ledger.end_index
        push = self._waiting.pop(end + 1, None)
        if push is None:
            first = min(self._waiting)
            if first > end:
                return None
            push = self._waiting.pop(first)
        self._waiting_bytes -= _size(push.request)
        return push

    def _append_held(self, push: _Waiting) -> None:
        ledger = self._member.ledger
        if all(ledger.entry(entry.index) == entry for entry in push.request.entries):
            self._succeed(push, push.request.last_index)
        else:
            self._answer(push, Code.INCONSISTENT_STATE)

    def _wait(self, push: _Waiting) -> None:
        if push.request.first_index in self._waiting:
            self._answer(push, Code.REPEATED_PUSH)
        elif (
            len(self._waiting) >= self._settings.max_waiting_pushes
            or self._waiting_bytes >= self._settings.max_waiting_bytes
        ):
            self._answer(push, Code.PUSH_REQUEST_IS_FULL)
        else:
            self._waiting[push.request.first_index] = push
            self._waiting_bytes += _size(push.request)

    def _write(self, push: _Waiting) -> None:
        member, request = self._member, push.request
        if request.run is not None:
            is_written = member.ledger.append_run(request.run, request.term)
        else:
            is_written = self._write_entries(request.entries)
        if not is_written:
            self._contradict(request.first_index)
            self._answer(push, Code.INCONSISTENT_STATE)
            return
        self._trouble.over()
        self._in_step = member.term
        self._succeed(push, request.last_index)
        member.commit(request.commit_index)

    def _write_entries(self, entries: tuple[Entry, ...]) -> bool:
        ledger = self._member.ledger
        for entry in entries:
            if entry.index <= ledger.end_index:
                is_written = ledger.entry(entry.index) == entry
            else:
                is_written = ledger.append(entry)
            if not is_written:
                return False
        return True

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
            count=request.count,
            begin_index=ledger.begin_index,
            end_index=ledger.end_index,
        )


def _is_well_formed(request: PushRequest) -> bool:
    """Whether the entries fit the type, and follow each other. The ledger checks those of a run."""
    entries, run = request.entries, request.run
    if run is not None:
        is_filled = run.first_index >= 0 and run.count > 0 and len(run.data) > 0
        return request.type is PushType.APPEND and not entries and is_filled
    if request.type is PushType.COMMIT:
        return not entries
    if not entries or (request.type is not PushType.APPEND and len(entries) > 1):
        return False
    return entries[0].index >= 0 and all(
        entry.index == entries[0].index + count and 0 <= entry.term <= request.term
        for count, entry in enumerate(entries)
    )


def _size(request: PushRequest) -> int:
    if request.run is not None:
        return len(request.run.data)
    return sum(len(entry.body) for entry in request.entries)
