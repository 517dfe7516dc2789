"""Delivers delayed messages: RocketMQ's ScheduleMessageService.

A delayed message waits in SCHEDULE_TOPIC_XXXX, in its level's queue, in whose entries the
time of delivery stands. When it is due, a copy goes to its real topic and queue. The copy
is the waiting record but for its topic, queue and store time: body, properties (DELAY,
REAL_TOPIC and REAL_QID among them), flag, sysFlag, born fields and reconsumeTimes stay,
and its entry has the hash of its tags, as after RocketMQ's messageTimeup.

Each level reads a few messages ahead, from the disk in a thread, and sleeps until the
first of them is due: no polling. All levels share turns of the loop of at most 2 ms, so a
million messages that are due at once delay a send by no more than that.

Invariants
1. Within a level, messages are delivered in the order of its queue.
2. Never early: not before the time in the entry. As in RocketMQ, a time farther away than
   the level's delay is one of a clock that was set back, or of a level whose delay was
   made shorter: such a message is due at once.
3. Never lost: a level's offset moves after the copy is written, and is saved after the copy
   is flushed (`state.delay_offsets`). After a cut of the power messages may come again.
4. A put that the store refuses for a while (a full disk) is tried again, later each time,
   and everything behind it in its level waits.

Where RocketMQ would stand still for ever, at a record that is none or whose properties name
no place, and at one that the store will never take, the message is passed over with a line
in the log. A real topic that was deleted meanwhile gets its message, as in RocketMQ: it is
there when the topic is made again.

Everything on the loop; only cold pages are brought in by threads. Not on replicas.
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

_TURN_NS: Final = 2_000_000
_READ_AHEAD: Final = 32
#: A clock that was set is noticed within so many seconds.
_LONGEST_SLEEP: Final = 1.0
#: After pages were brought in so often they are read where they are.
_BRING_IN_LIMIT: Final = 3
_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 5.0
#: How soon a level goes on after a mistake of ours.
_FAULT_SECONDS: Final = 10.0
_FLUSH_CHECK_SECONDS: Final = 0.2
_NS_PER_MS: Final = 1_000_000

_READ: Final = frozenset(
    {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_MESSAGE}
)
#: The store will not take such a message later either.
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


class _Waiting(NamedTuple):
    """A message that was read ahead."""

    offset: int
    #: Milliseconds since 1970.
    due: int
    record: MessageRecord
    topic: str
    queue_id: int


class _Level:
    """One delay level: where it stands and what it waits for."""

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
        #: The next message to deliver, and the next to read: between them are `waiting`.
        self.offset = self.read_to = offset
        self.waiting: deque[_Waiting] = deque()
        #: Nothing to deliver: the next message that is put wakes it.
        self.idle = False
        self.timer: asyncio.TimerHandle | None = None
        self.brought_in = 0
        self.retry_seconds = 0.0


class DelayService:
    """Delivers what is due, level by level."""

    def __init__(
        self,
        store: MessageStore,
        writer: MessageWriter,
        offsets: DelayOffsetTable,
        *,
        now: Callable[[], int] = time.time_ns,
        longest_sleep: float = _LONGEST_SLEEP,
    ) -> None:
        """`now` tells nanoseconds since 1970."""
        self._store = store
        self._writer = writer
        self._offsets = offsets
        self._delays = writer.delay_levels
        self._now = now
        self._longest_sleep = longest_sleep
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
        """Deliver from where the table says."""
        self._running = True
        self._levels = [
            _Level(number, self._offsets.get(number)) for number in range(1, len(self._delays) + 1)
        ]
        self._warn_of_lost_levels()
        self._writer.listen(self._arrived)
        for level in self._levels:
            self._go_on(level)
        self._saving = asyncio.get_running_loop().create_task(self._save_now_and_then())

    async def stop(self) -> None:
        """Deliver nothing more. What was delivered is in the table, which is the caller's."""
        self._running = False
        self._writer.listen(None)
        for level in self._levels:
            if level.timer is not None:
                level.timer.cancel()
        self._ready.clear()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        # Their threads read files: those must stay until they are done.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _warn_of_lost_levels(self) -> None:
        for queue in self._store.queues():
            if queue.topic != SCHEDULE_TOPIC or queue.queue_id < len(self._levels):
                continue
            waiting = queue.next_offset - max(self._offsets.get(queue.queue_id + 1), 0)
            if waiting > 0:
                logger.warning(
                    "%d messages of delay level %d wait until messageDelayLevel has such a "
                    "level again",
                    waiting,
                    queue.queue_id + 1,
                )

    async def _save_now_and_then(self) -> None:
        interval = self._store.config.flush_delay_offset_interval / 1000
        while True:
            await asyncio.sleep(interval)
            # The flush thread moves the mark.
            while not self._offsets.settle(self._store.flushed_offset):  # noqa: ASYNC110
                await asyncio.sleep(_FLUSH_CHECK_SECONDS)
            self._offsets.save_if_changed()

    # Turns of the loop

    def _arrived(self, number: int) -> None:
        """A message of this level was put; it can be read when the loop turns."""
        level = self._levels[number - 1]
        if level.idle:
            self._go_on(level)

    def _go_on(self, level: _Level) -> None:
        """Let a level have its part of the next turn."""
        level.timer = None
        level.idle = False
        self._ready.append(level)
        self._plan_turn()

    def _sleep(self, level: _Level, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        level.timer = loop.call_later(seconds, self._go_on, level)

    def _plan_turn(self) -> None:
        if not self._turn_is_coming:
            self._turn_is_coming = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Serve levels in turn until nothing is due or the time is over."""
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
                    "delay level %d: delivery failed at offset %d, tried again in %g s",
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
        """Write what was put in this turn, and only then count it as delivered.

        What fails here is counted with the next turn.
        """
        if self._moved:
            # With SYNC_FLUSH nobody waits for these: they were acknowledged long ago, and
            # their waiting records stay the truth until the copies are flushed.
            self._store.end_chunk()
            self._offsets.move(
                {level.number: level.offset for level in self._moved},
                self._store.max_physical_offset,
            )
            self._moved.clear()

    def _deliver(self, level: _Level, deadline: int) -> bool:
        """Deliver what is due, until `deadline`; whether there is more to do at once."""
        waiting = level.waiting
        while True:
            if not waiting and not self._read_ahead(level):
                return False
            while waiting:
                milliseconds = self._milliseconds_until(level, waiting[0])
                if milliseconds > 0:
                    self._sleep(level, min(milliseconds / 1000, self._longest_sleep))
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
        """How long to sleep until a message is due, in whole milliseconds; at most 0: it is."""
        now = self._now()
        if message.due > self._delays.due(level.number, now // _NS_PER_MS):
            return 0
        # Rounded up: uvloop's timers know only milliseconds, and would be early.
        return -((now - message.due * _NS_PER_MS) // _NS_PER_MS)

    def _put(self, message: _Waiting) -> None:
        record = message.record
        self._store.put(
            self._store.queue(message.topic, message.queue_id),
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
                "delay level %d: the message at offset %d is due but cannot be put: %s; "
                "it is tried again, those behind it wait",
                level.number,
                level.offset,
                error,
            )
        level.retry_seconds = min(max(_FIRST_RETRY, 2 * level.retry_seconds), _LONGEST_RETRY)
        self._sleep(level, level.retry_seconds)

    def _report_recovery(self, level: _Level) -> None:
        if level.retry_seconds:
            level.retry_seconds = 0.0
            logger.info("delay level %d: messages are delivered again", level.number)

    # Reading ahead

    def _read_ahead(self, level: _Level) -> bool:
        """Get the next messages; False when there are none, or a thread brings them in first."""
        while True:
            result = self._store.get(
                SCHEDULE_TOPIC,
                level.number - 1,
                level.read_to,
                _READ_AHEAD,
                may_wait=level.brought_in < _BRING_IN_LIMIT,
            )
            if result.bring_in is not None:
                self._bring_in(level, result.bring_in)
                return False
            level.brought_in = 0
            if result.status in _READ:
                self._take(level, result)
                if level.waiting:
                    return True
                # All of them were passed over: others must have their turn between.
                level.offset = level.read_to
                self._moved.add(level)
                self._go_on(level)
                return False
            if result.next_offset == level.read_to:
                level.idle = True
                return False
            logger.error(
                "delay level %d: offset %d is not in its queue, which has %d to %d: %d is next",
                level.number,
                level.read_to,
                result.min_offset,
                result.max_offset,
                result.next_offset,
            )
            level.offset = level.read_to = result.next_offset
            self._moved.add(level)

    def _bring_in(self, level: _Level, bring_in: Callable[[], None]) -> None:
        """Go on with a level when its pages are in memory."""

        async def read() -> None:
            try:
                await asyncio.to_thread(bring_in)
            except OSError as error:
                # Read where they are, they tell the same; or they have expired meanwhile.
                logger.warning("delay level %d: reading ahead failed: %s", level.number, error)
            if self._running:
                self._go_on(level)

        level.brought_in += 1
        task = asyncio.get_running_loop().create_task(read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, level: _Level, result: GetResult) -> None:
        """Make messages of the entries that were found to be readable."""
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
        """The message of an entry. Raises ValueError for one that can never be delivered."""
        data = self._store.read_record(physical)
        if data is None or len(data) != size:
            raise RecordError(f"no record of {size} bytes at {physical} of the log")
        record = decode_record(data)
        if record.topic != SCHEDULE_TOPIC:
            raise RecordError(f"the record at {physical} of the log is of topic {record.topic}")
        if body_crc(record.body) != record.body_crc:
            raise RecordError(f"the body of the record at {physical} of the log is damaged")
        if is_address(due):
            # Its unit of the extension is lost: as the entry was made.
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
        "delay level %d: %d message(s) from offset %d on cannot be delivered, passed over: %s",
        level.number,
        count,
        offset,
        reason,
    )
