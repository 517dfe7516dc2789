"""Deletes topics and their queues, one deletion per topic at a time.

Deleting a topic with messages waits for the disk twice. The order makes a kill harmless: until the
note (`state.deleted_topics`) is saved, a restart recovers the whole topic from its queues; after
that, a restart completes the deletion.

Invariants
1. The store refuses messages of the topic during the whole deletion. An acknowledged message was
   therefore stored before it, and is deleted, or after it, and has its consume-queue entry.
2. Two deletions of one topic never overlap: the end of the first would reopen the topic before the
   second removes the queues.
3. Queues with messages are never removed without a note, even if their topic is not in the table
   (as after the delivery of a delayed message) or the broker stops meanwhile: otherwise `store
   check` would miss the entries, and a restart could bring the messages back.

Used by the admin handlers, on the loop.
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
        """Refuse messages of a topic until it is removed."""

    def has_messages(self, topic: str) -> bool:
        """Return whether a queue of the topic has entries."""

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
        #: Topics being deleted; each event is set at the end of the deletion.
        self._running: dict[str, asyncio.Event] = {}

    async def delete(self, topic: str) -> None:
        """Delete a topic, its queues and its consumer offsets."""
        async with self._turn(topic):
            self._topics.delete(topic)
            # A recreated topic begins at 0: groups must not resume at their old offsets.
            self._offsets.remove_topic(topic)
            await self._remove_queues(topic)

    async def remove_unused(self, topic: str) -> bool:
        """Remove the queues of a topic that is not in the table; return False if it is.

        Also returns False for a topic that is being deleted.
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
            self._store.remove_topic(topic)  # a restart has nothing to bring back
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
                # A send recreated it meanwhile: make listeners drop the old queues.
                self._topics.update(created)
