"""Delivers delayed messages: RocketMQ's ScheduleMessageService.

A delayed message waits in SCHEDULE_TOPIC_XXXX, in the queue of its level, whose entries hold the
delivery time. When it is due, a copy goes to its real topic and queue. The copy differs from the
waiting record in topic, queue and store time only: body, properties (including DELAY, REAL_TOPIC
and REAL_QID), flag, sysFlag, born fields and reconsumeTimes stay, and its entry holds the hash of
its tags, as after RocketMQ's messageTimeup.

Each level reads a few messages ahead, cold ones in a thread, and sleeps until the first is due:
there is no polling. All levels together use at most 2 ms of a loop iteration, so a million messages
that are due at the same time delay a send by no more than that.

Invariants
1. Within a level, messages are delivered in queue order.
2. No message is early: none is delivered before the time in its entry. As in RocketMQ, a time
   further away than the level's delay stems from a clock that was set back, or from a level whose
   delay was shortened: such a message is due immediately.
3. No message is lost: a level's offset moves after the copy is written, and is saved after the copy
   is fsynced (`state.delay_offsets`). After a power cut messages may be delivered twice.
4. A put that the store refuses temporarily (full disk) is retried with backoff; the messages after
   it in its level wait.

A record that is damaged, that names no valid target, or that the store will never accept blocks
its level forever in RocketMQ; here it is skipped with a log line. As in RocketMQ, a message whose
real topic was deleted meanwhile is still delivered, and is there when the topic is recreated.

Runs on the loop, except for reads of cold pages. Runs only while the broker is a master
(`broker.role_switch`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from pyromq.base.memo import Memo
from pyromq.broker.inner_messages import MessageWriter
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.protocol.java.string_hash import java_hash
from pyromq.protocol.java.wire_types import INT32, parse_integer
from pyromq.protocol.message.message_id import encode_host
from pyromq.protocol.message.properties import REAL_QUEUE_ID, REAL_TOPIC, TAGS
from pyromq.protocol.message.record import MessageRecord, RecordError, body_crc, decode_record
from pyromq.protocol.message.sysflag import HOST_MASK
from pyromq.protocol.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, topic_fault
from pyromq.store.message_store import MessageStore
from pyromq.store.queues.consume_queue import iter_entries
from pyromq.store.queues.extension import is_address
from pyromq.store.results import GetResult, GetStatus, PutError, PutStatus

logger = logging.getLogger(__name__)

#: Budget of one loop iteration for all levels.
_TURN_NS: Final = 2_000_000
_READ_AHEAD_MESSAGES: Final = 32
#: A clock that was set is noticed within this time.
_MAX_SLEEP_SECONDS: Final = 1.0
#: Attempts to bring in cold pages in a thread before they are read on the loop.
_MAX_BRING_INS: Final = 3
_FIRST_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 5.0
#: Pause of a level after an unexpected exception.
_FAULT_SECONDS: Final = 10.0
_FLUSH_CHECK_SECONDS: Final = 0.2
_NS_PER_MS: Final = 1_000_000

_READ: Final = frozenset(
    {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE}
)
#: Refusals that no retry can change.
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class _Waiting(NamedTuple):
    """A message that was read ahead."""

    offset: int
    #: Milliseconds since the epoch.
    due: int
    record: MessageRecord
    topic: str
    queue_id: int


class _Level:
    """One delay level: its position and the messages it waits for."""

    __slots__ = (
        "brought_in",
        "idle",
        "number",
        "offset",
        "read_to",
        "retry_seconds",
        "timer",
        "waiting",
    )

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        #: The next message to deliver and the next to read; `waiting` is between them.
        self.offset = self.read_to = offset
        self.waiting: deque[_Waiting] = deque()
        #: Nothing to deliver: the next put wakes the level.
        self.idle = False
        self.timer: asyncio.TimerHandle | None = None
        self.brought_in = 0
        self.retry_seconds = 0.0


class DelayService:
    """Delivers due messages, level by level."""

    def __init__(
        self,
        store: MessageStore,
        writer: MessageWriter,
        offsets: DelayOffsetTable,
        *,
        now: Callable[[], int] = time.time_ns,
        max_sleep: float = _MAX_SLEEP_SECONDS,
    ) -> None:
        """`now` returns nanoseconds since the epoch."""
        self._store = store
        self._writer = writer
        self._offsets = offsets
        self._delays = writer.delay_levels
        self._now = now
        self._max_sleep = max_sleep
        self._levels: list[_Level] = []
        self._ready: deque[_Level] = deque()
        self._turn_is_coming = False
        self._moved: set[_Level] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._saving: asyncio.Task[None] | None = None
        self._running = False
        self._born_hosts: Memo[tuple[str, int], bytes] = Memo(lambda host: encode_host(*host))

    # Life

    def start(self) -> None:
        """Deliver from the offsets in the table on; also after a stop, with the table as it is."""
        self._running = True
        self._moved.clear()
        self._levels = [
            _Level(number, self._offsets.get(number)) for number in range(1, len(self._delays) + 1)
        ]
        self._warn_of_removed_levels()
        self._listen(self._arrived)
        for level in self._levels:
            self._resume(level)
        self._saving = asyncio.get_running_loop().create_task(self._save_periodically())

    async def stop(self) -> None:
        """Stop delivering. The caller saves the table, which has the final offsets."""
        self._running = False
        self._listen(None)
        for level in self._levels:
            if level.timer is not None:
                level.timer.cancel()
        self._ready.clear()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        # Their threads read files, which must stay open until they are done.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self, on_delayed: Callable[[int], None] | None) -> None:
        # In a raft group a message can be read when it is committed.
        (self._store.agreement or self._writer).listen(on_delayed)

    def _warn_of_removed_levels(self) -> None:
        for queue in self._store.queues():
            if queue.topic != SCHEDULE_TOPIC or queue.queue_id < len(self._levels):
                continue
            waiting = queue.next_offset - max(self._offsets.get(queue.queue_id + 1), 0)
            if waiting > 0:
                logger.warning(
                    "%d messages of delay level %d wait: messageDelayLevel no longer has this "
                    "level; add it back to deliver them",
                    waiting,
                    queue.queue_id + 1,
                )

    async def _save_periodically(self) -> None:
        interval = self._store.config.flush_delay_offset_interval / 1000
        while True:
            await asyncio.sleep(interval)
            # The flush thread moves flushed_offset.
            while not self._offsets.settle(self._store.flushed_offset):  # noqa: ASYNC110
                await asyncio.sleep(_FLUSH_CHECK_SECONDS)
            self._offsets.save_if_changed()

    # Loop iterations

    def _arrived(self, number: int) -> None:
        """Wake a level to which a message was put; it can be read in the next iteration."""
        level = self._levels[number - 1]
        if level.idle:
            self._resume(level)

    def _resume(self, level: _Level) -> None:
        """Serve a level in the next loop iteration."""
        level.timer = None
        level.idle = False
        self._ready.append(level)
        self._plan_turn()

    def _sleep(self, level: _Level, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        level.timer = loop.call_later(seconds, self._resume, level)

    def _plan_turn(self) -> None:
        if not self._turn_is_coming:
            self._turn_is_coming = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Serve the levels round-robin until nothing is due or the budget is used up."""
        self._turn_is_coming = False
        if not self._running:
            return
        ready = self._ready
        deadline = time.perf_counter_ns() + _TURN_NS
        while ready:
            level = ready.popleft()
            try:
                if self._deliver(level, deadline):
                    ready.append(level)
            except Exception:
                logger.exception(
                    "delay level %d: delivery failed at offset %d, retrying in %g s",
                    level.number,
                    level.offset,
                    _FAULT_SECONDS,
                )
                self._sleep(level, _FAULT_SECONDS)
            if time.perf_counter_ns() >= deadline:
                break
        try:
            self._seal()
        finally:
            if ready:
                self._plan_turn()

    def _seal(self) -> None:
        """Write the messages of this iteration, and only then count them as delivered.

        If that fails, the next iteration counts them.
        """
        if self._moved:
            # With SYNC_FLUSH nobody waits for these: they were acknowledged long ago, and their
            # waiting records remain authoritative until the copies are fsynced.
            self._store.end_chunk()
            self._offsets.move(
                {level.number: level.offset for level in self._moved},
                self._store.put_end,
            )
            self._moved.clear()

    def _deliver(self, level: _Level, deadline: int) -> bool:
        """Deliver due messages until `deadline`; return whether more are due now."""
        waiting = level.waiting
        while True:
            if not waiting and not self._read_ahead(level):
                return False
            while waiting:
                milliseconds = self._milliseconds_until(level, waiting[0])
                if milliseconds > 0:
                    self._sleep(level, min(milliseconds / 1000, self._max_sleep))
                    return False
                try:
                    self._put(waiting[0])
                except PutError as error:
                    if error.status not in _HOPELESS:
                        self._retry_later(level, error)
                        return False
                    _report_skipped(level, waiting[0].offset, 1, str(error))
                else:
                    self._report_recovery(level)
                waiting.popleft()
                level.offset = waiting[0].offset if waiting else level.read_to
                self._moved.add(level)
                if time.perf_counter_ns() >= deadline:
                    return True

    def _milliseconds_until(self, level: _Level, message: _Waiting) -> int:
        """Return how long to sleep until a message is due; 0 or less if it is."""
        now = self._now()
        if message.due > self._delays.due(level.number, now // _NS_PER_MS):
            return 0
        # Rounded up: uvloop's timers have millisecond resolution and would be early.
        return -((now - message.due * _NS_PER_MS) // _NS_PER_MS)

    def _put(self, message: _Waiting) -> None:
        record = message.record
        self._store.put(
            self._store.tail(message.topic, message.queue_id),
            record.body,
            record.raw_properties,
            java_hash(record.properties.get(TAGS, "")),
            record.flag,
            record.sys_flag & ~HOST_MASK,
            record.born_timestamp,
            self._born_hosts[record.born_host],
            record.reconsume_times,
        )

    def _retry_later(self, level: _Level, error: PutError) -> None:
        if not level.retry_seconds:
            logger.error(
                "delay level %d: storing the due message at offset %d failed, retrying: %s; "
                "later messages of the level wait",
                level.number,
                level.offset,
                error,
            )
        level.retry_seconds = min(
            max(_FIRST_RETRY_SECONDS, 2 * level.retry_seconds), _MAX_RETRY_SECONDS
        )
        self._sleep(level, level.retry_seconds)

    def _report_recovery(self, level: _Level) -> None:
        if level.retry_seconds:
            level.retry_seconds = 0.0
            logger.info("delay level %d: delivery resumed", level.number)

    # Reading ahead

    def _read_ahead(self, level: _Level) -> bool:
        """Read the next messages; return False if there are none or a thread must read first."""
        while True:
            result = self._store.get(
                SCHEDULE_TOPIC,
                level.number - 1,
                level.read_to,
                _READ_AHEAD_MESSAGES,
                may_wait=level.brought_in < _MAX_BRING_INS,
            )
            if result.bring_in is not None:
                self._bring_in(level, result.bring_in)
                return False
            level.brought_in = 0
            if result.status in _READ:
                self._take(level, result)
                if level.waiting:
                    return True
                # All of them were skipped: serve other levels before reading on.
                level.offset = level.read_to
                self._moved.add(level)
                self._resume(level)
                return False
            if result.next_offset == level.read_to:
                level.idle = True
                return False
            logger.error(
                "delay level %d: offset %d is outside its queue (%d to %d): continuing at %d",
                level.number,
                level.read_to,
                result.min_offset,
                result.max_offset,
                result.next_offset,
            )
            level.offset = level.read_to = result.next_offset
            self._moved.add(level)

    def _bring_in(self, level: _Level, bring_in: Callable[[], None]) -> None:
        """Resume a level when a thread has brought its pages into memory."""

        async def read() -> None:
            try:
                await asyncio.to_thread(bring_in)
            except OSError as error:
                # Reading on the loop reports the same error, or finds that they have expired.
                logger.warning("delay level %d: reading ahead failed: %s", level.number, error)
            if self._running:
                self._resume(level)

        level.brought_in += 1
        task = asyncio.get_running_loop().create_task(read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, level: _Level, result: GetResult) -> None:
        """Decode the messages of the entries that can be read."""
        offset = level.read_to
        queue = self._store.queue(SCHEDULE_TOPIC, level.number - 1)
        entries = queue.read(offset, result.next_offset - offset)
        if queue.extension is not None:
            entries = queue.extension.resolve(entries)
        skipped: list[tuple[int, str]] = []
        for physical, size, due in iter_entries(entries):
            try:
                level.waiting.append(self._message(level, offset, physical, size, due))
            except ValueError as error:
                skipped.append((offset, str(error)))
            offset += 1
        level.read_to = result.next_offset
        if skipped:
            _report_skipped(level, skipped[0][0], len(skipped), skipped[0][1])

    def _message(self, level: _Level, offset: int, physical: int, size: int, due: int) -> _Waiting:
        """Return the message of an entry. Raises ValueError if it can never be delivered."""
        data = self._store.read_record(physical)
        if data is None or len(data) != size:
            raise RecordError(f"no record of {size} bytes at {physical} of the log")
        record = decode_record(data)
        if record.topic != SCHEDULE_TOPIC:
            raise RecordError(f"the record at {physical} of the log is of topic {record.topic}")
        if body_crc(record.body) != record.body_crc:
            raise RecordError(f"the body of the record at {physical} of the log is damaged")
        if is_address(due):
            # Its unit in the extension is lost: compute the time as the entry was written.
            due = self._delays.due(level.number, record.store_timestamp)
        topic = record.properties.get(REAL_TOPIC, "")
        fault = topic_fault(topic)
        if fault is not None:
            raise ValueError(f"{REAL_TOPIC} of the record at {physical} of the log: {fault}")
        if topic in (SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC):
            raise ValueError(f"the record at {physical} of the log is for {topic}")
        try:
            queue_id = parse_integer(record.properties.get(REAL_QUEUE_ID, ""), INT32)
        except ValueError as error:
            raise ValueError(
                f"{REAL_QUEUE_ID} of the record at {physical} of the log: {error}"
            ) from error
        if queue_id < 0:
            raise ValueError(f"{REAL_QUEUE_ID} of the record at {physical} is {queue_id}")
        return _Waiting(offset, due, record, topic, queue_id)


def _report_skipped(level: _Level, offset: int, count: int, reason: str) -> None:
    logger.error(
        "delay level %d: skipped %d undeliverable message(s) from offset %d on: %s",
        level.number,
        count,
        offset,
        reason,
    )
