"""A pull whose messages a thread reads from disk first.

The loop never waits for the disk. A pull whose records are not in memory, or which asks for
megabytes at once (`maxMsgBytes`), goes to the pull lane and completes in one of these cases:

A. The lane is full, or has dropped the pull after too long a wait: SYSTEM_BUSY. The read failed:
   SYSTEM_ERROR.
B. Topic, group or subscription changed so that the checks fail: their error.
C. The records are in memory now: the pull is served as if it had just arrived, which may mean that
   it starts to wait for messages.
D. They are not, because queue entries and records are paged in separately and the kernel may drop
   either again: the next read starts. After _MAX_READS reads the loop itself reads the pages.
E. A bulk read returns its records: they are the response. If it finds anything unusual, the pull is
   served the usual way (C, D).
F. Its connection closes, or the lane stops: no response.

`_read_ended` calls `try_complete` after a read, `expire` after the last one (the end of D), and
`cancel` in case F. Everything runs on the loop, except for the reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Final

from pyromq.broker.handlers.pull_plans import Pull
from pyromq.broker.handlers.pull_serving import PullServing, refusal
from pyromq.broker.handlers.waiting_pull import respond_or_wait
from pyromq.broker.services.flow_control import Lane
from pyromq.broker.services.long_poll import DelayedPull
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RequestError
from pyromq.remoting.connection import Connection
from pyromq.store.queues.bulk_reading import BulkRead, BulkRecords
from pyromq.store.results import GetResult, GetStatus

#: Reads of one pull: for the entries of its queue, for its records, and one more for either.
_MAX_READS: Final = 3
#: Bulk reads in flight per connection: their responses take memory.
_MAX_BULK: Final = 8


class DiskPulls:
    """Starts the reads of pulls."""

    def __init__(self, serving: PullServing, lane: Lane) -> None:
        self.serving = serving
        self.lane = lane
        self._bulk_reads: Counter[Connection] = Counter()

    def start(
        self,
        connection: Connection,
        frame: RawFrame,
        pull: Pull,
        read: Callable[[], None],
        responses: list[bytes],
    ) -> None:
        """Read the missing pages of a pull on the lane, or append a refusal."""
        try:
            DiskPull(self, connection, frame, pull).read_pages(read)
        except RequestError as busy:
            responses.append(refusal(frame, busy))

    def start_bulk(
        self,
        connection: Connection,
        frame: RawFrame,
        pull: Pull,
        bulk: BulkRead,
        responses: list[bytes],
    ) -> None:
        """Read the records of a bulk pull on the lane, or append a refusal."""
        try:
            if self._bulk_reads[connection] >= _MAX_BULK:
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY,
                    f"{_MAX_BULK} bulk pulls of this connection are in flight: "
                    "wait for their responses",
                )
            DiskPull(self, connection, frame, pull).read_bulk(bulk)
        except RequestError as busy:
            responses.append(refusal(frame, busy))
            return
        self._bulk_reads[connection] += 1

    def bulk_read_ended(self, connection: Connection) -> None:
        """Free the slot of a bulk read."""
        self._bulk_reads[connection] -= 1
        if not self._bulk_reads[connection]:
            del self._bulk_reads[connection]


class DiskPull(DelayedPull):
    """A pull that waits for the disk."""

    __slots__ = (
        "_begun",
        "_frame",
        "_has_bulk_slot",
        "_pull",
        "_pulls",
        "_read",
        "_reads",
        "_serving",
    )

    _read: asyncio.Future[BulkRecords | None]

    def __init__(
        self, pulls: DiskPulls, connection: Connection, frame: RawFrame, pull: Pull
    ) -> None:
        super().__init__(connection)
        self._pulls = pulls
        self._serving = pulls.serving
        self._frame = frame
        self._pull = pull
        self._begun = perf_counter()
        #: Reads of pages so far.
        self._reads = 0
        self._has_bulk_slot = False

    def read_pages(self, read: Callable[[], None]) -> None:
        """Start to page in entries or records. Raises RequestError if the lane is full."""
        self._submit(read)
        self._reads += 1

    def read_bulk(self, bulk: BulkRead) -> None:
        """Start to read many records at once. Raises RequestError if the lane is full."""
        self._submit(bulk.read)
        self._has_bulk_slot = True

    def try_complete(self) -> bool:
        """Serve the pull after a read; return False if it needs another one."""
        return self._complete(may_read_again=True)

    def expire(self) -> None:
        """Serve the pull, even if the loop has to read from disk."""
        self._complete(may_read_again=False)

    def cancel(self) -> None:
        """Drop the pull without a response."""
        self._free_bulk_slot()

    def _submit(self, read: Callable[[], BulkRecords | None]) -> None:
        self._read = self._pulls.lane.submit(read)
        self._read.add_done_callback(self._read_ended)

    def _read_ended(self, read: asyncio.Future[BulkRecords | None]) -> None:
        if self.connection.closed or read.cancelled():
            self.cancel()
        elif self._reads < _MAX_READS:
            self.try_complete()
        else:
            self.expire()

    def _complete(self, *, may_read_again: bool) -> bool:
        self._free_bulk_slot()
        responses: list[bytes] = []
        is_complete = True
        try:
            records = _result_of(self._read)
            self._serving.plans.recheck(self.connection, self._pull)
            if records is not None:
                self._respond_in_bulk(records, responses)
            else:
                is_complete = self._serve(responses, may_read_again=may_read_again)
        except (RequestError, ValueError) as error:
            responses = [refusal(self._frame, error)]
        if responses:
            self._serving.took(perf_counter() - self._begun)
            self.connection.write_parts(responses)
        return is_complete

    def _free_bulk_slot(self) -> None:
        if self._has_bulk_slot:
            self._has_bulk_slot = False
            self._pulls.bulk_read_ended(self.connection)

    def _respond_in_bulk(self, records: BulkRecords, responses: list[bytes]) -> None:
        pull = self._pull
        queue = self._serving.store.queue(pull.plan.topic, pull.plan.queue_id)
        next_offset = pull.offset + records.messages
        result = GetResult(GetStatus.FOUND, next_offset, queue.min_offset, queue.next_offset)
        result.pieces, result.size = [records.records], len(records.records)
        result.count = records.messages
        self._serving.respond(self._frame, pull, result, ResponseCode.SUCCESS, responses)

    def _serve(self, responses: list[bytes], *, may_read_again: bool) -> bool:
        """Respond, wait for messages, or start the next read and return False."""
        pull = self._pull
        result = self._serving.get(pull, pull.offset, may_wait=may_read_again)
        if result.bring_in is not None:
            self.read_pages(result.bring_in)
            return False
        respond_or_wait(self._serving, self.connection, self._frame, pull, result, responses)
        return True


def _result_of(read: asyncio.Future[BulkRecords | None]) -> BulkRecords | None:
    """Return the result of a read. Raises RequestError for any failure."""
    error = read.exception()
    if error is None:
        return read.result()
    if isinstance(error, RequestError):
        raise error
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"reading failed: {error}")
