"""A broker on real sockets, and a producer that is asked about its transactions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyromq.broker.broker import Broker
from pyromq.protocol.message.record import MessageRecord, decode_record, decode_records
from pyromq.protocol.names import TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC
from pyromq.protocol.wire.bodies import HeartbeatData, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from tests.support.brokers import local_broker, small_store
from tests.support.patience import until
from tests.support.requests import pull_request
from tests.unit.broker.transactional import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    Half,
    end_request,
    half_request,
)

HALVES = (TRANSACTION_HALF_TOPIC, 0)


class Producer:
    """Answers the broker's questions as its `outcomes` say, by unique key."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[int]] = {}
        self.asked: list[MessageRecord] = []
        self.client = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: self._answer})

    async def join(self, broker: Broker) -> None:
        data = HeartbeatData("producer", [ProducerData(GROUP)])
        answer = await self.client.request(
            broker.address, RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())
        )
        assert answer.code == ResponseCode.SUCCESS

    async def prepare(self, broker: Broker, number: int, *answers: int, age: int = 60_000) -> Half:
        """Send a half; when asked, say these outcomes, the last one again and again.

        It is old enough at once to be asked about, but not older than messages are kept.
        """
        self.outcomes[f"key-{number}"] = list(answers)
        born = time.time_ns() // 1_000_000 - age
        request = half_request(number, queueId="0", bornTimestamp=str(born))
        return Half.sent(await self.client.request(broker.address, request), f"key-{number}")

    async def end(self, broker: Broker, half: Half, outcome: int) -> None:
        """As clients do it: without waiting for an answer."""
        await self.client.send_oneway(broker.address, end_request(half, outcome, oneway=True))

    async def _answer(self, address: str, question: RemotingCommand) -> None:
        self.asked.append(decode_record(question.body))
        half = Half.asked(question)
        outcomes = self.outcomes[half.key]
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        await self.client.send_oneway(
            address, end_request(half, outcome, oneway=True, fromTransactionCheck="true")
        )

    async def delivered(self, broker: Broker) -> list[bytes]:
        answer = await self.client.request(broker.address, pull_request())
        return [record.body for record in decode_records(answer.body)]


def make_broker(root: Path, store: dict[str, Any] | None = None, **settings: Any) -> Broker:
    config = local_broker(
        **{
            "transaction_check_interval": 50,
            **settings,
        }
    )
    return Broker(config, small_store(root, **(store or {})))


@pytest.fixture
async def producer() -> AsyncIterator[Producer]:
    one = Producer()
    yield one
    await one.client.close()


async def test_every_way_in_which_a_transaction_ends(tmp_path: Path, producer: Producer) -> None:
    broker = make_broker(tmp_path, transaction_time_out=50_000)
    await broker.start()
    await producer.join(broker)
    # Too young to be asked about before their ends, which nobody waits for, have arrived.
    await producer.end(broker, await producer.prepare(broker, 0, ROLLBACK, age=0), COMMIT)
    await producer.end(broker, await producer.prepare(broker, 1, COMMIT, age=0), ROLLBACK)
    await producer.prepare(broker, 2, COMMIT)
    await producer.prepare(broker, 3, ROLLBACK)
    await producer.prepare(broker, 4, UNKNOWN, UNKNOWN, COMMIT)

    assert broker.store is not None
    store = broker.store
    await until(lambda: broker.transactions.next_open(0) == store.max_offset(*HALVES))

    assert sorted(await producer.delivered(broker)) == [b"body 0", b"body 2", b"body 4"]
    asked = [record.properties["UNIQ_KEY"] for record in producer.asked]
    assert set(asked) == {"key-2", "key-3", "key-4"}
    assert asked.count("key-4") >= 3
    assert {record.topic for record in producer.asked} == {"T"}
    await broker.stop()


async def test_transactions_outlive_restarts(tmp_path: Path, producer: Producer) -> None:
    broker = make_broker(tmp_path, transaction_check_interval=3_600_000)
    await broker.start()
    await producer.join(broker)
    ended = await producer.prepare(broker, 0, ROLLBACK)
    await producer.end(broker, ended, COMMIT)
    first = await producer.prepare(broker, 1, COMMIT)
    await producer.prepare(broker, 2, COMMIT)
    await until(lambda: broker.transactions.half_offset == 1)
    await broker.stop()

    # Asks once and again, and is told nothing: what was put back is the only trace of it.
    producer.outcomes = {"key-1": [UNKNOWN], "key-2": [UNKNOWN]}
    broker = make_broker(tmp_path)
    await broker.start()
    assert broker.offsets.query(TRANSACTION_GROUP, *HALVES) == 1
    await producer.join(broker)
    await until(lambda: len(producer.asked) >= 4)
    await broker.stop()

    producer.outcomes["key-2"] = [COMMIT]
    broker = make_broker(tmp_path, transaction_check_interval=1000)
    await broker.start()
    # The first half, as the producer knows it, ends the transaction before it is asked again.
    await producer.end(broker, first, COMMIT)
    await producer.join(broker)
    assert broker.store is not None
    store = broker.store
    await until(lambda: broker.transactions.next_open(0) == store.max_offset(*HALVES))
    assert sorted(await producer.delivered(broker)) == [b"body 0", b"body 1", b"body 2"]
    await broker.stop()
    assert broker.offsets.query(TRANSACTION_GROUP, TRANSACTION_OP_TOPIC, 0) is not None


async def test_a_replica_checks_nothing_and_ends_nothing(
    tmp_path: Path, producer: Producer
) -> None:
    broker = make_broker(tmp_path)
    await broker.start()
    half = await producer.prepare(broker, 0, COMMIT)
    await broker.become_replica(1)
    answer = await producer.client.request(broker.address, end_request(half, COMMIT))
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    await broker.stop()
