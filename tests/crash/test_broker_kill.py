"""A whole broker under load, killed at random moments, also while it starts."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.support.crash import (
    BrokerProcess,
    Load,
    check_files,
    check_wire,
    seeds,
    until_more_than,
)

#: Longer than a start takes.
_START_SECONDS = 1.2
_LOAD_SECONDS = 0.25


async def kill_again_and_again(directory: Path, seed: int, rounds: int) -> None:
    """Load and kill one store so many times, and look at what each kill left."""
    chooser = random.Random(seed)
    load = Load(seed)
    for round_number in range(rounds):
        if chooser.random() < 0.3:
            # The start itself is killed: somewhere in its recovery, or just before or after.
            broker = await BrokerProcess.launch(directory)
            await asyncio.sleep(chooser.uniform(0.2, _START_SECONDS))
            await broker.kill()
        broker = await BrokerProcess.start(directory)
        try:
            sending = asyncio.create_task(load.run(broker.address))
            await asyncio.sleep(chooser.random() ** 2 * _LOAD_SECONDS)
            if round_number == rounds - 1:
                await until_more_than(10 * rounds, load.acknowledged, sending)
        finally:
            printed = await broker.kill()
        await sending
        assert b"Traceback" not in printed, printed.decode()
        # A copy is looked at: the next broker is to find what the kill left.
        copy = directory.with_name(f"copy{round_number}")
        shutil.copytree(directory, copy)
        check_files(copy, load.acknowledged)
        shutil.rmtree(copy)
    broker = await BrokerProcess.start(directory)
    try:
        await check_wire(broker.address, load.acknowledged)
    finally:
        await broker.kill()
    assert len(load.acknowledged) > 10 * rounds


async def test_acknowledged_messages_survive_kills_of_the_broker(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "store", seed=1, rounds=5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds(5))
async def test_acknowledged_messages_survive_many_kills(tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(tmp_path / "store", seed, rounds=10)
