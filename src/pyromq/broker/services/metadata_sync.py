"""Copies the tables of a replica's master: RocketMQ's SlaveSynchronize.

Every ten seconds, and at once when the master's address becomes known or changes, or when the first
messages of a queue arrive:

| step | request | effect |
| --- | --- | --- |
| topics | GET_ALL_TOPIC_CONFIG | with another version, table and version are replaced |
| deleted topics | GET_ALL_TOPIC_DELETION | their queues and offsets are removed |
| consumer groups | GET_ALL_SUBSCRIPTIONGROUP_CONFIG | as topics |
| consumer offsets | GET_ALL_CONSUMER_OFFSET | each pair is replaced; pairs the master lacks stay |
| SQL92 filters | GET_ALL_CONSUMER_FILTER | replaced, except for groups with members here |
| progress | GET_ALL_DELAY_OFFSET, GET_BROKER_RUNTIME_INFO | `services.copied_progress` |

The master may be RocketMQ's, which has neither the second nor the fifth request. Its replica keeps
the queues of a deleted topic, and spoils them when the topic is recreated. Here, a topic that
vanished from its table counts as deleted at the time of the table's version. A topic that it
deletes and recreates between two rounds is not noticed: a queue shows its old messages until its
first new one, whose offset 0 empties it (`store.recovery.dispatch`).

Invariants
1. A step fails alone, and changes all of its table or nothing. It is logged once until it recovers.
2. An answer is validated before it changes anything (`state.copied_tables`); tables apply their
   own limits.
3. Progress never exceeds what the replica's own log holds.
4. Nothing is copied from an unknown address or from the broker itself.

All requests go to the master's main port. They are signed if `replicationAccessKey` is set.

Owned by the broker of a replica. Runs on the loop; answers are decoded in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.config import BrokerConfig
from pyromq.broker.services.copied_progress import CopiedProgress, ProgressStore
from pyromq.broker.state.copied_tables import (
    SEPARATOR,
    CopyError,
    copied_delay_offsets,
    copied_groups,
    copied_offsets,
    copied_topics,
)
from pyromq.broker.state.deleted_topics import Deletion, Log, copied_deletions
from pyromq.broker.state.filters import copied_filters
from pyromq.broker.state.tables import BrokerTables
from pyromq.protocol.java.wire_types import INT64, parse_integer
from pyromq.protocol.names import TOPICS_WITH_PROGRESS
from pyromq.protocol.wire import acl, large_bodies
from pyromq.protocol.wire.bodies import KVTable
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.errors import RemotingError
from pyromq.remoting.requester import Requester

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
#: How long the master has for each answer.
TIMEOUT_SECONDS: Final = 3.0
#: How soon a new address of the master is noticed.
_POLL_SECONDS: Final = 1.0
#: A master that does not know pyromq's requests gets them again after this many rounds: it may
#: have been replaced by pyromq at the same address.
_ROUNDS_WITHOUT_PRIVATE: Final = 60
#: Pairs of offsets that are taken over in one loop iteration.
_MAX_PAIRS_PER_ITERATION: Final = 4096

T = TypeVar("T")


class ReplicaStore(Log, ProgressStore, Protocol):
    """The part of the replica's store that the copy uses."""

    @property
    def queue_count(self) -> int:
        """Return the number of consume queues."""


