"""Asks producers about transactions that stay open, and gives up those that nobody ends.

A round looks at the open halves (`state.transactions`), oldest first, as far as they were
stored when it began. One that is old enough is put back at the end of its queue and a live
member of its producer group is asked (CHECK_TRANSACTION_STATE); the answer is an
END_TRANSACTION. After `transactionCheckMax` questions, or when it was sent longer ago than
messages are kept, a half goes to TRANS_CHECK_MAX_TIME_TOPIC, where an administrator finds it.

Invariants
1. All state is in the two queues and in the offsets of the group CID_RMQ_SYS_TRANS, which
   are RocketMQ's: a restart, also of Java's broker on the same store, goes on from there.
   They are committed when what they count as done is on the disk, so that a cut of the
   power loses no transaction; a crash in the middle of a round may ask a producer twice.
2. A half is passed where it stood only after it was put back or given up, in the same turn.
3. A producer is asked about a half only when that is stored, and, while it does not read
   what it was sent, about no more of them.
4. One turn on the loop handles few halves; those that are not in memory are read in a lane.
5. Halves that nobody can be asked about, such as those of a producer that never sends
   heartbeats, are counted (`without_producer`) and in the log once for each group and round.

In one round RocketMQ would also give up, unheard, what it has just asked for the last time,
and starts over without end at a half that cannot be put back; here it is given up.

Runs on the loop, but for `load`, which reads in a thread before anything is served.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

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
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.store.queues.consume_queue import split_entries
from pyromq.store.results import PutError, PutStatus

logger = logging.getLogger(__name__)

_HALF_QUEUES: Final = 1
#: So many halves are handled at most, and for so long, before the loop turns.
_TURN: Final = 64
_TURN_SECONDS: Final = 0.001
#: So many records are read in one go at the start.
_LOAD_PIECE: Final = 4096
#: How long a round waits for a producer that does not read.
_CONGESTION_SECONDS: Final = 1.0
_CONGESTION_POLL_SECONDS: Final = 0.01
#: Why nobody can be asked about halves that no client has sent as they are.
_NO_QUESTION: Final = "the half lacks what a question needs"
#: Reasons why nobody can be asked that are told apart in a round, and that it logs.
_MAX_REASONS: Final = 1000
_MAX_REASONS_LOGGED: Final = 5
#: Put errors that come again whenever it is tried.
_HOPELESS: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


@dataclass(slots=True)
class _Round:
    """One look at all open halves."""

    now: int
    #: Halves from here on are left to the next round.
    end: int
    asked: int = 0
    left: int = 0
    given_up: int = 0
    #: Producers that do not read.
    stuck: set[ClientConnection] = field(default_factory=set)
    #: Why nobody can be asked about some halves: of each reason how many, and the first.
    orphans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note_orphan(self, reason: str, half: int) -> None:
        """Nobody can be asked about a half."""
        if reason not in self.orphans and len(self.orphans) >= _MAX_REASONS:
            reason = "for other reasons"
        count, first = self.orphans.get(reason, (0, half))
        self.orphans[reason] = count + 1, first

    @property
    def without_producer(self) -> int:
        """How many halves nobody can be asked about."""
        return sum(count for count, _ in self.orphans.values())


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far both queues were done with when the log ended there."""

    log_end: int
    half_offset: int
    op_offset: int


@dataclass(slots=True)
class _Question:
    """To be sent when the half that was put back is stored."""

    group: str
    half: int
    origin: int
    command: RemotingCommand


