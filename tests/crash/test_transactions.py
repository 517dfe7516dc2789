"""A broker with transactions under way, killed at random moments.

Whatever the broker had acknowledged when it was killed ends as its producer says, once:
committed by the producer itself, or when a later broker asks about it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.names import TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC
from pyromq.protocol.wire.bodies import HeartbeatData, ProducerData
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from tests.support.crash import BrokerProcess, seeds, until_more_than
from tests.support.patience import DEADLINE
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

SETTINGS = {
    "transactionCheckInterval": 60,
    "transactionTimeOut": 50,
    "transactionCheckMax": 1_000_000,
    "flushConsumerOffsetInterval": 100,
}
_LOAD_SECONDS = 0.4
_SENDERS = 4


class Producer:
    """Sends numbered halves; the number says how a transaction ends, and who says it when."""

    def __init__(self, seed: int) -> None:
        self.acknowledged: set[int] = set()
        self._numbers = iter(range(1 << 40))
        self._choose = random.Random(seed)
        self._undecided: set[int] = set()

    @staticmethod
    def outcome(number: int) -> int:
        return ROLLBACK if number % 5 == 0 else COMMIT

    async def run(self, address: str) -> None:
        """Send and answer until the broker is gone."""
        client = self._client()
        try:
            await join(client, address)
            await asyncio.gather(*(self._send(client, address) for _ in range(_SENDERS)))
        except RemotingError:
            pass
        finally:
            await client.close()

    async def finish(self, address: str) -> Counter[int]:
        """Answer until every half is done with; what consumers get then, by number."""
        client = self._client()
        try:
            async with asyncio.timeout(DEADLINE):
                await join(client, address)
                done, end = 0, 1
                while done < end:
                    await asyncio.sleep(0.05)
                    done = await ask_offset(client, address)
                    end = await ask_end(client, address)
            return Counter([number async for number in consumed(client, address)])
        finally:
            await client.close()

    def _client(self) -> RemotingClient:
        client: RemotingClient

        async def answer(address: str, question: RemotingCommand) -> None:
            half = Half.asked(question)
            number = int(half.key.removeprefix("key-"))
            known = number in self._undecided or number % 3
            self._undecided.add(number)
            request = end_request(half, self.outcome(number) if known else UNKNOWN, oneway=True)
            await client.send_oneway(address, request)

        client = RemotingClient({RequestCode.CHECK_TRANSACTION_STATE: answer})
        return client

    async def _send(self, client: RemotingClient, address: str) -> None:
        while True:
            number = next(self._numbers)
            request = half_request(
                number, queueId="0", bornTimestamp=str(time.time_ns() // 1_000_000)
            )
            answer = await client.request(address, request, DEADLINE)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.acknowledged.add(number)
            if self._choose.random() < 0.7:
                half = Half.sent(answer, f"key-{number}")
                request = end_request(half, self.outcome(number), oneway=True)
                await client.send_oneway(address, request)


async def join(client: RemotingClient, address: str) -> None:
    data = HeartbeatData("producer", [ProducerData(GROUP)])
    await client.request(address, RemotingCommand(RequestCode.HEART_BEAT, body=data.encode()))


async def ask_offset(client: RemotingClient, address: str) -> int:
    fields = {"consumerGroup": TRANSACTION_GROUP, "topic": TRANSACTION_HALF_TOPIC, "queueId": "0"}
    answer = await client.request(
        address, RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields)
    )
    return int(answer.ext_fields.get("offset", "0"))


async def ask_end(client: RemotingClient, address: str) -> int:
    fields = {"topic": TRANSACTION_HALF_TOPIC, "queueId": "0"}
    answer = await client.request(
        address, RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields=fields)
    )
    return int(answer.ext_fields["offset"])


async def consumed(client: RemotingClient, address: str) -> AsyncIterator[int]:
    offset = 0
    while True:
        answer = await client.request(address, pull_request(queueOffset=str(offset)), DEADLINE)
        if answer.code != ResponseCode.SUCCESS:
            return
        for record in decode_records(answer.body):
            assert record.queue_offset == offset
            offset += 1
            number = int(record.properties["UNIQ_KEY"].removeprefix("key-"))
            assert record.body == b"body %d" % number
            yield number


async def kill_again_and_again(directory: Path, seed: int, rounds: int) -> None:
    chooser = random.Random(seed)
    producer = Producer(seed)
    for _ in range(rounds):
        broker = await BrokerProcess.start(directory, **SETTINGS)
        try:
            sending = asyncio.create_task(producer.run(broker.address))
            enough = len(producer.acknowledged) + 25
            await asyncio.sleep(chooser.random() * _LOAD_SECONDS)
            await until_more_than(enough, producer.acknowledged, sending)
        finally:
            printed = await broker.kill()
        await sending
        assert b"Traceback" not in printed, printed.decode()
    broker = await BrokerProcess.start(directory, **SETTINGS)
    try:
        delivered = await producer.finish(broker.address)
    finally:
        printed = await broker.kill()
    assert b"Traceback" not in printed, printed.decode()
    assert max(delivered.values()) == 1, "a message was delivered twice"
    assert all(producer.outcome(number) == COMMIT for number in delivered)
    lost = {n for n in producer.acknowledged if producer.outcome(n) == COMMIT} - set(delivered)
    assert not lost
    assert len(producer.acknowledged) > 20 * rounds


async def test_transactions_survive_kills_of_the_broker(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "store", seed=1, rounds=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(5))
async def test_transactions_survive_many_kills(tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(tmp_path / "store", seed, rounds=15)
