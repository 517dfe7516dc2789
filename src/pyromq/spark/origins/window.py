"""The pull window: overlapping pulls from one queue whose records come out in order.

    window = PullWindow(connection, pull, QueueRange(queue, 0, 1_000_000), is_complete=True)
    for block in window.blocks(): ...

The broker decides how much a pull carries. pyromq's broker returns megabytes to clients that ask
for them (`maxMsgBytes`); Java's 4.9 returns 32 messages whatever the client asks for. The window
sends one pull, learns from its response, and then keeps enough pulls in flight to have megabytes
on the wire either way.

Invariants
1. Each slot covers the offsets of one pull. Slots are contiguous and answered in order: a pull
   that returns less than its slot is followed by another one for the rest before any later slot
   comes out.
2. Everything before `position` has been handed out.
3. A replica ends the read where it lacks a record (UnreachableError); only a master loses any.

Used by `BrokerOrigin`, on its thread. After a failure the connection still has responses in
flight (`is_finished`), so the caller has to close it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.kernel import load
from pyromq.protocol.message.bulk import Longs, read_columns, record_places, record_starts
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageResponseHeader
from pyromq.remoting.blocking import BlockingConnection, Reply
from pyromq.remoting.errors import RemotingError
from pyromq.spark.origins.origin import (
    LostRecords,
    OriginError,
    QueueRange,
    RecordBlock,
    UnreachableError,
)

#: The most that one pull asks for.
PULL_BYTES: Final = 4 * MIB
_PULL_MESSAGES: Final = 16_384
#: Target for the bytes in flight, and the limits on the pulls that carry them.
_IN_FLIGHT_BYTES: Final = 12 * MIB
_MIN_PULLS: Final = 3
_MAX_PULLS: Final = 8
#: Brokers that cap a pull at a few kilobytes get more pulls instead.
_MAX_SMALL_PULLS: Final = 64
_SMALL_RESPONSE_BYTES: Final = 512 * KIB
#: Exponential backoff on SYSTEM_BUSY: first delay in seconds, and maximum retries.
_BUSY_FIRST_DELAY: Final = 0.05
_MAX_BUSY_RETRIES: Final = 8

_PULL_RESPONSES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
#: Responses of a server that may accept the same request later.
_TEMPORARY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})


class PullWindow:
    """Overlapping pulls of one range of a queue."""

    def __init__(
        self,
        connection: BlockingConnection,
        pull: Callable[[int, int], RemotingCommand],
        wanted: QueueRange,
        *,
        is_complete: bool,
        is_replica: bool = False,
    ) -> None:
        """Read `wanted` with the requests that `pull(offset, count)` returns.

        `is_complete` says that the pulls select every message, so a missing one is lost. A
        message that `is_replica` lacks is not: the master may have it.
        """
        self._connection = connection
        self._pull = pull
        self._is_complete = is_complete
        self._is_replica = is_replica
        self._queue = wanted.queue
        self._next = wanted.start
        self._end = wanted.end
        self._slots: deque[_Slot] = deque()
        self._by_opaque: dict[int, _Slot] = {}
        #: A single pull, until its response shows how much one carries.
        self._max_pulls = 1
        self._offsets_per_pull = _PULL_MESSAGES
        self._offset_limit = _PULL_MESSAGES
        self._last_short = 0
        self.position = wanted.start

    @property
    def is_finished(self) -> bool:
        """Whether no response is in flight."""
        return not self._by_opaque

    def blocks(self) -> Iterator[RecordBlock | LostRecords]:
        """Yield the records of the range. Raises OriginError."""
        try:
            self._fill()
            while self._slots:
                slot = self._slots[0]
                self.position = slot.start
                while slot.reply is None:
                    reply = self._connection.receive()
                    arrived = self._by_opaque.pop(reply.command.opaque, None)
                    if arrived is not None:
                        arrived.reply = reply
                found = self._take(slot)
                self._fill()
                yield from found
        except RemotingError as error:
            raise UnreachableError(f"reading {self._queue}: {error}") from error

    def _fill(self) -> None:
        while self._next < self._end and len(self._slots) < self._max_pulls:
            slot = _Slot(self._next, min(self._next + self._offsets_per_pull, self._end))
            self._slots.append(slot)
            self._next = slot.end
            self._send(slot)

    def _send(self, slot: _Slot) -> None:
        slot.reply = None
        slot.requested = 1 if slot.is_single else slot.end - slot.start
        self._by_opaque[self._connection.send(self._pull(slot.start, slot.requested))] = slot

    def _take(self, slot: _Slot) -> Sequence[RecordBlock | LostRecords]:
        """Return the content of the first slot's response; drop the slot, or pull its rest."""
        assert slot.reply is not None
        response, body = slot.reply
        start = slot.start
        if response.code == ResponseCode.SYSTEM_BUSY and slot.busy_retries < _MAX_BUSY_RETRIES:
            time.sleep(_BUSY_FIRST_DELAY * 2**slot.busy_retries)
            slot.busy_retries += 1
            self._send(slot)
            return ()
        if response.code not in _PULL_RESPONSES:
            check_response(response, f"PULL_MESSAGE of {self._queue} at {self._connection.address}")
        slot.busy_retries = 0
        header = PullMessageResponseHeader.decode(response.ext_fields)
        if response.code == ResponseCode.SUCCESS:
            found = self._records(slot, header.next_begin_offset, body)
        elif response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # The subscription selects nothing here, or the segment is being deleted.
            if self._is_replica and header.next_begin_offset <= start:
                # Java's replicas answer so for an offset that they lack.
                raise self._lacking(start)
            slot.start = max(header.next_begin_offset, start + 1)
            gone = slot.start if self._is_complete else header.min_offset
            found = self._lost(start, min(gone, slot.end), _EXPIRED)
        elif header.min_offset > start:
            found = self._lost(start, min(header.min_offset, slot.end), _EXPIRED)
            slot.start = header.min_offset
        else:
            self._slots.clear()
            self._next = self._end
            return self._lost(start, self._end, f"the queue ends at {header.max_offset}")
        if slot.start >= slot.end:
            self._slots.popleft()
        elif len(self._slots) == 1 and not slot.is_single:
            # No later pull is in flight: split the rest into slots of the size just learned.
            self._next = self._slots.popleft().start
        else:
            self._send(slot)
        return found

    def _records(
        self, slot: _Slot, next_offset: int, body: memoryview
    ) -> Sequence[RecordBlock | LostRecords]:
        starts, end = _find_records(body)
        if end != len(body):
            # A damaged size: hand out the whole records before it, resume the pull after them.
            valid = read_columns(body, starts).valid
            starts = starts[: starts.size if valid.all() else int(valid.argmin())]
            if not starts.size:
                return self._damaged(slot, next_offset)
            next_offset = int(record_places(body, starts).queue_offsets[-1]) + 1
        else:
            self._adapt(slot, next_offset, len(body))
        slot.is_single = False
        found: list[RecordBlock | LostRecords] = []
        if starts.size:
            offsets = record_places(body, starts).queue_offsets
            inside = (offsets >= slot.start) & (offsets < slot.end)
            if not inside.all():
                starts, offsets = starts[inside], offsets[inside]
            if self._is_complete and starts.size != min(next_offset, slot.end) - slot.start:
                found += self._gaps(offsets.tolist(), slot.start, min(next_offset, slot.end))
            found.append(RecordBlock(body, starts))
        slot.start = max(next_offset, slot.start + 1)
        return found

    def _damaged(self, slot: _Slot, next_offset: int) -> Sequence[LostRecords]:
        """Report the first record of a response as damaged, once its offset is known.

        Without a filter it is the first offset of the pull. With a filter, a pull for a single
        message has to return it alone before its offset is certain.
        """
        if slot.requested > 1 and not self._is_complete:
            slot.is_single = True
            return ()
        slot.is_single = False
        offset = slot.start if self._is_complete else max(next_offset - 1, slot.start)
        slot.start = offset + 1
        return self._lost(offset, min(offset + 1, slot.end), "the record is damaged")

    def _adapt(self, slot: _Slot, next_offset: int, size: int) -> None:
        """Fit the size and number of pulls to what the broker returned."""
        carried = next_offset - slot.start
        if carried < slot.requested:
            # Cut by bytes, or by a count. The same number twice in a row is a count.
            if carried == self._last_short:
                self._offset_limit = carried
            self._last_short = carried
            self._offsets_per_pull = max(1, carried)
        elif size < PULL_BYTES // 2:
            self._offsets_per_pull = min(self._offsets_per_pull * 2, self._offset_limit)
        if size < _SMALL_RESPONSE_BYTES and self._offsets_per_pull < slot.requested:
            self._max_pulls = _MAX_SMALL_PULLS
        else:
            self._max_pulls = min(max(_IN_FLIGHT_BYTES // max(size, 1), _MIN_PULLS), _MAX_PULLS)

    def _gaps(self, offsets: Sequence[int], start: int, end: int) -> list[LostRecords]:
        """Return the offsets from `start` to `end` that a response skips."""
        bounds = [start - 1, *offsets, end]
        return [
            lost
            for before, after in pairwise(bounds)
            for lost in self._lost(before + 1, after, "the broker skips them")
        ]

    def _lost(self, start: int, end: int, reason: str) -> list[LostRecords]:
        if start >= end:
            return []
        if self._is_replica:
            raise self._lacking(start)
        return [LostRecords(self._queue, start, end, reason)]

    def _lacking(self, offset: int) -> UnreachableError:
        return UnreachableError(
            f"reading {self._queue}: the replica at {self._connection.address} lacks offset "
            f"{offset}, its master may have it"
        )


_EXPIRED: Final = "they have expired"


class _Slot:
    """The offsets of one pull, and its response once it has arrived."""

    __slots__ = ("busy_retries", "end", "is_single", "reply", "requested", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        #: Pull a single message: it is damaged, and this tells its offset.
        self.is_single = False
        self.requested = 0
        self.busy_retries = 0
        self.reply: Reply | None = None


def check_response(response: RemotingCommand, request: str) -> None:
    """Raise OriginError unless a response reports success; `request` goes into the text."""
    if response.code != ResponseCode.SUCCESS:
        code = next((each.name for each in ResponseCode if each == response.code), response.code)
        kind = UnreachableError if response.code in _TEMPORARY else OriginError
        raise kind(f"{request}: {code}: {response.remark}")


def _find_records(body: memoryview) -> tuple[Longs, int]:
    """Return where the records of a response start, and where the last complete one ends."""
    kernel = load("record_columns")
    if kernel is None:
        return record_starts(body)
    starts, end = kernel.find_starts(body)
    return np.frombuffer(starts, np.int64), end
