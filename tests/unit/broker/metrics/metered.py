"""A broker without sockets, with groups and messages for the tests of collectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.broker.instruments import BrokerInstruments
from pyromq.broker.services.stats import BrokerStats
from pyromq.broker.state.connections import Client
from pyromq.protocol.wire.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from pyromq.protocol.wire.codes import LanguageCode
from tests.support.brokers import local_broker
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.fakes import FakeConnection


class MeteredBroker(AssembledBroker):
    """A broker with instruments."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.instruments = BrokerInstruments()
        super().__init__(root, local_broker(**settings), instruments=self.instruments)
        self.parts.stats.measure_sizes()

    def connect_consumer(
        self, group: str, *topics: str, model: MessageModel = MessageModel.CLUSTERING
    ) -> FakeConnection:
        """Let a consumer join a group."""
        connection = FakeConnection(f"127.0.0.1:{50_000 + len(self.consumers)}")
        self.groups.find(group)
        self.consumers.register(
            ConsumerData(
                group,
                ConsumeType.CONSUME_PASSIVELY,
                model,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                [SubscriptionData(topic, "*") for topic in topics],
            ),
            Client(connection, f"client of {group}", LanguageCode.JAVA, 407),
        )
        return connection

    def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
        """Let an existing group commit."""
        self.groups.find(group)
        self.offsets.commit(group, topic, queue_id, offset)

    async def counted(self) -> BrokerStats:
        """Bring the statistics up to date, as before a scrape."""
        await self.stats.count()
        return self.stats
