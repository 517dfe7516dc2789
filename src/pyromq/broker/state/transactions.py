"""Open transactions: one mark in memory for each half message.

Halves are stored in RMQ_SYS_TRANS_HALF_TOPIC, queue 0. A commit or rollback stores a record in
RMQ_SYS_TRANS_OP_HALF_TOPIC with the half's queue offset. A half that stays open is put back at the
end of its queue from time to time and passed at its old offset. RocketMQ reads all ends again for
every check; here they are read once, at the start, and noted as they are written. So a second end
of the same transaction is recognized; RocketMQ would deliver twice.

Terms
- origin: the first queue offset of a transaction. Its producer knows this one; a half that was put
  back carries it as a property.
- passed: a half that needs no more work although it was not ended: it was put back or abandoned, or
  its record has expired.

Invariants
1. Every half below `half_offset` was ended or passed; the one at it was not.
2. Every end below `op_offset` names halves below `half_offset`. These two offsets, persisted like
   those of a consumer group, and the two queues are all that a restart needs.
3. Memory: one byte for each half above `half_offset` and for some below, eight for each end. It
   grows with the time for which producers leave transactions open.

Pure. Called on the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_OPEN: Final = 0
_ENDED: Final = 1
_PASSED: Final = 2

#: Halves below `half_offset` whose second end is recognized.
_MAX_REMEMBERED: Final = 1_000_000


class TransactionTable:
    """The marks of halves, and the progress in their two queues."""

    def __init__(self, remembered: int = _MAX_REMEMBERED) -> None:
        self.half_offset = 0
        self.op_offset = 0
        self._remembered = remembered
        #: The half of the first mark; halves after the last one are open.
        self._base = 0
        self._marks = bytearray()
        #: The halves named by ends, from the end at `op_offset` on.
        self._ends: deque[int] = deque()
        #: Current offsets of transactions that were put back, by origin.
        self._newest: dict[int, int] = {}

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Reset the table to the first offsets that may be unfinished."""
        self.half_offset = half_offset
        self.op_offset = op_offset
        self._base = max(0, half_offset - self._remembered)
        self._marks = bytearray(half_offset - self._base)
        self._ends.clear()
        self._newest.clear()

    def is_open(self, half: int) -> bool:
        """Return whether a half still has to be ended or passed."""
        return half >= self.half_offset and self._mark(half) == _OPEN

    def is_ended(self, half: int, origin: int) -> bool:
        """Return whether the transaction is known to be committed or rolled back."""
        return self._mark(half) == _ENDED or self._mark(origin) == _ENDED

    def next_open(self, start: int) -> int:
        """Return the first open half from `start` on; it may not be stored yet."""
        start = max(start, self.half_offset)
        found = self._marks.find(_OPEN, start - self._base)
        return self._base + found if found >= 0 else max(start, self._base + len(self._marks))

    def end(self, half: int, origin: int) -> list[int]:
        """End a transaction; return the halves to store ends for, in this order.

        The newest one is first: as long as it is unfinished, a restart reads them all.
        """
        halves = sorted({half, origin, self._newest.pop(origin, half)}, reverse=True)
        for offset in halves:
            self._set(offset, _ENDED)
        self._advance()
        return halves

    def end_stored(self, half: int) -> None:
        """Note the next end in the queue of ends, which names this half."""
        self._ends.append(half)
        self._set(half, _ENDED)
        self._advance()

    def put_back(self, half: int, origin: int, renewed: int) -> None:
        """Note that a transaction was put back as the half `renewed`."""
        self._newest[origin] = renewed
        self._pass(half)

    def give_up(self, half: int, origin: int) -> None:
        """Abandon a transaction: it is not checked any more."""
        self._newest.pop(origin, None)
        self._pass(half)

    def found_again(self, half: int, origin: int) -> None:
        """Note an open half that was put back; called at the start, in queue order."""
        before = self._newest.get(origin, origin)
        if self.is_open(before):  # the process was killed just before it was passed
            self._set(before, _PASSED)
        self._newest[origin] = half
        self._advance()

    def pass_to(self, half: int) -> None:
        """Pass all halves before this one: their records have expired."""
        if half > self.half_offset:
            self.half_offset = half
            missing = half - self._base - len(self._marks)
            if missing > 0:
                self._base, self._marks = half, bytearray()
            self._advance()

    def _mark(self, half: int) -> int:
        index = half - self._base
        return self._marks[index] if 0 <= index < len(self._marks) else _OPEN

    def _set(self, half: int, mark: int) -> None:
        index = half - self._base
        if index < 0:  # too old to be remembered
            return
        missing = index + 1 - len(self._marks)
        if missing > 0:
            self._marks.extend(bytes(missing))
        self._marks[index] = mark

    def _pass(self, half: int) -> None:
        self._set(half, _PASSED)
        self._advance()

    def _advance(self) -> None:
        """Advance both offsets over finished halves and ends."""
        self.half_offset = self.next_open(self.half_offset)
        ends = self._ends
        while ends and ends[0] < self.half_offset:
            ends.popleft()
            self.op_offset += 1
        known = self.half_offset - self._base
        if known > 2 * self._remembered:
            self._base += known - self._remembered
            del self._marks[: known - self._remembered]
