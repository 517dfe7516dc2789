"""Delayed messages: how many wait at each level, and what will be delivered when.

A delayed message waits in SCHEDULE_TOPIC_XXXX, in the queue of its level, until its broker delivers
it. All messages of a level have the same delay, so a queue is in the order of delivery. The broker
reports how far it has come in each queue. Runs on the event loop of the `Admin`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyromq.admin.errors import AdminError, UnreadableAnswerError
from pyromq.admin.groups.connections import all_brokers
from pyromq.admin.message_view import MessageView
from pyromq.admin.partial import from_reachable, with_results
from pyromq.admin.queue_reader import QueueReader
from pyromq.admin.session import AdminSession, Area, read_body, read_text
from pyromq.protocol.java.properties import parse_properties
from pyromq.protocol.message.delay import DelayLevels
from pyromq.protocol.message.properties import REAL_QUEUE_ID, REAL_TOPIC
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper, MessageQueue
from pyromq.protocol.wire.codes import RequestCode


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """The messages that wait at one level of a broker."""

    broker_name: str
    level: int
    #: As in the setting messageDelayLevel: 10s, 1m, 2h.
    delay: str
    waiting: int
    #: When the first one will be delivered (ms since the epoch); 0 if none waits.
    next_due: int
    #: When the last one will be delivered; 0 if none waits.
    last_due: int


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits."""

    #: When it will be delivered, in milliseconds since the epoch.
    due: int
    level: int
    delay: str
    #: The topic and the queue to which it will be delivered.
    topic: str
    queue_id: int
    message: MessageView


@dataclass(frozen=True, slots=True)
class FoundDelayed:
    """Delayed messages, the next one to be delivered first."""

    messages: tuple[DelayedMessage, ...]
    #: Messages in `messages` by topic.
    by_topic: dict[str, int]
    #: Whether these are all that match.
    complete: bool
    #: Why there may be more, a sentence; empty if the result is complete.
    reason: str = ""


class Delayed(Area):
    """Delayed messages of all brokers."""

    def __init__(self, session: AdminSession) -> None:
        super().__init__(session)
        self._reader = QueueReader(session)

    async def levels(self) -> list[DelayLevel]:
        """Return each level of each broker, and how many messages wait there.

        If some brokers fail, the error's `results` have the levels of the others.
        """
        brokers = await all_brokers(self._session)
        names = {address: name for name, address in brokers.items()}
        what = "reading delay levels"
        answers, failure = await from_reachable(
            self._session, what, names, lambda address: self._levels_of(names[address], address)
        )
        found = [each for levels in answers.values() for each in levels]
        if failure is not None:
            raise with_results(failure, what, *found)
        return found

    async def find(
        self,
        *,
        topic: str | None = None,
        level: int | None = None,
        until: int | None = None,
        limit: int = 64,
    ) -> FoundDelayed:
        """Return the next messages to be delivered, at most `limit`.

        `topic` is the one that they are for, `until` a time (ms since the epoch). Brokers that fail
        make the result incomplete, unless all of them do.
        """
        brokers = await all_brokers(self._session)
        names = {address: name for name, address in brokers.items()}

        async def read(address: str) -> list[DelayedMessage]:
            name = names[address]
            levels, progress = await self._state(address)
            if level is not None and not 1 <= level <= len(levels):
                raise AdminError(f"level {level}: {name} has the levels 1 to {len(levels)}")
            messages = []
            for each in range(1, len(levels) + 1) if level is None else (level,):
                messages += await self._read(
                    address, _queue(name, each), progress.get(each, 0), levels, topic, until, limit
                )
            return messages

        answers, failure = await from_reachable(
            self._session, "reading delayed messages", names, read
        )
        found = [message for messages in answers.values() for message in messages]
        found.sort(key=lambda each: (each.due, each.message.broker_name, each.level))
        reasons = [] if failure is None else [str(failure)]
        if len(found) > limit:
            reasons.append(f"more than {limit} messages wait")
        shown = tuple(found[:limit])
        by_topic = dict(Counter(each.topic for each in shown).most_common())
        return FoundDelayed(shown, by_topic, not reasons, "; ".join(reasons))

    # Helpers, in call order

    async def _levels_of(self, name: str, address: str) -> list[DelayLevel]:
        levels, progress = await self._state(address)
        found = []
        for level in range(1, len(levels) + 1):
            queue = _queue(name, level)
            begin = progress.get(level, 0)
            waiting = max(0, await self._reader.max_offset(address, queue) - begin)
            first = last = 0
            if waiting:
                first = await self._due_at(address, queue, begin, levels)
                last = await self._due_at(address, queue, begin + waiting - 1, levels)
            delay = levels.text.split()[level - 1]
            found.append(DelayLevel(name, level, delay, waiting, first, last))
        return found

    async def _state(self, address: str) -> tuple[DelayLevels, dict[int, int]]:
        """Return the levels of a broker, and the offset of the next message of each."""
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CONFIG)
        settings = parse_properties(read_text(address, answer))
        try:
            levels = DelayLevels(settings.get("messageDelayLevel", ""))
        except ValueError as error:
            raise UnreadableAnswerError(address, error) from error
        answer = await self._session.ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        return levels, read_body(DelayOffsetSerializeWrapper, address, answer).offset_table

    async def _due_at(
        self, address: str, queue: MessageQueue, offset: int, levels: DelayLevels
    ) -> int:
        pulled = await self._reader.pull(address, queue, offset, 1)
        if not pulled.messages:  # delivered meanwhile
            return 0
        return levels.due(queue.queue_id + 1, pulled.messages[0].store_timestamp)

    async def _read(
        self,
        address: str,
        queue: MessageQueue,
        begin: int,
        levels: DelayLevels,
        topic: str | None,
        until: int | None,
        limit: int,
    ) -> list[DelayedMessage]:
        """Return the waiting messages of a level, one more than `limit` if there are more."""
        level = queue.queue_id + 1
        delay = levels.text.split()[level - 1]
        end = await self._reader.max_offset(address, queue)
        found: list[DelayedMessage] = []
        async for pulled in self._reader.batches(address, queue, begin, end):
            for message in pulled.messages:
                due = levels.due(level, message.store_timestamp)
                if (until is not None and due > until) or len(found) > limit:
                    return found
                real_topic = message.properties.get(REAL_TOPIC, "")
                if topic in (None, real_topic):
                    queue_id = message.properties.get(REAL_QUEUE_ID, "")
                    found.append(
                        DelayedMessage(
                            due,
                            level,
                            delay,
                            real_topic,
                            int(queue_id) if queue_id.isdecimal() else 0,
                            message,
                        )
                    )
        return found


def _queue(broker_name: str, level: int) -> MessageQueue:
    return MessageQueue(SCHEDULE_TOPIC, broker_name, level - 1)