class TransactionCheck:
    """Keeps transactions from staying open."""

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
        self._task: asyncio.Task[None] | None = None
        #: Halves of the last round that nobody could be asked about.
        self.without_producer = 0
        #: Progress that is committed when the log is flushed up to where it was then.
        self._unflushed: _Progress | None = None

    # Life

    async def load(self) -> None:
        """Learn from the store which transactions are open. Before the first request."""
        half_end = self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE)
        table = self._transactions
        table.begin(
            self._first(TRANSACTION_HALF_TOPIC, HALF_QUEUE),
            self._first(TRANSACTION_OP_TOPIC, OP_QUEUE),
        )
        for end in await asyncio.to_thread(self._read_ends, table.op_offset):
            # One without a half still counts as one of its queue, and is done with.
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
                "%d transactions are open, the oldest half is %d",
                len(open_halves),
                table.half_offset,
            )

    def start(self) -> None:
        """Begin with the rounds."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the rounds; what is under way is stored or left to the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.transaction_check_interval / 1000)
            try:
                await self.check()
            except Exception:
                logger.exception("a round over open transactions failed, the next one goes on")

    def note_progress(self) -> None:
        """Commit how far both queues are done with, as far as that is on the disk.

        Else a cut of the power could take a half that was put back, where the one before it
        counts as done with. Called now and then: what it sees is committed by a later call.
        """
        self.settle(self._store.flushed_offset)
        if self._unflushed is None:
            self._unflushed = self._progress()

    def settle(self, flushed: int) -> None:
        """Commit what was seen, when the log is flushed up to there."""
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
        """Commit what there is, once the store has stopped."""
        self.settle(flushed)
        self._unflushed = self._progress()
        self.settle(flushed)

    def _progress(self) -> _Progress:
        table = self._transactions
        return _Progress(self._store.max_physical_offset, table.half_offset, table.op_offset)

    # A round

    async def check(self) -> None:
        """Look at every open half once."""
        # Only for those who list topics: RocketMQ's broker has it since its first round.
        self._topics.create_for_send_back(TRANSACTION_HALF_TOPIC, _HALF_QUEUES)
        self._store.seal()
        current = _Round(self._now(), self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE))
        try:
            goes_on = True
            while goes_on:
                goes_on = await self._turn(current)
                await asyncio.sleep(0)  # others' turn
        finally:
            if current.asked or current.left or current.given_up:
                logger.info(
                    "transactions: asked about %d, left %d, gave up %d, the oldest open half is %d",
                    current.asked,
                    current.left,
                    current.given_up,
                    self._transactions.half_offset,
                )
            self.without_producer = current.without_producer
            _log_orphans(current)

    async def _turn(self, current: _Round) -> bool:
        """Handle some halves; False when none are left, or those that are must wait."""
        questions: list[_Question] = []
        goes_on = True
        loop = asyncio.get_running_loop()
        over = loop.time() + _TURN_SECONDS
        for _ in range(_TURN):
            # Whatever is handled is passed, so that the next one is always the first.
            offset = self._transactions.half_offset
            goes_on = offset < current.end and await self._handle(offset, current, questions)
            if not goes_on or loop.time() > over:
                break
        await self._writer.stored()
        used = {self._ask(one, current) for one in questions}
        for connection in used:
            if connection is not None and connection.congested:
                await self._wait_for(connection, current)
        return goes_on

    async def _handle(self, offset: int, current: _Round, questions: list[_Question]) -> bool:
        """Put a half back or give it up; False when it must wait."""
        half = await self._read(offset)
        if not self._transactions.is_open(offset):
            return True  # ended, while it was read, or expired
        if half is None:
            logger.error("half %d cannot be read: its transaction is lost", offset)
            self._transactions.give_up(offset, offset)
            return True
        origin = origin_of(half)
        if self._transactions.is_ended(offset, origin):
            # An end came that named only what this half was made of.
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
                logger.error("half %d cannot be put back, tried again later: %s", offset, error)
                return False
            logger.error("half %d cannot be put back: %s", offset, error)
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
                logger.error("nobody can be asked about half %d: %.200s", offset, error)
            current.note_orphan(_NO_QUESTION, offset)
        else:
            questions.append(_Question(producer_group(half), renewed.offset, origin, command))
        return True

    def _give_up(self, half: MessageRecord, current: _Round) -> bool:
        """Move a half to where administrators look; False when that must wait."""
        topic = self._topics.create_for_send_back(TRANSACTION_GIVEN_UP_TOPIC, GIVEN_UP_QUEUES)
        message: InnerMessage = given_up(half)
        try:
            stored = self._writer.put(message)
        except PutError as error:
            if error.status not in _HOPELESS:
                logger.error("half %d cannot be given up now: %s", half.queue_offset, error)
                return False
            logger.error("half %d is dropped: %s", half.queue_offset, error)
        else:
            logger.warning(
                "half %d of group %s, born at %d, is given up after %d questions: "
                "it is message %d of topic %s",
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
        """Send a question to a member of the group; its connection."""
        if self._transactions.is_ended(asked.half, asked.origin):
            return None  # meanwhile
        connection = self._producers.pick(asked.group)
        for _ in current.stuck:
            if connection in current.stuck:
                connection = self._producers.pick(asked.group)
        if connection is None or connection in current.stuck:
            current.note_orphan(f"no producer of group {asked.group:.255} is there", asked.half)
            return None
        connection.send(asked.command)
        current.asked += 1
        return connection

    async def _wait_for(self, connection: ClientConnection, current: _Round) -> None:
        """Let a producer read what it was sent; ask it nothing more if it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CONGESTION_SECONDS
        while connection.congested and not connection.closed:
            if loop.time() > deadline:
                logger.warning("producer %s does not read questions", connection.remote_address)
                current.stuck.add(connection)
                return
            await asyncio.sleep(_CONGESTION_POLL_SECONDS)

    # Reading

    def _first(self, topic: str, queue_id: int) -> int:
        """Where the group goes on in a queue, within what the queue has."""
        committed = self._offsets.query(TRANSACTION_GROUP, topic, queue_id)
        first = self._store.min_offset(topic, queue_id) or 0
        end = self._store.max_offset(topic, queue_id)
        return first if committed is None else min(max(committed, first), end)

    async def _read(self, offset: int) -> MessageRecord | None:
        """The half at a queue offset; None when it is not there. Expired ones are passed."""
        queue = self._store.queue(TRANSACTION_HALF_TOPIC, HALF_QUEUE)
        if offset < queue.min_offset:
            logger.warning("halves %d to %d have expired", offset, queue.min_offset - 1)
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
        """In a thread: the halves that all ends from this one on name."""
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
        """In a thread: each of these halves with its origin."""
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
        """Physical offsets of the next messages of a queue."""
        entries = self._store.queue(topic, queue_id).read(first, _LOAD_PIECE)
        return split_entries(entries)[0] if entries else ()


def _log_orphans(current: _Round) -> None:
    """One line for each of the reasons that most halves have."""
    reasons = sorted(current.orphans.items(), key=lambda item: -item[1][0])
    for reason, (count, first) in reasons[:_MAX_REASONS_LOGGED]:
        logger.warning(
            "nobody can be asked about %d halves, the first is %d: %s", count, first, reason
        )
    others = reasons[_MAX_REASONS_LOGGED:]
    if others:
        logger.warning(
            "nobody can be asked about %d other halves, for %d other reasons",
            sum(count for _, (count, _) in others),
            len(others),
        )


def _half(data: bytes | None) -> MessageRecord | None:
    if data is None:
        return None
    try:
        return decode_record(data)
    except RecordError as error:
        logger.error("a record of a transaction cannot be read: %s", error)
        return None
