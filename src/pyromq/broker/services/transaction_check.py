"""Asks producers about open transactions, and abandons those that nobody ends.

A round visits the open halves (`state.transactions`) that were stored when it began, oldest first.
A half that is old enough is put back at the end of its queue, and a connected member of its
producer group is asked (CHECK_TRANSACTION_STATE); the answer is an END_TRANSACTION. After
`transactionCheckMax` questions, or when it is older than the retention time, a half goes to
TRANS_CHECK_MAX_TIME_TOPIC, where an administrator finds it.

Invariants
1. All state is in the two queues and in the offsets of the group CID_RMQ_SYS_TRANS, as in RocketMQ:
   a restart, even with Java's broker on the same store, resumes from there. Offsets are committed
   after the records that they depend on are fsynced, so a power cut loses no transaction; a crash
   during a round may ask a producer twice.
2. The old position of a half is passed only after the half was put back or abandoned, in the same
   step.
3. A producer is asked about a half only after it is stored. While a producer does not read, it is
   not asked about further halves.
4. Each step on the loop handles a few halves; cold ones are read in a lane.
5. Halves that nobody can be asked about, such as those of a producer that never sends heartbeats,
   are counted (`without_producer`) and logged once per group and round.

RocketMQ abandons a half in the same round as its last question, without waiting for the answer, and
loops forever at a half that cannot be put back; here such a half is abandoned.

Runs on the loop, except for `load`, which reads in a thread before messages are accepted. Runs only
while the broker is a master; a promoted replica loads what its master left in the log.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.inner_messages import InnerMessage
from pyromq.broker.parts import BrokerParts
from pyromq.broker.state.connections import ClientConnection
from pyromq.broker.transaction_messages import (
    GIVEN_UP_QUEUES,
    HALF_QUEUE,
    OP_QUEUE,
    HalfError,
    Verdict,
    checks_of,
    ended_half,
    given_up,
    judge,
    origin_of,
    producer_group,
    put_back,
    question,
)
from pyromq.protocol.message.record import MessageRecord, RecordError, decode_record
from pyromq.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from pyromq.protocol.wire.frame import RemotingCommand, RequestError
from pyromq.store.queues.consume_queue import split_entries
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)

_HALF_QUEUES: Final = 1
#: Caps on one step: halves, and time on the loop.
_MAX_STEP_HALVES: Final = 64
_MAX_STEP_SECONDS: Final = 0.001
#: Consume-queue entries per read at the start.
_ENTRIES_PER_READ: Final = 4096
#: How long a round waits for a producer that does not read.
_CONGESTION_SECONDS: Final = 1.0
_CONGESTION_POLL_SECONDS: Final = 0.01
#: Why nobody can be asked about halves that no client has sent as they are.
_NO_QUESTION: Final = "the half lacks properties that a question needs"
#: Distinct reasons that a round counts, and that it logs.
_MAX_REASONS: Final = 1000
_MAX_REASONS_LOGGED: Final = 5
#: Put errors that no retry can change.
_HOPELESS: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


@dataclass(slots=True)
class _Round:
    """One pass over all open halves."""

    now: int
    #: Halves from this offset on are left to the next round.
    end: int
    asked: int = 0
    left: int = 0
    given_up: int = 0
    #: Producers that do not read.
    stuck: set[ClientConnection] = field(default_factory=set)
    #: Halves that nobody can be asked about: by reason, how many and the first.
    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note_orphan(self, reason: str, half: int) -> None:
        """Count a half that nobody can be asked about."""
        if reason not in self.orphans and len(self.orphans) >= _MAX_REASONS:
            reason = "for other reasons"
        count, first = self.orphans.get(reason, (0, half))
        self.orphans[reason] = count + 1, first

    @property
    def without_producer(self) -> int:
        """Return how many halves nobody can be asked about."""
        return sum(count for count, _ in self.orphans.values())


@dataclass(frozen=True, slots=True)
class _Progress:
    """The processed offsets of both queues when the log ended at `log_end`."""

    log_end: int
    half_offset: int
    op_offset: int


@dataclass(slots=True)
class _Question:
    """A question, sent when the half that was put back is stored."""

    group: str
    half: int
    origin: int
    command: RemotingCommand


class TransactionCheck:
    """Checks open transactions until they end or are abandoned."""

    def __init__(self, parts: BrokerParts) -> None:
        self._config = parts.config
        self._store = parts.store
        self._writer = parts.writer
        self._transactions = parts.tables.transactions
        self._topics = parts.tables.topics
        self._offsets = parts.tables.offsets
        self._producers = parts.tables.producers
        self._lane = parts.lanes.end_transaction
        self._store_host = parts.store_host
        self._now = parts.clock
        self._rounds = PeriodicTasks()
        #: Halves of the last round that nobody could be asked about.
        self.without_producer = 0
        #: Whether the table is that of the log. Not on a replica, whose log grows without it.
        self._is_loaded = False
        #: Progress that is committed when the log is fsynced up to its `log_end`.
        self._unflushed: _Progress | None = None

    # Lifecycle

    async def load(self) -> None:
        """Find the open transactions in the store, before the first message is accepted."""
        half_end = self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE)
        table = self._transactions
        table.begin(
            self._first(TRANSACTION_HALF_TOPIC, HALF_QUEUE),
            self._first(TRANSACTION_OP_TOPIC, OP_QUEUE),
        )
        for end in await asyncio.to_thread(self._read_ends, table.op_offset):
            # An end without a half still occupies a place in its queue and is processed.
            known = end is not None and 0 <= end < half_end
            table.end_stored(end if known and end is not None else -1)
        open_halves = []
        offset = table.next_open(0)
        while offset < half_end:
            open_halves.append(offset)
            offset = table.next_open(offset + 1)
        origins = await asyncio.to_thread(self._read_origins, open_halves)
        for half, origin in origins:
            if origin != half and table.is_open(half):
                table.found_again(half, origin)
        if open_halves:
            logger.info(
                "%d open transactions, the oldest half is %d",
                len(open_halves),
                table.half_offset,
            )
        self._is_loaded = True

    def forget(self) -> None:
        """Forget the open transactions: from now on the log grows by a master's bytes."""
        self._is_loaded = False
        self._unflushed = None
        self.without_producer = 0
        self._transactions.begin(0, 0)

    def start(self) -> None:
        """Start the rounds."""
        self._rounds.start(
            lambda: self._config.transaction_check_interval / 1000,
            self.check,
            name="transaction check",
        )

    async def stop(self) -> None:
        """Stop the rounds. Work in progress is stored or left to the next start."""
        await self._rounds.stop()

    def note_progress(self) -> None:
        """Commit the progress in both queues as far as it is fsynced; called periodically.

        Otherwise a power cut could lose a half that was put back while its old position counts as
        processed. A call notes the current progress, and a later call commits it.
        """
        self.settle(self._store.flushed_offset)
        if self._unflushed is None and self._is_loaded:
            self._unflushed = self._progress()

    def settle(self, flushed: int) -> None:
        """Commit the noted progress if the log is fsynced up to it."""
        seen = self._unflushed
        if seen is None or flushed < seen.log_end:
            return
        self._unflushed = None
        for topic, queue_id, offset in (
            (TRANSACTION_HALF_TOPIC, HALF_QUEUE, seen.half_offset),
            (TRANSACTION_OP_TOPIC, OP_QUEUE, seen.op_offset),
        ):
            before = self._offsets.query(TRANSACTION_GROUP, topic, queue_id)
            if before != offset and (offset or before is not None):
                self._offsets.commit(
                    TRANSACTION_GROUP, topic, queue_id, offset, remote_address="the broker itself"
                )

    def settle_all(self, flushed: int) -> None:
        """Commit all progress, after the last message was stored."""
        self.settle(flushed)
        if self._is_loaded:
            self._unflushed = self._progress()
            self.settle(flushed)

    def _progress(self) -> _Progress:
        table = self._transactions
        return _Progress(self._store.put_end, table.half_offset, table.op_offset)

    # A round

    async def check(self) -> None:
        """Run one round."""
        # Only for topic lists: RocketMQ's broker creates this topic in its first round.
        self._topics.create_for_send_back(TRANSACTION_HALF_TOPIC, _HALF_QUEUES)
        self._store.seal()
        current = _Round(self._now(), self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE))
        try:
            more = True
            while more:
                more = await self._step(current)
                await asyncio.sleep(0)
        finally:
            if current.asked or current.left or current.given_up:
                logger.info(
                    "transaction check: asked about %d, left %d, abandoned %d, oldest open half %d",
                    current.asked,
                    current.left,
                    current.given_up,
                    self._transactions.half_offset,
                )
            self.without_producer = current.without_producer
            _log_orphans(current)

    async def _step(self, current: _Round) -> bool:
        """Handle some halves; return False if none are left or the rest must wait."""
        questions: list[_Question] = []
        more = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _MAX_STEP_SECONDS
        for _ in range(_MAX_STEP_HALVES):
            # A handled half is passed, so the next one is always the first.
            offset = self._transactions.half_offset
            more = offset < current.end and await self._handle(offset, current, questions)
            if not more or loop.time() > deadline:
                break
        try:
            await self._writer.stored()
        except RequestError as error:  # a raft group has not agreed: its next leader continues
            logger.warning("transaction check stopped: %s", error)
            return False
        used = {self._ask(one, current) for one in questions}
        for connection in used:
            if connection is not None and connection.congested:
                await self._wait_for(connection, current)
        return more

    async def _handle(self, offset: int, current: _Round, questions: list[_Question]) -> bool:
        """Put a half back or abandon it; return False if it must wait."""
        half = await self._read(offset)
        if not self._transactions.is_open(offset):
            return True  # ended while it was read, or expired
        if half is None:
            logger.error(
                "half %d cannot be read, its transaction is lost: stop the broker and run "
                "`pyromq store check`",
                offset,
            )
            self._transactions.give_up(offset, offset)
            return True
        origin = origin_of(half)
        if self._transactions.is_ended(offset, origin):
            # Its end named the half that it is a copy of.
            self._transactions.give_up(offset, origin)
            return True
        config = self._config
        verdict = judge(
            half,
            current.now,
            time_out=config.transaction_time_out,
            check_max=config.transaction_check_max,
            reserved_hours=self._store.config.file_reserved_time,
        )
        if verdict is Verdict.WAIT:
            return False
        if verdict is Verdict.GIVE_UP:
            return self._give_up(half, current)
        checks = checks_of(half) + (verdict is Verdict.ASK)
        try:
            renewed = self._writer.put(put_back(half, checks=checks))
            self._transactions.put_back(offset, origin, renewed.offset)
        except PutError as error:
            if error.status not in _HOPELESS:
                logger.error("putting back half %d failed, retrying later: %s", offset, error)
                return False
            logger.error("putting back half %d failed, abandoning it: %s", offset, error)
            return self._give_up(half, current)
        if verdict is Verdict.LEAVE:
            current.left += 1
            return True
        try:
            command = question(
                half, renewed.offset, renewed.physical, self._store_host, checks=checks
            )
        except (HalfError, RecordError) as error:
            if _NO_QUESTION not in current.orphans:
                logger.error(
                    "question about half %d not built, it stays open: %.200s", offset, error
                )
            current.note_orphan(_NO_QUESTION, offset)
        else:
            questions.append(_Question(producer_group(half), renewed.offset, origin, command))
        return True

    def _give_up(self, half: MessageRecord, current: _Round) -> bool:
        """Move a half to the topic of abandoned ones; return False if that must wait."""
        topic = self._topics.create_for_send_back(TRANSACTION_GIVEN_UP_TOPIC, GIVEN_UP_QUEUES)
        message: InnerMessage = given_up(half)
        try:
            stored = self._writer.put(message)
        except PutError as error:
            if error.status not in _HOPELESS:
                logger.error("abandoning half %d failed, retrying: %s", half.queue_offset, error)
                return False
            logger.error("half %d dropped, its transaction is lost: %s", half.queue_offset, error)
        else:
            logger.warning(
                "abandoned half %d of group %s, born at %d, after %d questions: "
                "stored as message %d of topic %s",
                half.queue_offset,
                producer_group(half),
                half.born_timestamp,
                checks_of(half),
                stored.offset,
                topic.topic_name,
            )
        self._transactions.give_up(half.queue_offset, origin_of(half))
        current.given_up += 1
        return True

    def _ask(self, asked: _Question, current: _Round) -> ClientConnection | None:
        """Send a question to a member of the group; return its connection."""
        if self._transactions.is_ended(asked.half, asked.origin):
            return None  # meanwhile
        connection = self._producers.pick(asked.group)
        for _ in current.stuck:
            if connection in current.stuck:
                connection = self._producers.pick(asked.group)
        if connection is None or connection in current.stuck:
            current.note_orphan(f"no producer of group {asked.group:.255} is connected", asked.half)
            return None
        connection.send(asked.command)
        current.asked += 1
        return connection

    async def _wait_for(self, connection: ClientConnection, current: _Round) -> None:
        """Wait until a producer reads its questions; stop asking it if it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONGESTION_SECONDS
        while connection.congested and not connection.closed:
            if loop.time() > deadline:
                logger.warning(
                    "producer %s does not read questions about its transactions: it gets no more "
                    "in this round",
                    connection.remote_address,
                )
                current.stuck.add(connection)
                return
            await asyncio.sleep(_CONGESTION_POLL_SECONDS)

    # Reading

    def _first(self, topic: str, queue_id: int) -> int:
        """Return the committed offset of a queue, moved into the queue's range."""
        committed = self._offsets.query(TRANSACTION_GROUP, topic, queue_id)
        first = self._store.min_offset(topic, queue_id) or 0
        end = self._store.max_offset(topic, queue_id)
        return first if committed is None else min(max(committed, first), end)

    async def _read(self, offset: int) -> MessageRecord | None:
        """Return the half at a queue offset, or None. Passes expired ones."""
        queue = self._store.queue(TRANSACTION_HALF_TOPIC, HALF_QUEUE)
        if offset < queue.min_offset:
            logger.warning(
                "halves %d to %d expired before their transactions ended: raise fileReservedTime",
                offset,
                queue.min_offset - 1,
            )
            self._transactions.pass_to(queue.min_offset)
            return None
        entry = queue.entry(offset)
        if entry is None:
            return None
        physical = entry.physical_offset
        if self._store.is_cold(physical):
            data = await self._lane.run(lambda: self._store.fetch_record(physical))
        else:
            data = self._store.read_record(physical)
        return _half(data)

    def _read_ends(self, first: int) -> list[int | None]:
        """Return the halves that the ends from `first` on name; in a thread."""
        queue_end = self._store.max_offset(TRANSACTION_OP_TOPIC, OP_QUEUE)
        ends: list[int | None] = []
        while first < queue_end:
            physicals = self._places(TRANSACTION_OP_TOPIC, OP_QUEUE, first)
            if not physicals:
                break
            for physical in physicals:
                record = _half(self._store.read_record(physical))
                ends.append(None if record is None else ended_half(record))
            first += len(physicals)
        return ends

    def _read_origins(self, halves: list[int]) -> list[tuple[int, int]]:
        """Return each of these halves with its origin; in a thread."""
        queue = self._store.queue(TRANSACTION_HALF_TOPIC, HALF_QUEUE) if halves else None
        origins = []
        for half in halves:
            entry = queue.entry(half) if queue is not None else None
            record = (
                _half(self._store.read_record(entry.physical_offset)) if entry is not None else None
            )
            if record is not None:
                origins.append((half, origin_of(record)))
        return origins

    def _places(self, topic: str, queue_id: int, first: int) -> tuple[int, ...]:
        """Return the physical offsets of the next messages of a queue."""
        entries = self._store.queue(topic, queue_id).read(first, _ENTRIES_PER_READ)
        return split_entries(entries)[0] if entries else ()


def _log_orphans(current: _Round) -> None:
    """Log one line for each of the most frequent reasons."""
    reasons = sorted(current.orphans.items(), key=lambda item: -item[1][0])
    for reason, (count, first) in reasons[:_MAX_REASONS_LOGGED]:
        logger.warning(
            "no producer to ask about %d halves, the first is %d: %s", count, first, reason
        )
    others = reasons[_MAX_REASONS_LOGGED:]
    if others:
        logger.warning(
            "no producer to ask about %d other halves, for %d other reasons",
            sum(count for _, (count, _) in others),
            len(others),
        )


def _half(data: bytes | None) -> MessageRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except RecordError as error:
        logger.error("record of a transaction is damaged and left out: %s", error)
        return None
