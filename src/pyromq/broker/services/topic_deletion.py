"""Deletes topics and their queues, one deletion of a topic at a time.

A topic that has messages takes several turns of the loop, since its deletion waits for the disk
twice. The order makes a kill harmless: until the note (`state.deleted_topics`) is saved, a start
brings the topic back whole, out of its queues; after that, a start completes the deletion.

Invariants
1. From the first step to the last the store refuses messages of the topic. A message that was
   acknowledged is therefore stored before the deletion, and goes, or after it, and has its
   consume-queue entry.
2. Two deletions of one topic never overlap: the end of the first would open the topic while the
   second still goes to remove the queues.
3. Queues with messages are never removed without a note, even if their topic was not in the
   table (as after the delivery of a delayed message) or the broker stops meanwhile: `store check`
   would miss the entries, and a start could bring the messages back.

Used by the handlers of administrators' requests, on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from pyromq.broker.state.deleted_topics import DeletedTopicTable, Log
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.topics import TopicTable


class TopicStore(Log, Protocol):
    """The part of the store that deletions use."""

    def close_topic(self, topic: str) -> None:
        """Take no message of a topic until it is removed."""

    def has_messages(self, topic: str) -> bool:
        """Whether a queue of the topic has entries."""

    def remove_topic(self, topic: str) -> None:
        """Remove the queues of a topic."""


class TopicDeletion:
    """Deletes topics from the tables and from the store."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: ConsumerOffsetTable,
        deleted: DeletedTopicTable,
        store: TopicStore,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._deleted = deleted
        self._store = store
        #: Topics that are being deleted; set at the end of the deletion.
        self._running: dict[str, asyncio.Event] = {}

    async def delete(self, topic: str) -> None:
        """Delete a topic, its queues and the groups' offsets in it; returns when it is done."""
        async with self._turn(topic):
            self._topics.delete(topic)
            # A topic that is created again begins at 0: groups must not resume where they were.
            self._offsets.remove_topic(topic)
            await self._remove_queues(topic)

    async def remove_unused(self, topic: str) -> bool:
        """Remove the queues of a topic that is not in the table; False when that is not so.

        A topic that is being deleted is left to its deletion.
        """
        if topic in self._topics or topic in self._running:
            return False
        async with self._turn(topic):
            await self._remove_queues(topic)
        return True

    @contextlib.asynccontextmanager
    async def _turn(self, topic: str) -> AsyncIterator[None]:
        while (running := self._running.get(topic)) is not None:
            await running.wait()
        ended = self._running[topic] = asyncio.Event()
        try:
            yield
        finally:
            del self._running[topic]
            ended.set()

    async def _remove_queues(self, topic: str) -> None:
        if not self._store.has_messages(topic):
            self._store.remove_topic(topic)  # nothing that a start could bring back
            return
        self._store.close_topic(topic)
        try:
            try:
                await self._topics.file.saved()
            finally:
                self._deleted.note(topic, self._store)
            await self._deleted.file.saved()
        finally:
            self._store.remove_topic(topic)
            created = self._topics.get(topic)
            if created is not None:
                # By a send meanwhile: let everyone who remembers the old queues look again.
                self._topics.update(created)
