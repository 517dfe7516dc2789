"""Pushes to one follower, from the moment this node leads in a term.

    COMPARE --> TRUNCATE --> APPEND (and COMMIT while idle)
       ^                        |
       +------------------------+  406, or no answer

COMPARE looks for the last common entry, from the leader's end down. TRUNCATE makes the follower
cut its log behind that entry. APPEND streams the entries behind it. The watermark is the last
entry that the follower is known to hold. The answer to a COMMIT tells if the follower has restarted
with a shorter log; Java ignores it, and such a follower waits for the next APPEND.

Java counts the entry of a successful COMPARE at once, and skips TRUNCATE if the follower ends
there. Its followers answer COMPARE in any term, so that count is worth nothing: the follower may
follow another leader. TRUNCATE is answered in the leader's term only. We therefore always send it,
which also repairs a Java follower whose write position has moved past its last entry.

Java also slows pushes down to 20 MiB/s for a follower that is 300 MiB behind; no peer depends on
that, so the owner of the connection decides.

Called by the leader's part, on the core's thread.
"""

from __future__ import annotations

from typing import NamedTuple

from pyromq.raft.member import Member
from pyromq.raft.messages import NONE, Code, Entry, Failed, PushRequest, PushResponse, PushType


class _Flight(NamedTuple):
    """An APPEND; or a COMMIT, with -1 as its first index and the watermark as its last."""

    first: int
    last: int
    sent: int