class MetadataSync:
    """Keeps the tables of one replica equal to those of its master."""

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        store: ReplicaStore,
        client: Requester,
        *,
        master_address: Callable[[], str | None],
        own_address: str,
        interval: float = INTERVAL_SECONDS,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """`master_address` returns where clients reach the master now, None if that is unknown.

        `own_address` is where they reach this broker. `interval` and `timeout` are in seconds.
        """
        self._config = config
        self._tables = tables
        self._store = store
        self._client = client
        self._master_address = master_address
        self._own_address = own_address
        self._interval = interval
        self._timeout = timeout
        self._progress = CopiedProgress(tables.delay_offsets, tables.offsets, store)
        self._steps = (
            _Step("topics", self._copy_topics),
            _Step("deleted topics", self._copy_deletions),
            _Step("consumer groups", self._copy_groups),
            _Step("consumer offsets", self._copy_offsets),
            _Step("SQL92 filters", self._copy_filters),
            _Step("progress", self._copy_progress),
            _Step("settled progress", self._settle_progress),
        )
        self._periodic = PeriodicTasks()
        #: Held by the round in progress.
        self._round = asyncio.Lock()
        #: When the next round is due, by the clock of the loop.
        self._due = 0.0
        #: The number of the store's queues in the last round.
        self._queue_count = 0
        #: The master of the last round, and what is known about it.
        self._master: str | None = None
        self._seen: dict[RequestCode, _Seen] = {}
        self._rounds_without: dict[RequestCode, int] = {}
        #: Topics that vanished from the master's table, with the time of that table's version.
        self._vanished: dict[str, int] = {}
        self._transactions: dict[str, dict[int, int]] = {}
        #: The pairs of the last copy of the offsets.
        self._pieces = frozenset[int]()
        #: Steps whose failure is logged, and the most entries that each answer made us leave out.
        self._failed: set[str] = set()
        self._left_out: dict[RequestCode, int] = {}

    def start(self) -> None:
        """Copy as soon as the master's address is known, then periodically."""
        self._periodic.start(_POLL_SECONDS, self._copy_if_due, first=0.0, name="metadata sync")

    async def stop(self) -> None:
        """Stop copying, and take over the progress that the log has reached. Idempotent.

        A promotion stops the copy before it starts the delivery of delayed messages and the check
        of transactions, which resume from this progress.
        """
        await self._periodic.stop()
        async with self._round:
            await self._run(_Step("settled progress", self._settle_progress), self._master or "")

    async def sync_now(self) -> list[str]:
        """Copy everything once; return a message for each step that failed."""
        async with self._round:
            address = self._address()
            if address is None:
                return ["the address of the master is unknown"]
            self._due = asyncio.get_running_loop().time() + self._interval
            self._queue_count = self._store.queue_count
            if address != self._master:
                self._begin_with(address)
            faults = [await self._run(step, address) for step in self._steps]
            return [fault for fault in faults if fault is not None]

    async def _copy_if_due(self) -> None:
        address = self._address()
        is_due = asyncio.get_running_loop().time() >= self._due
        # Messages of a new topic have arrived: their consumers should find it here too.
        is_due |= self._store.queue_count > self._queue_count
        if address is not None and (is_due or address != self._master):
            await self.sync_now()

    def _address(self) -> str | None:
        address = self._master_address()
        return None if not address or address == self._own_address else address

    def _begin_with(self, address: str) -> None:
        """Forget what only the last master meant."""
        logger.info("copying topics, groups and offsets from master %s", address)
        self._master = address
        self._seen.clear()
        self._rounds_without.clear()
        self._vanished.clear()
        self._transactions = {}
        self._progress.forget()

    async def _run(self, step: _Step, address: str) -> str | None:
        """Run a step; return why it failed, or None."""
        try:
            await step.run(address)
        except Exception as error:
            fault = f"copying {step.name} from master {address} failed: {error}"
            if step.name not in self._failed:
                expected = isinstance(error, RemotingError | _RefusedError | ValueError)
                logger.warning(
                    "%s; retrying every %g s", fault, self._interval, exc_info=not expected
                )
            self._failed.add(step.name)
            return fault
        if step.name in self._failed:
            self._failed.discard(step.name)
            logger.info("copying %s from master %s works again", step.name, address)
        return None

    # Steps

    async def _copy_topics(self, address: str) -> None:
        code, topics = RequestCode.GET_ALL_TOPIC_CONFIG, self._tables.topics
        copy = await self._fetch(address, code, copied_topics, lambda: topics.data_version)
        if copy is None:
            return
        self._report_left_out(code, copy.left_out)
        version = copy.table.data_version
        vanished = topics.take_over(copy.table) or ()
        self._note_seen(code, topics.data_version)
        for topic in vanished:
            if not topics.is_system_topic(topic):
                self._tables.offsets.remove_topic(topic)
                self._vanished[topic] = version.timestamp

    async def _copy_deletions(self, address: str) -> None:
        deleted, store = self._tables.deleted_topics, self._store
        deletions = await self._fetch_private(
            address, RequestCode.GET_ALL_TOPIC_DELETION, copied_deletions
        )
        if deletions is None and self._vanished:
            log_end = await self._log_end(address)
            deletions = {topic: Deletion(log_end, at) for topic, at in self._vanished.items()}
        self._vanished.clear()
        # A recreated topic begins at 0: groups must not resume at their old offsets.
        for topic in deleted.take_over(deletions or {}, store):
            self._tables.offsets.remove_topic(topic)

    async def _copy_groups(self, address: str) -> None:
        code, groups = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._tables.groups
        copy = await self._fetch(address, code, copied_groups, lambda: groups.data_version)
        if copy is not None:
            self._report_left_out(code, copy.left_out)
            groups.take_over(copy.table)
            self._note_seen(code, groups.data_version)

    async def _copy_offsets(self, address: str) -> None:
        code, offsets = RequestCode.GET_ALL_CONSUMER_OFFSET, self._tables.offsets
        known = self._pieces if self._is_current(code, offsets.version) else frozenset[int]()
        copy = await self._fetch(
            address, code, lambda body: copied_offsets(body, known), lambda: offsets.version
        )
        if copy is None:
            return
        self._report_left_out(code, copy.left_out)
        table = copy.table
        own = [key for key in table if key.partition(SEPARATOR)[0] in TOPICS_WITH_PROGRESS]
        transactions = {key: table.pop(key) for key in own}
        offsets.refuse_too_many(table)
        self._transactions = {**self._transactions, **transactions}
        pairs = iter(table.items())
        while chunk := dict(itertools.islice(pairs, _MAX_PAIRS_PER_ITERATION)):
            offsets.take_over(chunk)
            await asyncio.sleep(0)
        self._note_seen(code, offsets.version)
        self._pieces = copy.pieces
        offsets.save_if_changed()

    async def _copy_filters(self, address: str) -> None:
        code = RequestCode.GET_ALL_CONSUMER_FILTER
        filters = await self._fetch_private(address, code, copied_filters)
        if filters is not None:
            consumers = self._tables.consumers
            self._tables.filters.take_over(filters, lambda group: consumers.find(group) is not None)

    async def _copy_progress(self, address: str) -> None:
        answer = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        delay = await _decoded(answer, copied_delay_offsets)
        transactions = self._transactions
        if self._progress.is_new(delay, transactions):
            self._progress.note(delay, transactions, await self._log_end(address))

    async def _settle_progress(self, _: str) -> None:
        self._progress.settle()

    # Requests

    async def _fetch(
        self,
        address: str,
        code: RequestCode,
        decode: Callable[[bytes], T],
        version: Callable[[], object],
    ) -> T | None:
        """Return the decoded answer.

        Return None if it is the same as the last one, and the table, whose current version
        `version` returns, has not changed since.
        """
        answer = await self._ask(address, code)
        known = self._seen[code].digest if self._is_current(code, version()) else b""

        def work() -> tuple[bytes, T | None]:
            body = _body(answer)
            digest = hashlib.blake2b(body).digest()
            return digest, None if digest == known else decode(body)

        digest, decoded = await asyncio.to_thread(work)
        if decoded is not None:
            # Without a version until the table has taken the answer over.
            self._seen[code] = _Seen(digest, None)
        return decoded

    def _is_current(self, code: RequestCode, version: object) -> bool:
        """Return whether a table is as the last answer left it."""
        seen = self._seen.get(code)
        return seen is not None and seen.version == version

    def _note_seen(self, code: RequestCode, version: object) -> None:
        self._seen[code] = self._seen[code]._replace(version=version)

    async def _fetch_private(
        self, address: str, code: RequestCode, decode: Callable[[bytes], T]
    ) -> T | None:
        """Return the decoded answer to a request of pyromq; None if the master has no such one."""
        rounds = self._rounds_without.get(code, 0)
        if rounds:
            self._rounds_without[code] = rounds - 1
            return None
        try:
            answer = await self._ask(address, code)
        except _RefusedError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self._rounds_without[code] = _ROUNDS_WITHOUT_PRIVATE
            return None
        return await _decoded(answer, decode)

    async def _log_end(self, address: str) -> int:
        """Return the end of the master's log."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        figures = await _decoded(answer, KVTable.decode)
        table = figures.table
        log_end = parse_integer(table.get("commitLogMaxOffset", ""), INT64)
        if log_end < 0:
            raise CopyError(f"the log of the master ends at {log_end}")
        # The leader of a raft group may have made progress with messages that are not committed.
        return max(log_end, parse_integer(table.get("raftPutEnd", "0"), INT64))

    async def _ask(self, address: str, code: RequestCode) -> RemotingCommand:
        """Send a request and return its response. Raises RemotingError or _RefusedError."""
        config = self._config
        command = RemotingCommand(code, ext_fields=dict(large_bodies.COMPRESSION))
        if config.replication_access_key and config.replication_secret_key:
            acl.sign(
                command.ext_fields,
                command.body,
                config.replication_access_key,
                config.replication_secret_key,
            )
        answer = await self._client.request(address, command, self._timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise _RefusedError(answer.code, f"{code.name}: {answer.remark!r:.500}")
        return answer

    def _report_left_out(self, code: RequestCode, names: list[str]) -> None:
        if len(names) > self._left_out.get(code, 0):
            logger.warning(
                "%d entries of %s left out: their names are unusable, such as %r",
                len(names),
                code.name,
                names[0][:100],
            )
            self._left_out[code] = len(names)


class _Step(NamedTuple):
    """One table to copy."""

    name: str
    run: Callable[[str], Awaitable[None]]


class _Seen(NamedTuple):
    """The last answer, and the version of the table that it led to."""

    digest: bytes
    version: object


class _RefusedError(Exception):
    """The master answered with another code than SUCCESS."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"response code {code}: {reason}")
        self.code = code


async def _decoded(answer: RemotingCommand, decode: Callable[[bytes], T]) -> T:
    """Decode an answer in a thread: it may be large. Raises ValueError."""
    return await asyncio.to_thread(lambda: decode(_body(answer)))


def _body(answer: RemotingCommand) -> bytes:
    return large_bodies.decompressed(answer.ext_fields, answer.body)
