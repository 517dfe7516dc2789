"""Plain sends through the compiled kernel: from a chunk's bytes to the store in one call.

`take` gives the chunk to `protocol.kernel.sends`, which serves the plain sends at its head, and
hands records and entries over to the store. It stops at the first frame that is for the other send
handlers: they serve everything, with or without the kernel, and their result is the same.

A queue is added with its first accepted message, as a target of the hot path (`SendTargets`).

Used by `handlers.send` if the kernel is there. On the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import perf_counter
from types import ModuleType

from pyromq.broker.handlers.send_responses import SendResponses
from pyromq.broker.parts import BrokerParts
from pyromq.protocol.message.properties import CLUSTER, NAME_VALUE_SEPARATOR
from pyromq.remoting.connection import Connection
from pyromq.store.chunk import host_flag, max_unchecked_record
from pyromq.store.queues.consume_queue import ConsumeQueue


class PlainSends:
    """The kernel's view of a broker: settings, queues that take plain messages, the store."""

    def __init__(
        self,
        kernel: ModuleType,
        parts: BrokerParts,
        responses: SendResponses,
        batch_properties: Mapping[str, bytes],
        queued: Collection[Connection],
        max_batch: int,
    ) -> None:
        """Leave connections in `queued` alone, and batches of more than `max_batch` messages."""
        self._kernel = kernel
        self._config = parts.config
        self._store = parts.store
        self._store_host = parts.store_host
        self._responses = responses
        self._batch_properties = batch_properties
        self._queued = queued
        self._max_batch = max_batch
        self._access_control = parts.access_control
        self._instruments = timing = parts.instruments
        self._sampler = None if timing is None else timing.send_sampler
        self.clear()

    def clear(self) -> None:
        """Forget all queues and read the settings again."""
        config = self._store.config
        cluster = f"{CLUSTER}{NAME_VALUE_SEPARATOR}{self._config.broker_cluster_name}"
        self._sends = self._kernel.Sends(
            self._store_host,
            host_flag(self._store_host),
            self._responses.id_prefix,
            cluster.encode(),
            tuple(self._responses.json_pieces()),
            tuple(self._responses.binary_pieces()),
            self._batch_properties,
            max_unchecked_record(config),
            config.max_message_size,
            min(self._max_batch, config.max_batch_messages),
            config.max_batch_records_size,
        )

    def add(self, queue: ConsumeQueue) -> None:
        """Serve plain sends to a queue from now on."""
        if queue.topic.isascii():
            self._sends.add_queue(queue.topic.encode(), queue.queue_id, queue)

    def remove(self, queue: ConsumeQueue) -> None:
        """Leave sends to a queue to the other handlers."""
        self._sends.remove_queue(queue.topic.encode(), queue.queue_id)

    def take(
        self, connection: Connection, chunk: bytes, position: int, answers: list[bytes]
    ) -> int:
        """Serve the plain sends at `position`; see `Service.take_frames`."""
        if self._queued and connection in self._queued:
            return position
        store, sends = self._store, self._sends
        begun = 0.0
        sampler = self._sampler
        if sampler is not None:
            if sampler.skip:
                sampler.skip -= 1
            else:
                begun = perf_counter()
        start, limit, is_written, index, term = store.record_room()
        if is_written:
            sends.reset()
        now = store.chunk_time()
        access = self._access_control
        guard = None if access is None else access.signatures_for(connection)
        taken: int
        taken, records, queues, responses = sends.run(
            chunk, position, start, limit, now, connection.born_host, index, term, guard
        )
        if queues:
            store.put_records(records, queues, now)
            if responses:
                answers.append(responses)
            if begun and self._instruments is not None:
                self._instruments.sent(begun, sum([count for _, _, count in queues]))
        return taken
