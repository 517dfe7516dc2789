"""Transactions while brokers are killed: what was committed arrives, what was not does not."""

from __future__ import annotations

import asyncio
import itertools

from pyromq.client import (
    HalfMessage,
    Message,
    PullConsumer,
    ReceivedMessage,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from pyromq.testing import Cluster
from tests.support.patience import DEADLINE, until

COMMIT, ROLLBACK, UNKNOWN = TransactionState
SETTINGS = {"transactionCheckInterval": "200", "transactionTimeOut": "300"}


class Ledger:
    """The local truth about transactions, by key."""

    def __init__(self) -> None:
        self.states: dict[str, TransactionState] = {}

    async def execute(self, half: HalfMessage) -> TransactionState:
        number = int(half.argument)
        # The outcome is known here at once; each third time the broker has to ask for it.
        self.states[str(half.keys)] = COMMIT if number % 2 else ROLLBACK
        return UNKNOWN if number % 3 == 0 else self.states[str(half.keys)]

    def check(self, message: ReceivedMessage) -> TransactionState:
        return self.states.get(message.keys, UNKNOWN)

    def committed(self) -> set[str]:
        return {key for key, state in self.states.items() if state is COMMIT}


async def keys_of(namesrv: str, topic: str) -> set[str]:
    keys = set()
    async with PullConsumer(namesrv, topic) as consumer:
        for queue in await consumer.queues():
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                keys |= {message.keys for message in result.messages}
                offset = result.next_offset
    return keys


async def test_no_outcome_is_lost_when_brokers_are_killed() -> None:
    ledger = Ledger()
    numbers = itertools.count()
    is_over = False
    async with Cluster(brokers=2, settings=SETTINGS) as cluster:
        await cluster.create_topic_async("t")
        async with TransactionProducer(
            cluster.namesrv,
            group="g",
            check=ledger.check,
            topics=["t"],
            send_timeout=1.0,
            heartbeat_interval=0.3,
        ) as producer:

            async def work() -> None:
                while not is_over:
                    number = next(numbers)
                    message = Message("t", b"x", keys=f"key-{number}")
                    try:
                        await producer.send_in_transaction(message, ledger.execute, number)
                    except RocketMQError:
                        # The half may be stored or not: nothing was executed for it.
                        ledger.states.setdefault(f"key-{number}", ROLLBACK)
                    await asyncio.sleep(0.005)

            async def at_least(count: int) -> None:
                wanted = len(ledger.states) + count
                await until(lambda: len(ledger.states) >= wanted)

            async with asyncio.timeout(DEADLINE):
                workers = [asyncio.create_task(work()) for _ in range(4)]
                await at_least(40)
                for broker in cluster.brokers:
                    await broker.kill_async()
                    await at_least(20)
                    await broker.start_async()
                    await at_least(20)
                is_over = True
                await asyncio.gather(*workers)
                seen: set[str] = set()
                while not ledger.committed() <= seen:
                    await asyncio.sleep(0.1)
                    seen = await keys_of(cluster.namesrv, "t")
        assert len(ledger.committed()) >= 40
        assert seen - ledger.committed() == set()
