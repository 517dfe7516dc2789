"""An origin in memory, whose records are encoded when they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from pyromq.protocol.message.properties import encode_properties
from pyromq.protocol.message.record import MessageRecord, encode_record
from pyromq.spark.origins.origin import (
    Bounds,
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    RecordBlock,
)

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
#: The message with queue offset n was stored n seconds after this, in milliseconds.
EPOCH = 1_700_000_000_000


class FakeOrigin:
    """Queues of given bounds; each block has up to 100 records."""

    def __init__(self, bounds: Mapping[Queue, tuple[int, int]] | None = None) -> None:
        self.all: dict[Queue, Bounds] = {}
        for queue, pair in (bounds or {}).items():
            self.all[queue] = Bounds(*pair)
        self.tags: Callable[[int], str] = lambda offset: f"tag-{offset % 3}"
        self.body: Callable[[int], bytes] = lambda offset: b"%d" % offset
        self.damaged: set[int] = set()
        self.committed: dict[Queue, int] = {}
        self.commits: list[tuple[str, dict[Queue, int]]] = []
        #: Number of queries that will fail.
        self.failures = 0
        self.error: type[OriginError] = OriginError
        #: Brokers that are away.
        self.away: set[str] = set()
        #: Queues of which only a replica is left.
        self.lagging: set[Queue] = set()
        self.failing_commits = False
        self.closed = 0
        self.asked = 0

    def topics(self) -> list[str]:
        self._maybe_fail()
        return sorted({queue.topic for queue in self.all})

    def queues(self, topic: str) -> list[Queue]:
        self._maybe_fail()
        return sorted(queue for queue in self.all if queue.topic == topic)

    def bounds(self, queues: Collection[Queue]) -> dict[Queue, Bounds]:
        self._maybe_fail()
        return {queue: self.all[queue] for queue in queues if queue in self.all}

    def latest_bounds(
        self, queues: Collection[Queue]
    ) -> tuple[dict[Queue, Bounds], frozenset[Queue]]:
        return self.bounds(queues), frozenset(self.lagging.intersection(queues))

    def offsets_at(self, timestamps: Mapping[Queue, int]) -> dict[Queue, int]:
        self._maybe_fail()
        found = {}
        for queue, time in timestamps.items():
            first, end = self.all[queue]
            found[queue] = min(max(-(-(time - EPOCH) // 1000), first), end)
        return found

    def blocks(self, wanted: QueueRange) -> Iterator[RecordBlock | LostRecords]:
        self._maybe_fail()
        first, end = self.all[wanted.queue]
        start = wanted.start
        if start < first:
            yield LostRecords(wanted.queue, start, min(first, wanted.end), "they have expired")
            start = first
        for begin in range(start, min(end, wanted.end), 100):
            yield self._block(wanted.queue, range(begin, min(begin + 100, end, wanted.end)))

    def is_away(self, broker_name: str) -> bool:
        return broker_name in self.away

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        if self.failing_commits:
            raise OriginError("the broker is away")
        self.commits.append((group, dict(offsets)))
        self.committed.update(offsets)

    def close(self) -> None:
        self.closed += 1

    def _maybe_fail(self) -> None:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise self.error("no broker answers")

    def _block(self, queue: Queue, offsets: range) -> RecordBlock:
        data = bytearray()
        starts = []
        for offset in offsets:
            starts.append(len(data))
            data += self._record(queue, offset)
            if offset in self.damaged:
                data[starts[-1] + 4] ^= 0xFF
        return RecordBlock(bytes(data), np.array(starts, np.int64))

    def _record(self, queue: Queue, offset: int) -> bytes:
        properties = {"TAGS": self.tags(offset), "KEYS": f"key-{offset}"}
        record = MessageRecord(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            physical_offset=offset * 200,
            body=self.body(offset),
            properties=properties,
            flag=0,
            sys_flag=0,
            born_timestamp=EPOCH + 1000 * offset,
            born_host=("127.0.0.1", 10911),
            store_timestamp=EPOCH + 1000 * offset,
            store_host=("127.0.0.1", 10911),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body_crc=0,
            size=0,
            message_id="",
            raw_properties=encode_properties(properties),
        )
        return encode_record(record, HOST, HOST)
