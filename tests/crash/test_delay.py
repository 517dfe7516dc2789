"""Delayed messages of a broker that is killed: none is lost, and none that was delivered, a
turn of the loop before the kill, comes again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from pyromq.protocol.message.record import decode_records
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.remoting.client import RemotingClient
from pyromq.remoting.errors import RemotingError
from tests.support.crash import BrokerProcess, seeds
from tests.support.patience import DEADLINE
from tests.support.requests import pull_request, send_request

_LEVELS = "1s 2s"


async def send(client: RemotingClient, address: str, body: bytes, level: int) -> None:
    request = send_request(body=body, queueId="0", properties=f"DELAY\x01{level}")
    answer = await client.request(address, request, DEADLINE)
    assert answer.code == ResponseCode.SUCCESS, answer


async def bodies(client: RemotingClient, address: str) -> list[bytes]:
    """All that is in queue 0 of the topic."""
    found: list[bytes] = []
    while True:
        request = pull_request(queueOffset=str(len(found)))
        answer = await client.request(address, request, DEADLINE)
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [record.body for record in decode_records(answer.body)]


async def until_all(client: RemotingClient, address: str, wanted: set[bytes]) -> list[bytes]:
    """Wait until everything that is wanted has been delivered."""
    async with asyncio.timeout(DEADLINE):
        # The broker delivers: only asking tells.
        while not wanted <= set(found := await bodies(client, address)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_what_was_delivered_before_a_kill_does_not_come_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = {b"%d" % number for number in range(200)}
    client = RemotingClient()
    broker = await BrokerProcess.start(
        store, messageDelayLevel=_LEVELS, flushDelayOffsetInterval=3_600_000
    )
    try:
        await asyncio.gather(*(send(client, broker.address, body, 1) for body in first))
        await until_all(client, broker.address, first)
        await send(client, broker.address, b"waits", 2)
    finally:
        await broker.kill()
    broker = await BrokerProcess.start(store, messageDelayLevel=_LEVELS)
    try:
        await send(client, broker.address, b"last", 1)
        found = await until_all(client, broker.address, {b"waits", b"last"})
    finally:
        await broker.kill()
        await client.close()
    assert Counter(found) == Counter([*first, b"waits", b"last"])


async def kill_while_delivering(store: Path, seed: int, rounds: int) -> None:
    """Send with delays and kill, again and again; in the end everything must be there."""
    chooser = random.Random(seed)
    acknowledged: list[bytes] = []
    numbers = iter(range(1 << 40))

    async def load(client: RemotingClient, address: str) -> None:
        while True:
            body = b"%d" % next(numbers)
            try:
                await send(client, address, body, chooser.choice((1, 2)))
            except RemotingError:
                return
            acknowledged.append(body)

    for _ in range(rounds):
        broker = await BrokerProcess.start(store, messageDelayLevel=_LEVELS)
        client = RemotingClient()
        try:
            loads = [asyncio.create_task(load(client, broker.address)) for _ in range(8)]
            await asyncio.sleep(chooser.uniform(0.5, 2.0))
        finally:
            printed = await broker.kill()
        await asyncio.gather(*loads)
        await client.close()
        assert b"Traceback" not in printed, printed.decode()
    broker = await BrokerProcess.start(store, messageDelayLevel=_LEVELS)
    client = RemotingClient()
    try:
        found = await until_all(client, broker.address, set(acknowledged))
    finally:
        await broker.kill()
        await client.close()
    repeated = sum(count - 1 for count in Counter(found).values())
    # A kill can fall between the write of a turn's copies and the note of them.
    assert repeated <= 256 * rounds
    assert len(acknowledged) > 10 * rounds


async def test_no_delayed_message_is_lost_by_a_kill(tmp_path: Path) -> None:
    await kill_while_delivering(tmp_path / "store", seed=1, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(3))
async def test_no_delayed_message_is_lost_by_many_kills(tmp_path: Path, seed: int) -> None:
    await kill_while_delivering(tmp_path / "store", seed, rounds=10)