class Dispatcher:
    """Brings one follower's log in line with the leader's."""

    def __init__(self, member: Member, peer: str, now: int) -> None:
        self.peer = peer
        self.watermark = NONE
        self.state = PushType.COMPARE
        self._member = member
        self._settings = member.settings
        self._compare_index = NONE
        self._write_index = NONE
        #: The COMPARE or TRUNCATE without an answer.
        self._question: int | None = None
        self._question_deadline = 0
        self._retry_at = now
        self._flights: dict[int, _Flight] = {}
        self._requests: dict[int, _Flight] = {}
        self._last_push = now

    def deadline(self) -> int | None:
        """Return when `pump` has work again, if nothing else happens."""
        if self._question is not None:
            return self._question_deadline
        ledger = self._member.ledger
        if self.state is not PushType.APPEND:
            return None if ledger.end_index == NONE else self._retry_at
        deadline = self._last_push + self._settings.commit_interval + 1
        oldest = self._flights.get(self.watermark + 1)
        if oldest:
            deadline = min(deadline, oldest.sent + self._settings.push_timeout + 1)
        return deadline

    def pump(self, now: int) -> None:
        """Send everything that can be sent."""
        if self._question is not None:
            if now >= self._question_deadline:
                self._restart(now + self._settings.retry_delay)
        elif now >= self._retry_at:
            if self.state is PushType.APPEND:
                self._stream(now)
            elif self._member.ledger.end_index != NONE:
                self._compare(now)

    def _restart(self, at: int) -> None:
        """Compare the logs again."""
        self.state = PushType.COMPARE
        self._compare_index = NONE
        self._question = None
        self._retry_at = at
        self._flights.clear()
        self._requests.clear()

    def _compare(self, now: int) -> None:
        ledger = self._member.ledger
        if not ledger.begin_index <= self._compare_index <= ledger.end_index:
            self._compare_index = ledger.end_index
        self._ask(PushType.COMPARE, self._compare_index, now)

    def _truncate(self, index: int, now: int) -> None:
        self.state = PushType.TRUNCATE
        self._compare_index = index
        self._ask(PushType.TRUNCATE, index, now)

    def _ask(self, kind: PushType, index: int, now: int) -> None:
        entry = self._member.ledger.entry(index)
        if entry is None:  # expired meanwhile
            self._restart(now + self._settings.retry_delay)
            return
        self._question = self._send(kind, (entry,))
        self._question_deadline = now + self._settings.compare_timeout

    def _send(self, kind: PushType, entries: tuple[Entry, ...]) -> int:
        member, settings = self._member, self._settings
        request = PushRequest(
            group=settings.group,
            local_id=settings.self_id,
            remote_id=self.peer,
            leader_id=settings.self_id,
            term=member.term,
            type=kind,
            commit_index=member.committed,
            entries=entries,
        )
        return member.request(self.peer, request)

    def answered(self, request_id: int, response: PushResponse | Failed, now: int) -> None:
        """Handle the answer to one of this dispatcher's pushes; all others are ignored."""
        if request_id == self._question:
            self._question = None
            if isinstance(response, Failed) or response.term != self._member.term:
                self._restart(now + self._settings.retry_delay)
            elif self.state is PushType.COMPARE:
                self._compared(response, now)
            elif response.code is Code.SUCCESS:
                self._start_stream(now)
            else:
                self._restart(now + self._settings.retry_delay)
        elif flight := self._requests.pop(request_id, None):
            if isinstance(response, Failed) or response.term != self._member.term:
                return
            if flight.first == NONE and response.end_index < flight.last:
                self.watermark = response.end_index  # a power cut took what it had acknowledged
                self._restart(now)
            elif response.code is Code.SUCCESS:
                self._raise_watermark(flight.last)
            elif response.code is Code.INCONSISTENT_STATE:
                self._restart(now)
        self.pump(now)

    def _compared(self, response: PushResponse, now: int) -> None:
        ledger = self._member.ledger
        index, begin, end = self._compare_index, ledger.begin_index, ledger.end_index
        if response.code is Code.SUCCESS:
            if self._settings.truncate_after_compare or response.end_index != index:
                self._truncate(index, now)
            else:
                self._start_stream(now)
        elif response.code is not Code.INCONSISTENT_STATE:
            self._restart(now + self._settings.retry_delay)
        elif response.end_index < begin or response.begin_index > end:
            self._truncate(begin, now)  # nothing in common: the whole log is pushed
        elif index < response.begin_index:
            self._truncate(begin, now)
        else:
            self._compare_index = min(response.end_index, index - 1)
            if self._compare_index < begin:
                self._truncate(begin, now)

    def _start_stream(self, now: int) -> None:
        self.state = PushType.APPEND
        self._write_index = self._compare_index + 1
        self._compare_index = NONE
        self._last_push = now
        self._raise_watermark(self._write_index - 1)

    def _raise_watermark(self, index: int) -> None:
        self.watermark = max(self.watermark, index)
        for first in [each.first for each in self._flights.values() if each.last <= index]:
            del self._flights[first]
        if len(self._requests) > 2 * self._settings.max_pushes_in_flight:
            self._requests = {
                each: flight for each, flight in self._requests.items() if flight.last > index
            }

    def _stream(self, now: int) -> None:
        end = self._member.ledger.end_index
        while self._write_index <= end and len(self._flights) < self._settings.max_pushes_in_flight:
            last = self._push(self._write_index, end, now)
            if last is None:
                return
            self._write_index = last + 1
        oldest = self._flights.get(self.watermark + 1)
        if oldest and now > oldest.sent + self._settings.push_timeout:
            self._push(oldest.first, oldest.last, now)
        elif now > self._last_push + self._settings.commit_interval:
            self._requests[self._send(PushType.COMMIT, ())] = _Flight(NONE, self.watermark, now)
            self._last_push = now

    def _push(self, first: int, end: int, now: int) -> int | None:
        """Send an APPEND; return its last index, or None if the entries have expired."""
        entries = list[Entry]()
        room = self._settings.max_batch_bytes if self._settings.batch_push else 0
        while first + len(entries) <= end:
            entry = self._member.ledger.entry(first + len(entries))
            if entry is None:
                self._restart(now)
                return None
            entries.append(entry)
            room -= entry.size
            if room <= 0:
                break
        last = entries[-1].index
        flight = self._flights[first] = _Flight(first, last, now)
        self._requests[self._send(PushType.APPEND, tuple(entries))] = flight
        self._last_push = now
        return last
