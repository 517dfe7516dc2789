"""Pushes to one follower, from the moment this node leads in a term.

    COMPARE --> TRUNCATE --> APPEND (and COMMIT while idle)
       ^                        |
       +------------------------+  406, or the push failed

COMPARE looks for the last common entry, from the leader's end down. TRUNCATE makes the follower
cut its log behind that entry. APPEND streams the entries behind it. The watermark is the last
entry that the follower is known to hold. The answer to a COMMIT tells if the follower has restarted
with a shorter log; Java ignores it, and such a follower waits for the next APPEND.

Java counts the entry of a successful COMPARE at once, and skips TRUNCATE if the follower ends
there. Its followers answer COMPARE in any term, so that count is worth nothing: the follower may
follow another leader. TRUNCATE is answered in the leader's term only. We therefore always send it,
which also repairs a Java follower whose write position has moved past its last entry.

A peer of ours takes runs (`set_takes_runs`): entries as they are in the data file, up to
`max_run_bytes` in a push. The first `max_runs_in_flight` leave at once; further ones wait until
they are full, so that pushes grow while the peer is busy. Other peers get one entry per push, as
Java sends them, or `max_batch_bytes` of them (`batch_push`).

Bytes in flight are limited. A peer whose disk fails gets one push at a time, every `retry_delay`,
until one succeeds. Java instead slows down to 20 MiB/s for a follower that is 300 MiB behind.

Called by the leader's part, on the core's thread.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyromq.raft.format import Run
from pyromq.raft.member import Member, Trouble
from pyromq.raft.messages import NONE, Code, Entry, Failed, PushRequest, PushResponse, PushType

_DISK_CODES: Final = frozenset({Code.DISK_ERROR, Code.DISK_FULL})


class _Flight(NamedTuple):
    """An APPEND; or a COMMIT, with -1 as its first index and the watermark as its last."""

    first: int
    last: int
    sent: int
    size: int = 0


class Dispatcher:
    """Brings one follower's log in line with the leader's."""

    def __init__(self, member: Member, peer: str, now: int, *, takes_runs: bool = False) -> None:
        self.peer = peer
        self.watermark = NONE
        self.state = PushType.COMPARE
        self._member = member
        self._settings = member.settings
        self._takes_runs = takes_runs
        self._trouble = Trouble(member)
        self._compare_index = NONE
        self._write_index = NONE
        #: Position after the entry before `_write_index`; known while runs are in flight.
        self._write_position = 0
        #: The peer's disk failed: one push at a time.
        self._is_probing = False
        #: Something can be sent although nothing has arrived.
        self._is_due = False
        #: The COMPARE or TRUNCATE without an answer.
        self._question: int | None = None
        self._question_deadline = 0
        self._retry_at = now
        #: By first index, ascending, and the bytes of all.
        self._flights: dict[int, _Flight] = {}
        self._bytes_in_flight = 0
        self._requests: dict[int, _Flight] = {}
        self._last_push = now

    def deadline(self) -> int | None:
        """Return when `pump` has work again, if nothing else happens."""
        if self._is_due:
            return 0
        if self._question is not None:
            return self._question_deadline
        ledger = self._member.ledger
        if self.state is not PushType.APPEND:
            return None if ledger.end_index == NONE else self._retry_at
        deadline = self._last_push + self._settings.commit_interval + 1
        if oldest := self._oldest():
            deadline = min(deadline, oldest.sent + self._settings.push_timeout + 1)
        return deadline

    def _oldest(self) -> _Flight | None:
        return next(iter(self._flights.values()), None)

    def set_takes_runs(self, *, takes: bool) -> None:
        """Note whether the peer takes runs."""
        if takes != self._takes_runs:
            self._takes_runs = takes
            if oldest := self._oldest():
                # Pushes in the other form have other borders: begin again behind the last answer.
                self._write_index = oldest.first
                self._clear_flights()
                self._is_due = True

    def pump(self, now: int) -> None:
        """Send everything that can be sent."""
        try:
            self._pump(now)
        except OSError as error:
            self._cannot_read(error, now)

    def _cannot_read(self, error: OSError, now: int) -> None:
        self._trouble.failed(error)
        self._restart(now + self._settings.retry_delay)

    def _pump(self, now: int) -> None:
        self._is_due = False
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
        self._clear_flights()
        self._requests.clear()

    def _clear_flights(self) -> None:
        self._flights.clear()
        self._bytes_in_flight = 0
        self._write_position = 0

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

    def _send(self, kind: PushType, entries: tuple[Entry, ...] = (), run: Run | None = None) -> int:
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
            run=run,
        )
        return member.request(self.peer, request)

    def answered(self, request_id: int, response: PushResponse | Failed, now: int) -> None:
        """Handle the answer to one of this dispatcher's pushes; all others are ignored."""
        try:
            if request_id == self._question:
                self._question = None
                self._question_answered(response, now)
            elif flight := self._requests.pop(request_id, None):
                self._flight_answered(flight, response, now)
            self._pump(now)
        except OSError as error:
            self._cannot_read(error, now)

    def _question_answered(self, response: PushResponse | Failed, now: int) -> None:
        if isinstance(response, Failed) or response.term != self._member.term:
            self._restart(now + self._settings.retry_delay)
        elif self.state is PushType.COMPARE:
            self._compared(response, now)
        elif response.code is Code.SUCCESS:
            self._start_stream(now)
        else:
            self._restart(now + self._settings.retry_delay)

    def _flight_answered(self, flight: _Flight, response: PushResponse | Failed, now: int) -> None:
        if isinstance(response, Failed):
            # With the connection, all pushes behind it failed. The peer may have restarted.
            if self._flights.get(flight.first) is flight:
                self._restart(now + self._settings.retry_delay)
        elif response.term != self._member.term:
            pass
        elif flight.first == NONE and response.end_index < flight.last:
            self.watermark = response.end_index  # a power cut took what it had acknowledged
            self._restart(now)
        elif response.code is Code.SUCCESS:
            self._is_probing = False
            self._raise_watermark(flight.last)
        elif response.code is Code.INCONSISTENT_STATE:
            self._restart(now)
        elif response.code in _DISK_CODES:
            self._is_probing = True
            self._restart(now + self._settings.retry_delay)

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
        while (oldest := self._oldest()) and oldest.last <= index:
            self._bytes_in_flight -= self._flights.pop(oldest.first).size
        if len(self._requests) > 2 * self._settings.max_pushes_in_flight:
            self._requests = {
                each: flight for each, flight in self._requests.items() if flight.last > index
            }

    def _stream(self, now: int) -> None:
        end = self._member.ledger.end_index
        while self._write_index <= end and self._may_push():
            flight = self._push(self._write_index, end, now)
            if flight is None:
                return
            self._write_index = flight.last + 1
        oldest = self._oldest()
        if oldest and now > oldest.sent + self._settings.push_timeout:
            self._push(oldest.first, oldest.last, now)
        elif now > self._last_push + self._settings.commit_interval:
            self._requests[self._send(PushType.COMMIT)] = _Flight(NONE, self.watermark, now)
            self._last_push = now

    def _may_push(self) -> bool:
        settings, flights = self._settings, len(self._flights)
        if not flights:
            return True
        if self._is_probing or self._bytes_in_flight >= settings.max_bytes_in_flight:
            return False
        if not self._takes_runs:
            return flights < settings.max_pushes_in_flight
        if flights < settings.max_runs_in_flight:
            return True
        unsent = self._member.ledger.end_position - self._write_position
        return unsent >= settings.max_run_bytes

    def _push(self, first: int, end: int, now: int) -> _Flight | None:
        """Send an APPEND of entries from `first` on; None if they have expired."""
        if self._takes_runs:
            run = self._member.ledger.run(first, end, self._settings.max_run_bytes)
            if run is None:
                self._restart(now)
                return None
            size = len(run.data)
            self._write_position = max(self._write_position, run.position + size)
            request_id = self._send(PushType.APPEND, run=run)
            last = run.last_index
        else:
            entries = self._batch(first, end)
            if entries is None:
                self._restart(now)
                return None
            size = sum(entry.size for entry in entries)
            request_id = self._send(PushType.APPEND, entries)
            last = entries[-1].index
        self._trouble.over()
        if before := self._flights.get(first):
            self._bytes_in_flight -= before.size
        self._bytes_in_flight += size
        flight = self._flights[first] = self._requests[request_id] = _Flight(first, last, now, size)
        self._last_push = now
        return flight

    def _batch(self, first: int, end: int) -> tuple[Entry, ...] | None:
        """Return the entries of one push, None if one has expired."""
        entries = list[Entry]()
        room = self._settings.max_batch_bytes if self._settings.batch_push else 0
        while first + len(entries) <= end:
            entry = self._member.ledger.entry(first + len(entries))
            if entry is None:
                return None
            entries.append(entry)
            room -= entry.size
            if room <= 0:
                break
        return tuple(entries)
