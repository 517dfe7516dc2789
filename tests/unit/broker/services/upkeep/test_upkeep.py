from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.base import watchdog
from pyromq.base.periodic import PeriodicTasks
from pyromq.broker.services.upkeep import upkeep
from pyromq.broker.services.upkeep.protection import BrokerProtection
from pyromq.broker.services.upkeep.upkeep import Upkeep
from tests.support.patience import until
from tests.unit.broker.assembled import AssembledBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path)
    yield broker
    await broker.close()


async def test_damage_of_the_store_is_logged(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put(b"one", b"two")
    service = Upkeep(broker.parts)
    await service.check_store()
    assert "damaged" not in caplog.text
    queue = broker.store.queue("T", 0).segments.files[0].path
    queue.rename(queue.with_name("elsewhere"))
    await service.check_store()
    queue.with_name("elsewhere").rename(queue)
    assert f"store is damaged: {queue} was removed by another process" in caplog.text


async def test_many_faults_take_few_lines(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [f"file {number}" for number in range(100)]
    monkeypatch.setattr(type(broker.store), "self_check", lambda _: lambda: faults)
    await Upkeep(broker.parts).check_store()
    assert len(caplog.records) == 17
    assert "84 further files" in caplog.text


async def test_everything_runs_until_it_is_stopped(
    broker: AssembledBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PROTECT_SECONDS", "CHECK_SECONDS", "DISPATCH_SECONDS", "_SELF_CHECK_SECONDS"):
        monkeypatch.setattr(upkeep, name, 0.01)
    monkeypatch.setattr(upkeep, "_FIRST_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "_FIRST_DISPATCH_SECONDS", 0.01)
    caplog.set_level("INFO")
    calls: list[str] = []

    def check() -> list[str]:
        calls.append("check")
        return []

    monkeypatch.setattr(type(broker.store), "self_check", lambda _: check)
    monkeypatch.setattr(BrokerProtection, "protect", lambda _: calls.append("protect"))
    service, periodic = Upkeep(broker.parts), PeriodicTasks()
    service.start(periodic)
    await until(lambda: {"check", "protect"} <= set(calls) and "dispatch behind" in caplog.text)
    await periodic.stop()
    service.stop()


async def test_a_blocked_loop_leaves_its_stacks_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_QUESTION_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "_DEBUG_LOCK_SECONDS", 0.05)
    broker = AssembledBroker(tmp_path, debug_lock_enable=True)
    service, periodic = Upkeep(broker.parts), PeriodicTasks()
    service.start(periodic)
    directory = broker.store.config.root / "debug"
    deadline = time.monotonic() + 45
    while not list(directory.glob("stacks-*.txt")) and time.monotonic() < deadline:
        time.sleep(0.01)  # noqa: ASYNC251 - the loop hangs
    await periodic.stop()
    service.stop()
    await broker.close()
    (dump,) = directory.glob("stacks-*.txt")
    assert "test_a_blocked_loop_leaves_its_stacks_in_the_store" in dump.read_text()


@pytest.mark.parametrize(
    ("hang_millis", "debug_lock", "seconds"),
    [(10_000, False, 10.0), (0, False, 0.0), (10_000, True, 1.0), (0, True, 1.0), (200, True, 0.2)],
)
async def test_how_long_the_loop_may_hang(
    tmp_path: Path, hang_millis: int, debug_lock: bool, seconds: float
) -> None:
    broker = AssembledBroker(tmp_path, debug_lock_enable=debug_lock)
    config = dataclasses.replace(broker.config, loop_hang_millis=hang_millis)
    service = Upkeep(dataclasses.replace(broker.parts, config=config))
    assert service._hang_seconds() == seconds
    await broker.close()
