"""Resends the dead letters of one queue, each once, however often the process is killed.

The target topic itself is the record of what was resent: each copy carries the stamp of its dead
letter (`copies`). A resend first takes a lock that no request of an earlier one survives (`fence`),
then reads the target topic from the time of the first dead letter on, and sends what is missing.
There is no file to lose, and a copy that a broker lost in a power cut is sent again. The note
`docs/adr/2026-11-17-resent-once.md` has the reasons and limits.

Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyromq.admin.errors import (
    AdminError,
    NotPermittedError,
    RefusedError,
    UnreachableError,
)
from pyromq.admin.message_view import MessageView
from pyromq.admin.messages.copies import (
    MAX_BATCH_MESSAGES,
    Copy,
    copies,
    may_have_stamps,
    original_topic,
    resent_offset,
    stamp_prefix,
)
from pyromq.admin.messages.fence import Fence, FenceLostError
from pyromq.admin.queue_reader import PullStatus, QueueReader, decoded
from pyromq.admin.session import AdminSession
from pyromq.client.results import STATUS_BY_CODE
from pyromq.protocol.message.sysflag import is_readable, is_writable
from pyromq.protocol.wire.bodies import MASTER_ID, MessageQueue
from pyromq.protocol.wire.codes import ResponseCode

#: Copies may have been stored at a broker whose clock is behind by this much.
CLOCK_MARGIN_MS: Final = 60_000
#: Requests in flight at a time.
_MAX_IN_FLIGHT: Final = 16
#: Attempts to send a message whose outcome is unknown, or that a broker is too busy for.
_MAX_ATTEMPTS: Final = 5
_BUSY_PAUSE_SECONDS: Final = 0.5
#: A paced resend sends as many messages at once as are due in this time.
_PACE_SECONDS: Final = 0.25
_BUSY: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SYSTEM_ERROR,
    }
)


@dataclass(slots=True)
class Tally:
    """Counts of a resend so far."""

    sent: int = 0
    #: Dead letters whose copies were there before.
    already_sent: int = 0
    #: Problems by offset message id of dead letters that could not be resent.
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Target:
    """A topic that copies go to."""

    topic: str
    #: The broker and the number of its queues that copies are sent to.
    broker_name: str
    address: str
    queue_count: int
    #: Addresses of all queues that may hold copies, and the offset up to which each was read.
    read_at: dict[MessageQueue, str]
    prefix: str
    read_to: dict[MessageQueue, int] = field(default_factory=dict)
    #: Physical offsets of the dead letters whose copies exist.
    sent: set[int] = field(default_factory=set)
    is_read: bool = False


class Resender:
    """Resends dead letters of the queue `source`."""

    def __init__(
        self,
        session: AdminSession,
        source: MessageQueue,
        *,
        to: str | None,
        run: str,
        rate: float | None,
        tally: Tally,
        on_wait: Callable[[float], None] | None = None,
        dry_run: bool = False,
    ) -> None:
        """`to` is the target topic, or None for each message's original one.

        With `dry_run` nothing is locked or sent; copies that exist are counted.
        """
        self._dry_run = dry_run
        self._session = session
        self._source = source
        self._to = to
        self._run = run
        self._rate = rate
        self._tally = tally
        self._reader = QueueReader(session)
        self._fence = Fence(session, source, on_wait)
        self._targets: dict[str, _Target] = {}
        self._next_send = 0.0
        self._is_settled = True

    async def resend(self, messages: Sequence[MessageView]) -> None:
        """Send copies of the messages that have none yet; the first call has the oldest ones."""
        by_topic: dict[str, list[MessageView]] = {}
        for message in messages:
            topic = self._to or original_topic(message)
            if topic:
                by_topic.setdefault(topic, []).append(message)
            else:
                self._tally.failures[message.offset_msg_id] = (
                    "its original topic is not known: name a topic to resend it to"
                )
        for topic, group in by_topic.items():
            target = self._targets.get(topic)
            if target is None:
                target = self._targets[topic] = await self._open(topic)
            await self._bring_up_to_date(target, group[0].store_timestamp)
            missing = [each for each in group if each.physical_offset not in target.sent]
            self._tally.already_sent += len(group) - len(missing)
            if not self._dry_run:
                await self._send(target, missing)

    async def close(self) -> None:
        """End the lock, unless the outcome of a request is unknown; brokers end it then."""
        if self._is_settled:
            await self._fence.release()

    # Helpers, in call order

    async def _open(self, topic: str) -> _Target:
        """Find out where copies go, and lock there."""
        route = await self._session.route(topic)
        masters = {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        }
        # Copies must be readable: their stamps tell what was sent.
        usable = {
            data.broker_name: min(data.write_queue_nums, data.read_queue_nums)
            for data in route.queue_datas
            if is_writable(data.perm) and is_readable(data.perm) and data.broker_name in masters
        }
        usable = {name: count for name, count in usable.items() if count > 0}
        if not usable:
            raise AdminError(
                f"topic {topic!r} has no queue that is readable and writable, at a broker that "
                "has a master: check its permissions"
            )
        # The dead letters' own broker, whose clock they have, or else the first one.
        own = self._source.broker_name
        broker_name = own if own in usable else min(usable)
        for address in sorted(set(masters.values())):
            if not self._dry_run:
                await self._fence.acquire(address)
        return _Target(
            topic,
            broker_name,
            masters[broker_name],
            usable[broker_name],
            {
                MessageQueue(topic, data.broker_name, queue_id): masters[data.broker_name]
                for data in route.queue_datas
                if is_readable(data.perm) and data.broker_name in masters
                for queue_id in range(data.read_queue_nums)
            },
            stamp_prefix(topic, own, self._run),
        )

    async def _bring_up_to_date(self, target: _Target, first_stored: int) -> None:
        """Read the stamps of copies that this process has not sent itself."""
        if target.is_read:
            return
        for queue, address in target.read_at.items():
            offset = target.read_to.get(queue)
            if offset is None:
                since = max(0, first_stored - CLOCK_MARGIN_MS)
                offset = max(0, await self._reader.offset_by_time(address, queue, since))
            target.read_to[queue] = await self._read_stamps(target, queue, address, offset)
        target.is_read = True

    async def _read_stamps(
        self, target: _Target, queue: MessageQueue, address: str, offset: int
    ) -> int:
        """Note the copies in a queue from an offset on; return the offset after the last."""
        while True:
            pulled = await self._reader.pull_raw(address, queue, offset)
            if may_have_stamps(pulled.body):
                for message in decoded(address, pulled.body):
                    found = resent_offset(target.prefix, message.properties)
                    if found is not None:
                        target.sent.add(found)
            if pulled.status is PullStatus.NO_NEW_MSG or pulled.next_offset <= offset:
                return offset
            offset = pulled.next_offset

    async def _send(self, target: _Target, messages: Sequence[MessageView]) -> None:
        for begin in range(0, len(messages), self._step):
            some = messages[begin : begin + self._step]
            await self._pace(len(some))
            await self._send_some(target, some)

    @property
    def _step(self) -> int:
        """Return how many messages are sent at once."""
        if self._rate is None:
            return MAX_BATCH_MESSAGES
        return max(1, min(MAX_BATCH_MESSAGES, int(self._rate * _PACE_SECONDS)))

    async def _pace(self, count: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        if self._next_send > now:
            await asyncio.sleep(self._next_send - now)
        self._next_send = max(self._next_send, now) + count / self._rate

    async def _send_some(self, target: _Target, messages: Sequence[MessageView]) -> None:
        try:
            await self._send_until_done(target, messages)
        finally:
            self._tally.sent += sum(each.physical_offset in target.sent for each in messages)

    async def _send_until_done(self, target: _Target, messages: Sequence[MessageView]) -> None:
        """Send until each message has a copy, or was refused for good."""
        attempt = 0
        while missing := [
            each
            for each in messages
            if each.physical_offset not in target.sent
            and each.offset_msg_id not in self._tally.failures
        ]:
            attempt += 1
            try:
                if not target.is_read:
                    await self._bring_up_to_date(target, missing[0].store_timestamp)
                    continue
                await self._fence.check(target.address)
                busy = await self._post_all(target, missing)
            except (UnreachableError, FenceLostError):
                if attempt >= _MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(_BUSY_PAUSE_SECONDS * attempt)
                await self._fence.restart()
                self._is_settled = True
                for each in self._targets.values():
                    each.is_read = False
                continue
            if busy is not None:
                if attempt >= _MAX_ATTEMPTS:
                    raise busy
                await asyncio.sleep(_BUSY_PAUSE_SECONDS * attempt)

    async def _post_all(
        self, target: _Target, messages: Sequence[MessageView]
    ) -> RefusedError | None:
        """Send copies; return the refusal of a broker that is busy.

        Raises UnreachableError, after all requests, if the outcome of one is unknown.
        """
        requests = copies(
            messages, target.topic, target.prefix, target.broker_name, target.queue_count
        )
        room = asyncio.Semaphore(_MAX_IN_FLIGHT)
        ids = {each.physical_offset: each.offset_msg_id for each in messages}
        self._is_settled = False

        refusals: list[RefusedError] = []

        async def post(copy: Copy) -> None:
            async with room:
                await self._post(target, copy, ids, refusals)

        outcomes = await asyncio.gather(*map(post, requests), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        self._is_settled = True
        return refusals[0] if refusals else None

    async def _post(
        self, target: _Target, copy: Copy, ids: dict[int, str], refusals: list[RefusedError]
    ) -> None:
        """Send one request; adds the refusal of a broker that is busy to `refusals`."""
        try:
            await self._session.ask(
                target.address, copy.code, copy.header, copy.body, accept=STATUS_BY_CODE
            )
        except NotPermittedError:
            raise
        except RefusedError as error:
            if error.code in _BUSY:
                refusals.append(error)
                return
            for offset in copy.offsets:
                self._tally.failures[ids[offset]] = str(error)
        else:
            target.sent.update(copy.offsets)
