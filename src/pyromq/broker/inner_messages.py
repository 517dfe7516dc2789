"""Messages that the broker stores itself: retries, delayed and committed messages, abandoned
halves, replies, and every send that the hot path does not handle.

`MessageWriter.put` takes a message with its properties as a dictionary. A message with a delay is
stored under SCHEDULE_TOPIC_XXXX; `services.delay` delivers it to its real topic when it is due.

Invariants
1. A put reaches the log when the chunk is sealed. The server seals after a request handler that is
   not a coroutine; all other callers await `MessageWriter.stored` after their last put, and
   acknowledge nothing before.
2. The consume-queue entry of a delayed message holds its delivery time, counted from the store
   timestamp of its record.

Runs on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.java.wire_types import INT32, parse_integer
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.properties import (
    DELAY,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    encode_properties,
)
from pyromq.protocol.message.sysflag import HOST_MASK, is_consumable
from pyromq.protocol.names import (
    SCHEDULE_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RequestError
from pyromq.store.acknowledgement import AckOutcome
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import ConsumeQueue

#: Halves and abandoned halves: their delay begins with the commit.
#: RocketMQ's answer if the group takes no messages, or has not committed one in time.
GROUP_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
#: Remarks on messages that the group may or may not keep: clients send them again.
NOT_AGREED: Final = {
    AckOutcome.QUORUM_TIMED_OUT: f"{GROUP_BUSY} (most nodes of the raft group do not answer)",
    AckOutcome.LEADERSHIP_LOST: "UNKNOWN_ERROR: the broker no longer leads its raft group",
}
_NEVER_DELAYED: Final = frozenset({TRANSACTION_HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC})


@dataclass(slots=True)
class InnerMessage:
    """A message before it is stored: a record without its offsets and store time."""

    topic: str
    queue_id: int
    body: bytes
    #: As stored, except for the properties that the writer adds for a delay.
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    #: The writer sets the host bits itself.
    sys_flag: int = 0
    born_timestamp: int = 0
    #: Address and port as in records: `Connection.born_host` or `encode_host`.
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    #: Physical offset of the half of a committed message.
    prepared_offset: int = 0


class Stored(NamedTuple):
    """The place of a stored message."""

    queue: ConsumeQueue
    offset: int
    physical: int


class MessageWriter:
    """Stores inner messages."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.delay_levels = DelayLevels(store.config.message_delay_level)
        self._on_delayed: Callable[[int], None] | None = None

    def listen(self, on_delayed: Callable[[int], None] | None) -> None:
        """Call `on_delayed` with the level of each message that is put with a delay."""
        self._on_delayed = on_delayed

    def put(self, message: InnerMessage) -> Stored:
        """Gather one message. Raises PutError, or RequestError if the delay is not a number."""
        store = self._store
        properties = message.properties
        topic, queue_id = message.topic, message.queue_id
        now = store.chunk_time()
        level = 0
        if is_consumable(message.sys_flag) and topic not in _NEVER_DELAYED:
            level = delay_level(properties)
        if level > 0:
            level = min(level, len(self.delay_levels))
            properties = {
                **properties,
                DELAY: str(level),
                REAL_TOPIC: topic,
                REAL_QUEUE_ID: str(queue_id),
            }
            topic, queue_id = SCHEDULE_TOPIC, level - 1
            tags_code = self.delay_levels.due(level, now)
        else:
            tags_code = java_hash(properties.get(TAGS, ""))
        queue = store.tail(topic, queue_id)
        offset = queue.next_offset
        physical = store.put(
            queue,
            message.body,
            encode_properties(properties),
            tags_code,
            message.flag,
            message.sys_flag & ~HOST_MASK,
            message.born_timestamp,
            message.born_host,
            message.reconsume_times,
            prepared_offset=message.prepared_offset,
            store_timestamp=now,
        )
        if level > 0 and self._on_delayed is not None:
            self._on_delayed(level)
        return Stored(queue, offset, physical)

    async def stored(self) -> AckOutcome:
        """Seal the gathered messages; wait for their fsync or a replica if the settings say so.

        Raises RequestError if a raft group has not agreed on them.
        """
        waiting = self._store.end_chunk()
        outcome = AckOutcome.STORED if waiting is None else await waiting
        if outcome in NOT_AGREED:
            raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_AGREED[outcome])
        return outcome


def delay_level(properties: dict[str, str]) -> int:
    """Return the delay level of a message, 0 for none. Raises RequestError if not a number."""
    level = properties.get(DELAY)
    if level is None:
        return 0
    try:
        return parse_integer(level, INT32)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{DELAY}: {error}") from None
