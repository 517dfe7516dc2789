"""All tables of a broker: the persistent ones and those of connected clients.

Each table is saved on its own (`state.persistence`); a failure does not affect the others. `load`
runs before the broker serves requests, `close` after everything has stopped. On the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.connections import ConsumerTable, ProducerTable
from pyromq.broker.state.delay_offsets import DelayOffsetTable
from pyromq.broker.state.deleted_topics import DeletedTopicTable
from pyromq.broker.state.filters import ConsumerFilterTable
from pyromq.broker.state.groups import GroupTable
from pyromq.broker.state.offsets import ConsumerOffsetTable
from pyromq.broker.state.queue_locks import QueueLockTable
from pyromq.broker.state.topics import TopicTable
from pyromq.broker.state.transactions import TransactionTable
from pyromq.store.config import MessageStoreConfig


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """The state of a broker, besides its messages."""

    topics: TopicTable
    deleted_topics: DeletedTopicTable
    groups: GroupTable
    offsets: ConsumerOffsetTable
    filters: ConsumerFilterTable
    delay_offsets: DelayOffsetTable
    consumers: ConsumerTable
    producers: ProducerTable
    queue_locks: QueueLockTable
    transactions: TransactionTable = field(default_factory=TransactionTable)

    @classmethod
    def of(cls, config: BrokerConfig, store_config: MessageStoreConfig) -> BrokerTables:
        """Return empty tables with the files and limits of the settings."""
        directory = store_config.config_directory
        filters = ConsumerFilterTable(config, directory)
        return cls(
            topics=TopicTable(config, directory),
            deleted_topics=DeletedTopicTable(directory),
            groups=GroupTable(config, directory),
            offsets=ConsumerOffsetTable(directory, max_pairs=lambda: config.max_consumer_offsets),
            filters=filters,
            delay_offsets=DelayOffsetTable(directory, store_config.root / "abort"),
            consumers=ConsumerTable(on_subscribed=filters.register, on_gone=filters.unregister),
            producers=ProducerTable(),
            queue_locks=QueueLockTable(max_locks=lambda: config.max_queue_locks),
        )

    def load(self) -> None:
        """Load every persistent table. Raises PersistenceError."""
        self.topics.load()
        self.deleted_topics.load()
        self.groups.load()
        self.offsets.load()
        self.filters.load()
        self.delay_offsets.load()

    def retry_failed_saves(self) -> None:
        """Save the tables whose last save failed, for example because the disk was full."""
        for table in (self.topics, self.deleted_topics, self.groups, self.offsets, self.filters):
            table.file.save_if_failed()
        self.delay_offsets.file.save_if_failed()

    async def close(self) -> None:
        """Save every table, even if one fails; raise the first PersistenceError."""
        faults = await asyncio.gather(
            self.topics.file.close(),
            self.deleted_topics.file.close(),
            self.groups.file.close(),
            self.offsets.file.close(),
            self.filters.file.close(),
            self.delay_offsets.close(),
            return_exceptions=True,
        )
        for fault in faults:
            if fault is not None:
                raise fault
