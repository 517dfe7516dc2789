"""RocketMQ's own mqadmin looks at a push consumer of ours, and acts on it."""

from __future__ import annotations

import asyncio
import time

import pytest

from pyromq.client import Message, Producer, PushConsumer, ReceivedMessage, StartFrom
from tests.interop.mqadmin import Outcome, mqadmin, run
from tests.interop.servers import PyromqServer
from tests.support.patience import DEADLINE, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


async def test_mqadmin_looks_resets_and_gives_messages() -> None:
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message)

    with PyromqServer() as server, mqadmin() as admin:

        async def command(*words: str) -> Outcome:
            deadline = time.monotonic() + DEADLINE
            while True:
                outcome = await asyncio.to_thread(run, admin, server.namesrv_address, words)
                if not outcome.error:
                    return outcome
                # mqadmin gives nobody more than three seconds to take its connection.
                assert "RemotingConnectException" in outcome.error, outcome
                assert time.monotonic() < deadline, outcome

        async with Producer(server.namesrv_address) as producer:
            for number in range(5):
                await producer.send(Message("T", b"%d" % number, tags="a"))
        async with PushConsumer(
            server.namesrv_address,
            group="g",
            handler=handle,
            subscriptions={"T": "a || b"},
            start_from=StartFrom.FIRST,
        ) as consumer:
            await until(lambda: len(seen) == 5)

            status = await command("consumerStatus", "-g", "g", "-i", consumer.client_id, "-s")
            assert "PROP_CONSUME_TYPE" in status.out
            assert "CONSUME_PASSIVELY" in status.out
            assert "SubExpression: a || b" in status.out
            assert "#Consumer jstack#" in status.out

            progress = await command("consumerProgress", "-g", "g")
            assert "Consume TPS" in progress.out

            await command("resetOffsetByTime", "-g", "g", "-t", "T", "-s", "0")
            await until(lambda: len(seen) == 10)

            answer = await command(
                "queryMsgById", "-g", "g", "-d", consumer.client_id, "-i", seen[0].offset_msg_id
            )
            assert "CR_SUCCESS" in answer.out
            assert seen[-1].body == seen[0].body
            assert len(seen) == 11
