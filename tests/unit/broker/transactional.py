"""An assembled broker that ends and checks transactions, and a producer of some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyromq.broker.config import BrokerConfig
from pyromq.broker.state.connections import Client as GroupMember
from pyromq.protocol.message.message_id import decode_message_id
from pyromq.protocol.message.record import MessageRecord
from pyromq.protocol.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from pyromq.protocol.names import TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC
from pyromq.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyromq.protocol.wire.frame import FLAG_ONEWAY, RemotingCommand
from tests.support.requests import BORN, send_request
from tests.unit.broker.assembled import AssembledBroker
from tests.unit.broker.fakes import FakeConnection

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0
GROUP = "transactors"


class Half:
    """A half as its producer knows it from the answer to its send, or from a question."""

    def __init__(self, queue_offset: str, physical: int, key: str = "") -> None:
        self.queue_offset = queue_offset
        self.physical = physical
        self.key = key

    @classmethod
    def sent(cls, answer: RemotingCommand, key: str = "") -> Half:
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        fields = answer.ext_fields
        return cls(fields["queueOffset"], decode_message_id(fields["msgId"])[2], key)

    @classmethod
    def asked(cls, question: RemotingCommand) -> Half:
        fields = question.ext_fields
        return cls(fields["tranStateTableOffset"], int(fields["commitLogOffset"]), fields["msgId"])


def half_request(number: int = 0, *, properties: str = "", **values: Any) -> RemotingCommand:
    """A transactional send, as Java's client makes it."""
    more = f"\x02{properties}" if properties else ""
    return send_request(
        body=b"body %d" % number,
        sysFlag="4",
        properties=f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02UNIQ_KEY\x01key-{number}"
        f"\x02TAGS\x01red{more}",
        **{"queueId": "2", **values},
    )


def end_request(
    half: Half, outcome: int, *, oneway: bool = False, **values: str
) -> RemotingCommand:
    """END_TRANSACTION."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": str(half.physical),
        "commitOrRollback": str(outcome),
        "fromTransactionCheck": "false",
        "msgId": half.key,
        "transactionId": half.key,
        **values,
    }
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        opaque=7,
        ext_fields=fields,
        flag=FLAG_ONEWAY if oneway else 0,
    )


class Transactional(AssembledBroker):
    """A broker with transactions, a clock that stands still, and one producer."""

    def __init__(
        self,
        root: Path,
        *,
        settings: dict[str, Any] | None = None,
        **store_settings: Any,
    ) -> None:
        config = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1", **(settings or {}))
        super().__init__(root, config, **store_settings)
        self.offsets.load()
        self.check = self.assembly.transaction_check
        self.producer = FakeConnection()

    def join(self, connection: FakeConnection | None = None) -> None:
        """Let a producer be a member of the group."""
        self.producers.register(
            GROUP, GroupMember(connection or self.producer, "producer", LanguageCode.JAVA, 407)
        )

    def prepare(self, number: int = 0, **values: Any) -> Half:
        """Send a half."""
        return Half.sent(self.fast.ask(half_request(number, **values)), f"key-{number}")

    def end(self, half: Half, outcome: int, **values: Any) -> RemotingCommand:
        return self.fast.ask(end_request(half, outcome, **values))

    def pass_seconds(self, seconds: float) -> None:
        """Let the time of checks go on; it begins when messages are born."""
        self.now += int(seconds * 1000)

    async def round(self, seconds: float = 60.0) -> list[RemotingCommand]:
        """Check after so many seconds; what the producer is asked."""
        self.pass_seconds(seconds)
        self.producer.sent.clear()
        await self.check.check()
        return list(self.producer.sent)

    def of_topic(self, topic: str) -> list[MessageRecord]:
        """All records of a topic."""
        return [record for record in self.records() if record.topic == topic]

    @property
    def delivered(self) -> list[bytes]:
        """What consumers of T get."""
        return [record.body for record in self.of_topic("T")]

    @property
    def halves(self) -> list[MessageRecord]:
        return self.of_topic(TRANSACTION_HALF_TOPIC)

    @property
    def ends(self) -> list[bytes]:
        return [record.body for record in self.of_topic(TRANSACTION_OP_TOPIC)]

    async def close(self) -> None:
        """A clean stop."""
        await self.check.stop()
        self.long_poll.stop()
        await self.lanes.stop()
        self.store.stop()
        self.check.settle_all(self.store.flushed_offset)
        await self.tables.close()

    async def reopen(self, root: Path, **settings: Any) -> Transactional:
        """A clean stop, and a start."""
        await self.close()
        return await opened(root, **settings)


async def opened(root: Path, **settings: Any) -> Transactional:
    """A broker that knows what its store says, at a time when halves are just born."""
    broker = Transactional(root, **settings)
    await broker.check.load()
    broker.now = BORN
    return broker
