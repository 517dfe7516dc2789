"""SYNC_FLUSH and power cuts: what a client was told is stored is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import load_broker_properties
from pyromq.store.offline.check import check_store
from tests.support.crash import SETTINGS, STORE_SETTINGS, Acknowledged, Load, check_files, seeds
from tests.support.patience import PATIENT_PROPERTIES
from tests.support.power_cut import Disk
from tests.support.stores import small_config

GENERATIONS = 3
#: A load that the machine is too slow for ends after so many seconds.
_LONGEST = 20.0


def broker_on(root: Path) -> Broker:
    settings = {
        **PATIENT_PROPERTIES,
        **{name: str(value) for name, value in SETTINGS.items()},
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "flushDiskType": "SYNC_FLUSH",
        "listenPort": "0",
        "storePathRootDir": str(root),
    }
    loaded = load_broker_properties(settings)
    return Broker(loaded.broker, loaded.store)


async def send_until_the_power_goes(root: Path, load: Load, chooser: random.Random) -> Disk:
    """Run a broker under load until a random moment; what is promised then is not more."""
    disk = Disk(root, random.Random(chooser.random()))
    disk.cut_at = chooser.randint(20, 200)
    promised: list[Acknowledged] = []
    disk.on_cut = lambda: promised.extend(load.acknowledged)
    with disk.recording():
        broker = broker_on(root)
        await broker.start()
        sending = asyncio.create_task(load.run(broker.address, connections=3, in_flight=2))
        try:
            async with asyncio.timeout(_LONGEST):
                while disk.remains is None:
                    disk.write_back()
                    await asyncio.sleep(0.005)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await broker.stop()
    load.acknowledged = promised
    return disk


async def cut_again_and_again(directory: Path, seed: int) -> None:
    chooser = random.Random(seed)
    load = Load(seed)
    root = directory / "store"
    root.mkdir()
    for generation in range(GENERATIONS):
        disk = await send_until_the_power_goes(root, load, chooser)
        root = disk.restore(directory / f"store{generation}")
        copy = disk.restore(directory / f"copy{generation}")
        check_files(copy, load.acknowledged)
        config = small_config(copy, **STORE_SETTINGS)
        assert [str(violation) for violation in check_store(copy, config)] == []
    assert load.acknowledged


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_acknowledged_survives_power_cuts(tmp_path: Path, seed: int) -> None:
    await cut_again_and_again(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(60))
async def test_what_was_acknowledged_survives_many_power_cuts(tmp_path: Path, seed: int) -> None:
    await cut_again_and_again(tmp_path, seed)
