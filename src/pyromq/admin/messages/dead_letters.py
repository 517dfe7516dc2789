"""Dead letters: list groups that have some, look at them, and resend them.

Messages that a group failed to consume too often are in its topic `%DLQ%group`, one queue at each
broker. Nothing consumes them; they expire with the log. A resend stores copies and leaves the dead
letters where they are. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from pyromq.admin.errors import (
    AdminError,
    NotFoundError,
    PartialFailureError,
    UnknownTopicError,
    UnreachableError,
    similar,
)
from pyromq.admin.message_view import MessageView
from pyromq.admin.messages.copies import original_topic
from pyromq.admin.messages.messages import MAX_TIMESTAMP, FoundMessages, Messages
from pyromq.admin.messages.resending import Resender, Tally
from pyromq.admin.partial import from_reachable, with_results
from pyromq.admin.queue_reader import QueueReader
from pyromq.admin.session import AdminSession, Area
from pyromq.protocol.message.properties import ORIGIN_MESSAGE_ID
from pyromq.protocol.names import DEAD_LETTER_TOPIC_PREFIX, dead_letter_topic, retry_topic
from pyromq.protocol.wire.bodies import MessageQueue
from pyromq.protocol.wire.bodies_admin import TopicStatsTable
from pyromq.protocol.wire.codes import RequestCode
from pyromq.protocol.wire.headers_admin import GetTopicStatsInfoRequestHeader

_MAX_RUN_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """The dead letters of a group at one broker."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    #: When the last one was stored, in milliseconds since the epoch; 0 if there is none.
    last_stored: int

    @property
    def count(self) -> int:
        """Return how many dead letters there are."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """The dead letters of a group."""

    group: str
    topic: str
    count: int
    last_stored: int
    queues: tuple[DeadLetterQueue, ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter and where it comes from."""

    #: The topic that it was sent to first; empty if that is not known.
    origin_topic: str
    #: The offset message id of the message that was sent first.
    origin_msg_id: str
    message: MessageView


@dataclass(frozen=True, slots=True)
class ResendProgress:
    """How far a resend has come."""

    #: Dead letters that were looked at, of about `total`.
    done: int
    total: int
    sent: int
    already_sent: int
    #: Seconds for which it has waited for another process; 0 while it works.
    waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class ResendResult:
    """The outcome of a resend; with `dry_run`, `selected - already_sent` would be resent."""

    group: str
    #: The target topic; empty if each message went to its original one.
    target: str
    run: str
    #: Dead letters that were selected.
    selected: int
    sent: int
    #: Dead letters that an earlier call of the same run has resent.
    already_sent: int
    #: Problems by offset message id of dead letters that could not be resent.
    failures: dict[str, str]
    #: Selected dead letters by original topic.
    by_topic: dict[str, int]
    dry_run: bool
    #: Whether every dead letter that is selected was looked at; False if `limit` ended it.
    complete: bool


