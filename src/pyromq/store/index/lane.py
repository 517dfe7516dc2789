"""Keep the key index up with the commit log, on a thread of its own.

The index is always built from the log's bytes, never from the values of a put: indexing costs
more than the put itself, and no response depends on it. The lane follows the log's `written`
watermark. Records cost less when many are indexed together, so it wakes every 20 ms, and under load
every 100 ms. A query by key may miss messages of that time.

Started and stopped by `message_store`. `behind` may be read from any thread.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyromq.base.sizes import KIB, MIB
from pyromq.protocol.message.record import BLANK_SIZE, MESSAGE_MAGIC, peek
from pyromq.store.index.index import KeyIndex
from pyromq.store.log.commit_log import CommitLog

logger = logging.getLogger(__name__)

#: Bytes of the log that are mapped, or copied, at a time.
_MAX_MAPPED_SIZE: Final = 4 * MIB
_MAX_COPIED_SIZE: Final = MIB
#: Delay between passes, during which records gather, and the longer one after a pass of at least
#: LOAD_SIZE bytes.
_INTERVAL_SECONDS: Final = 0.02
_LOAD_INTERVAL_SECONDS: Final = 0.1
LOAD_SIZE: Final = 64 * KIB
#: Delay after an error such as a full disk.
_RETRY_SECONDS: Final = 1.0
#: If more bytes than this are not indexed, a second thread copies ahead.
_MIN_CATCH_UP: Final = 32 * MIB
#: The longest part of a record at the end of a copy that is moved before the next one.
_MAX_CARRIED: Final = 64 * KIB
#: Fewer bytes than this are copied out of the log's own mapping.
_MIN_LARGE_READ: Final = 256 * KIB
#: Records of this size are mapped, because their bodies need not be read; shorter ones are copied,
#: which costs less than waiting for one piece of memory after the other.
_MIN_MAPPED_RECORD: Final = 4 * KIB


class IndexLane:
    """The thread that indexes new records."""

    def __init__(self, log: CommitLog, index: KeyIndex | None) -> None:
        """Index nothing if `index` is None."""
        self._log = log
        self._index = index
        self._indexed_to = 0
        #: For large reads; none while the lane keeps up.
        self._buffer: bytearray | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, offset: int) -> None:
        """Index the log from `offset` on, then every record appended to it."""
        self._indexed_to = offset
        if self._index is not None:
            self._thread = threading.Thread(target=self._run, name="pyromq-index", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Index the remaining records and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def behind(self) -> int:
        """Return how many bytes of the log are not indexed yet."""
        return self._log.watermarks.written - self._indexed_to if self._index is not None else 0

    def _run(self) -> None:
        assert self._index is not None
        failing = False
        delay = delay_after(0)
        while True:
            stopping = self._stop.wait(_RETRY_SECONDS if failing else delay)
            if self._indexed_to > self._log.watermarks.written:
                # A replica's log received nothing there, and now begins elsewhere.
                self._indexed_to = self._log.min_offset
            begin = self._indexed_to
            try:
                while self._indexed_to < self._log.watermarks.written:
                    if self.behind >= _MIN_CATCH_UP:
                        self._catch_up(self._index)
                    self._index_next(self._index)
                failing = False
                delay = delay_after(self._indexed_to - begin)
            except OSError as error:
                if not failing:
                    logger.error(
                        "key index write failed, retrying every %.0f s: %s", _RETRY_SECONDS, error
                    )
                failing = True
            except Exception:
                logger.exception(
                    "indexing stopped at offset %d: queries by key miss later messages until "
                    "the broker restarts",
                    self._indexed_to,
                )
                return
            if stopping:
                return

    def _catch_up(self, index: KeyIndex) -> None:
        """Index short records up to the segment's end, while a second thread copies the next ones.

        Stops before a record that does not fit, which is for `_index_next`. A recovery has just
        ended, or a full disk got room: the broker has a core to spare.
        """
        log = self._log
        if self._first_size(self._indexed_to) >= _MIN_MAPPED_RECORD:
            return
        prefix = log.framing_at(self._indexed_to).prefix
        size = _MAX_COPIED_SIZE
        # Each with room for the beginning of a record that ends in the next copy.
        buffers = [memoryview(bytearray(_MAX_CARRIED + size)) for _ in range(2)]
        carried = b""
        with ThreadPoolExecutor(1, "pyromq-index-copy") as thread:
            copying = thread.submit(log.read_into, self._indexed_to, buffers[0][_MAX_CARRIED:])
            while True:
                copied = copying.result()
                offset = self._indexed_to + len(carried) + copied
                is_last = copied < size or log.watermarks.written - offset < size
                if not is_last:
                    copying = thread.submit(log.read_into, offset, buffers[1][_MAX_CARRIED:])
                begin = _MAX_CARRIED - len(carried)
                buffers[0][begin:_MAX_CARRIED] = carried
                span = buffers[0][begin : _MAX_CARRIED + copied]
                end = index.put_span(span, prefix)
                self._indexed_to += end
                carried = bytes(span[end:])
                if is_last or not end or len(carried) > _MAX_CARRIED:
                    return
                buffers.reverse()

    def _index_next(self, index: KeyIndex) -> None:
        log = self._log
        offset = self._indexed_to
        framing = log.framing_at(offset)
        data = self._read(offset)
        end = index.put_span(data, framing.prefix)
        if end:
            self._indexed_to = offset + end
            return
        if not data:
            # Retention deleted the segment before it was indexed (the disk was full), or the empty
            # log of a replica begins where its master's does.
            first = log.min_offset if log.segments.files else log.watermarks.written
            self._indexed_to = max(first, log.segment_after(offset))
            return
        # Either the blank record at a segment's end, or a record larger than one read.
        size, magic = peek(data[framing.prefix : framing.prefix + BLANK_SIZE])
        size += framing.prefix
        if magic != MESSAGE_MAGIC or offset + size > log.watermarks.written:
            self._indexed_to = log.segment_after(offset)
            return
        index.put_span(log.read(offset, size), framing.prefix)
        self._indexed_to = offset + size

    def _read(self, offset: int) -> memoryview:
        """Return the log from `offset` on, up to the segment's end."""
        log = self._log
        size = log.segment_after(offset) - offset
        if log.watermarks.written - offset < _MIN_LARGE_READ:
            return memoryview(log.read(offset, min(_MIN_LARGE_READ, size)))
        if self._first_size(offset) >= _MIN_MAPPED_RECORD:
            return log.view(offset, min(_MAX_MAPPED_SIZE, size))
        if self._buffer is None:
            self._buffer = bytearray(_MAX_COPIED_SIZE)
        room = memoryview(self._buffer)
        return room[: log.read_into(offset, room)]

    def _first_size(self, offset: int) -> int:
        log = self._log
        return peek(log.read(offset + log.framing_at(offset).prefix, BLANK_SIZE))[0]


def delay_after(size: int) -> float:
    """Return the seconds until the next pass after one that indexed `size` bytes of the log."""
    return _LOAD_INTERVAL_SECONDS if size >= LOAD_SIZE else _INTERVAL_SECONDS
