"""An assembled broker with its admin handlers of clients, offsets and consume statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.base.clock import now_ms
from pyromq.broker.config import BrokerConfig
from pyromq.broker.handlers.admin.clients import ClientAdminHandlers
from pyromq.broker.handlers.admin.consume_stats import ConsumeStatsHandlers
from pyromq.broker.handlers.admin.offsets import OffsetAdminHandlers
from pyromq.broker.handlers.admin.queue_entries import QueueEntryHandlers
from pyromq.broker.state.connections import Client
from pyromq.protocol.wire.bodies import ConsumerData, MessageQueue, SubscriptionData, TopicConfig
from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.frame import RemotingCommand
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.fakes import FakeConnection

CONFIG = BrokerConfig(broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
ADMIN = FakeConnection("127.0.0.1:50505")


class Administered(AssembledBroker):
    """A broker with topic T of two queues, and the handlers under test."""

    def __init__(self, root: Path, config: BrokerConfig = CONFIG, **store: Any) -> None:
        super().__init__(root, config, **store)
        self.topics.update(TopicConfig("T", 2, 2))
        self.now = now_ms()
        self.clients = ClientAdminHandlers(self.parts)
        self.offset_admin = OffsetAdminHandlers(self.parts)
        self.consume_stats = ConsumeStatsHandlers(self.parts)
        self.entries_admin = QueueEntryHandlers(
            self.store, self.consumers, self.filters, self.lanes.admin
        )

    def join(
        self,
        client_id: str = "c1",
        *topics: str,
        group: str = "g",
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 407,
        **subscription: Any,
    ) -> FakeConnection:
        """Register a consumer on a connection of its own."""
        connection = FakeConnection(f"127.0.0.1:{40000 + len(client_id)}")
        wanted = [SubscriptionData(topic, **subscription) for topic in topics or ("T",)]
        self.consumers.register(
            ConsumerData(group, subscription_data_set=wanted),
            Client(connection, client_id, language, version),
        )
        return connection


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def asking(
    code: int = 0, language: LanguageCode = LanguageCode.JAVA, /, **fields: str
) -> RemotingCommand:
    return RemotingCommand(code, opaque=5, ext_fields=fields, language=language)