class DeadLetters(Area):
    """Dead letters of consumer groups."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._messages = Messages(session)
        self._reader = QueueReader(session)

    async def groups(self) -> list[DeadLetterGroup]:
        """Return the groups that have a dead-letter topic, those with most dead letters first.

        If some brokers fail, the error's `results` have what the others know.
        """
        found: list[DeadLetterGroup] = []
        failures: dict[str, Exception] = {}
        done: set[str] = set()
        for group in sorted(await self._group_names()):
            try:
                found.append(await self.counts(group))
            except PartialFailureError as error:
                found += error.results
                failures |= error.failures
                done.update(error.done)
            except UnreachableError as error:
                failures[error.address] = error
        found.sort(key=lambda each: (-each.count, each.group))
        if failures:
            raise PartialFailureError("counting dead letters", sorted(done), failures, found)
        return found

    async def counts(self, group: str) -> DeadLetterGroup:
        """Return how many dead letters a group has at each broker; raises NotFoundError.

        If some brokers fail, the error's `results` have the counts of the others.
        """
        return await self._counts(group, await self._masters(group))

    async def find(
        self, group: str, *, begin: int = 0, end: int = MAX_TIMESTAMP, limit: int = 64
    ) -> FoundMessages:
        """Return the first dead letters of a group that were stored between two times (ms)."""
        try:
            return await self._messages.by_time(dead_letter_topic(group), begin, end, limit=limit)
        except UnknownTopicError:
            raise await self._nothing(group) from None

    async def read(
        self, group: str, *, begin: int = 0, end: int = MAX_TIMESTAMP
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over the dead letters of a group, broker by broker, oldest first."""
        for queue, address, first, last in await self._ranges(group, begin):
            async for pulled in self._reader.batches(address, queue, first, last):
                for message in pulled.messages:
                    if begin <= message.store_timestamp <= end:
                        yield dead_letter(message)

    async def resend(  # noqa: PLR0913 - keyword arguments
        self,
        group: str,
        *,
        to: str | None = None,
        to_retry_topic: bool = False,
        run: str = "",
        rate: float | None = None,
        begin: int = 0,
        end: int = MAX_TIMESTAMP,
        limit: int | None = None,
        dry_run: bool = False,
        on_progress: Callable[[ResendProgress], None] | None = None,
    ) -> ResendResult:
        """Send a copy of each dead letter of a group, which need not be online.

        Copies go to the topic of the original message, to the topic `to`, or with `to_retry_topic`
        to the group's retry topic, which no other group consumes. `begin`, `end` (store times in
        ms) and `limit` select dead letters. `rate` limits copies per second.

        Each dead letter is resent once in a run, also if the process is killed and the call
        repeated. Another name for `run` resends them again.
        """
        _check(to, to_retry_topic, run, rate, limit)
        if to == dead_letter_topic(group):
            raise AdminError(f"{to} holds the dead letters themselves: choose another topic")
        target = retry_topic(group) if to_retry_topic else to
        tally = Tally()
        by_topic: dict[str, int] = {}
        done = 0
        ranges = await self._ranges(group, begin)
        total = sum(last - first for _, _, first, last in ranges)
        is_complete = True

        def report(waiting: float = 0.0) -> None:
            if on_progress is not None:
                on_progress(ResendProgress(done, total, tally.sent, tally.already_sent, waiting))

        for queue, address, first, last in ranges:
            resender = Resender(
                self._session,
                queue,
                to=target,
                run=run,
                rate=rate,
                tally=tally,
                on_wait=report,
                dry_run=dry_run,
            )
            async for pulled in self._reader.batches(address, queue, first, last):
                selected = [
                    each for each in pulled.messages if begin <= each.store_timestamp <= end
                ]
                if limit is not None and done + len(selected) > limit:
                    selected = selected[: limit - done]
                    is_complete = False
                for message in selected:
                    topic = original_topic(message)
                    by_topic[topic] = by_topic.get(topic, 0) + 1
                await resender.resend(selected)
                done += len(selected)
                report()
                if not is_complete:
                    break
            await resender.close()
            if not is_complete:
                break
        return ResendResult(
            group,
            target or "",
            run,
            done,
            tally.sent,
            tally.already_sent,
            tally.failures,
            by_topic,
            dry_run,
            is_complete,
        )

    # Helpers, in call order

    async def _group_names(self) -> list[str]:
        """Return the groups that have a dead-letter topic."""
        return [
            topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            for topic in await self._session.topic_names()
            if topic.startswith(DEAD_LETTER_TOPIC_PREFIX)
        ]

    async def _masters(self, group: str) -> dict[str, str]:
        """Return the addresses of the brokers that may have dead letters, by their names."""
        try:
            return await self._session.masters_of_topic(dead_letter_topic(group))
        except UnknownTopicError:
            raise await self._nothing(group) from None

    async def _nothing(self, group: str) -> NotFoundError:
        known = await self._group_names()
        return NotFoundError(f"group {group!r} has no dead letters", similar(group, known))

    async def _counts(self, group: str, masters: dict[str, str]) -> DeadLetterGroup:
        topic = dead_letter_topic(group)
        header = GetTopicStatsInfoRequestHeader(topic)
        answers, failure = await from_reachable(
            self._session,
            f"reading the dead letters of group {group!r}",
            masters.values(),
            lambda address: self._session.fetch(
                TopicStatsTable, address, RequestCode.GET_TOPIC_STATS_INFO, header
            ),
        )
        queues = tuple(
            DeadLetterQueue(
                queue.broker_name,
                queue.queue_id,
                offsets.min_offset,
                offsets.max_offset,
                offsets.last_update_timestamp,
            )
            for answer in answers.values()
            for queue, offsets in sorted(answer.offset_table.items())
        )
        found = DeadLetterGroup(
            group,
            topic,
            sum(each.count for each in queues),
            max((each.last_stored for each in queues), default=0),
            queues,
        )
        if failure is not None:
            raise with_results(failure, f"counting the dead letters of group {group!r}", found)
        return found

    async def _ranges(self, group: str, begin: int) -> list[tuple[MessageQueue, str, int, int]]:
        """Return the queues of dead letters with their addresses and the offsets to read."""
        masters = await self._masters(group)
        counts = await self._counts(group, masters)
        found = []
        for each in counts.queues:
            queue = MessageQueue(counts.topic, each.broker_name, each.queue_id)
            address = masters[each.broker_name]
            first = each.min_offset
            if begin > 0:
                # The broker may return a later one of several with the same time.
                first = max(first, await self._reader.offset_by_time(address, queue, begin - 1))
            found.append((queue, address, first, each.max_offset))
        return found


def dead_letter(message: MessageView) -> DeadLetter:
    """Return a message of a dead-letter topic with its origin."""
    return DeadLetter(
        original_topic(message), message.properties.get(ORIGIN_MESSAGE_ID, ""), message
    )


def _check(
    to: str | None, to_retry_topic: bool, run: str, rate: float | None, limit: int | None
) -> None:
    if to is not None and to_retry_topic:
        raise AdminError("give either a topic or the retry topic to resend to")
    if len(run) > _MAX_RUN_LENGTH or not all(each.isalnum() or each in "-_." for each in run):
        raise AdminError(
            f"run {run!r:.80}: use at most {_MAX_RUN_LENGTH} letters, digits, hyphens and dots"
        )
    if rate is not None and rate <= 0:
        raise AdminError(f"rate {rate}: expected more than 0 messages per second")
    if limit is not None and limit <= 0:
        raise AdminError(f"limit {limit}: expected at least 1")
