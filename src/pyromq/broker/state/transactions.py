"""Which transactions are open: a mark for each half message, in memory.

Halves stand in RMQ_SYS_TRANS_HALF_TOPIC, queue 0. When one is committed or rolled back, a
record in RMQ_SYS_TRANS_OP_HALF_TOPIC names its queue offset. A half that stays open is put
back at the end of its queue now and then, and passed where it stood. RocketMQ reads all ends
again for every check; here they are read once, at the start, and noted as they are written.
So a second end of the same transaction is known, too, where RocketMQ would deliver twice.

Words
- origin: the queue offset at which a transaction first stood. Its producer knows this one; a
  half that was put back carries it as a property.
- passed: nothing is to be done for a half any more, though it was not ended: it was put back,
  given up, or its record has expired.

Invariants
1. Every half below `half_offset` was ended or passed; the one there was not.
2. Every end below `op_offset` names halves below `half_offset`. These two offsets, which are
   persisted as those of a consumer group, and the two queues are all that a restart needs.
3. One byte for each half above `half_offset` and for some below, eight for each end: a
   producer that leaves transactions open for long costs memory in this measure.

Pure. All methods are called on the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_OPEN: Final = 0
_ENDED: Final = 1
_PASSED: Final = 2

#: So many halves below `half_offset` are known as ended, should they be ended again.
_REMEMBERED: Final = 1_000_000


class TransactionTable:
    """The marks of halves, and how far their two queues are done with."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self.half_offset = 0
        self.op_offset = 0
        self._remembered = remembered
        #: The half of the first mark; halves behind the last one are open.
        self._base = 0
        self._marks = bytearray()
        #: The halves that ends name, from the one at `op_offset` on.
        self._ends: deque[int] = deque()
        #: Where transactions that were put back stand now, by their origin.
        self._newest: dict[int, int] = {}

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Forget everything; these are the first that may not be done with."""
        self.half_offset = half_offset
        self.op_offset = op_offset
        self._base = max(0, half_offset - self._remembered)
        self._marks = bytearray(half_offset - self._base)
        self._ends.clear()
        self._newest.clear()

    def is_open(self, half: int) -> bool:
        """Whether a half still has to be ended or passed."""
        return half >= self.half_offset and self._mark(half) == _OPEN

    def is_ended(self, half: int, origin: int) -> bool:
        """Whether the transaction was committed or rolled back before, as far as is known."""
        return self._mark(half) == _ENDED or self._mark(origin) == _ENDED

    def next_open(self, start: int) -> int:
        """The first open half from `start` on; it need not be stored yet."""
        start = max(start, self.half_offset)
        found = self._marks.find(_OPEN, start - self._base)
        return self._base + found if found >= 0 else max(start, self._base + len(self._marks))

    def end(self, half: int, origin: int) -> list[int]:
        """Note that a transaction ends; the halves that are to be named in ends, in this order.

        The newest one comes first: as long as that is not done with, a start reads them all.
        """
        halves = sorted({half, origin, self._newest.pop(origin, half)}, reverse=True)
        for offset in halves:
            self._set(offset, _ENDED)
        self._advance()
        return halves

    def end_stored(self, half: int) -> None:
        """Another end, of this half, is in the queue of ends: in the order of that queue."""
        self._ends.append(half)
        self._set(half, _ENDED)
        self._advance()

    def put_back(self, half: int, origin: int, renewed: int) -> None:
        """Note that a transaction stands at the end of the queue of halves now."""
        self._newest[origin] = renewed
        self._pass(half)

    def give_up(self, half: int, origin: int) -> None:
        """Note that nobody is asked about a transaction any more."""
        self._newest.pop(origin, None)
        self._pass(half)

    def found_again(self, half: int, origin: int) -> None:
        """At a start: an open half that was put back, in the order of the queue of halves."""
        before = self._newest.get(origin, origin)
        if self.is_open(before):  # passed in the instant before the process was killed
            self._set(before, _PASSED)
        self._newest[origin] = half
        self._advance()

    def pass_to(self, half: int) -> None:
        """Note that the records of all halves before this one are gone."""
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
        if index < 0:  # so long ago that it is forgotten
            return
        missing = index + 1 - len(self._marks)
        if missing > 0:
            self._marks.extend(bytes(missing))
        self._marks[index] = mark

    def _pass(self, half: int) -> None:
        self._set(half, _PASSED)
        self._advance()

    def _advance(self) -> None:
        """Move both offsets over what is done with."""
        self.half_offset = self.next_open(self.half_offset)
        ends = self._ends
        while ends and ends[0] < self.half_offset:
            ends.popleft()
            self.op_offset += 1
        known = self.half_offset - self._base
        if known > 2 * self._remembered:
            self._base += known - self._remembered
            del self._marks[: known - self._remembered]
