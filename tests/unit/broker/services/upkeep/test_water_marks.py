from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyromq.broker.services.upkeep.water_marks import WaterMarks
from tests.unit.broker.assembled import AssembledBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AssembledBroker]:
    broker = AssembledBroker(tmp_path)
    yield broker
    await broker.close()


async def test_waiting_requests_are_reported(
    broker: AssembledBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    marks = broker.parts.water_marks
    marks.check()
    assert "requests wait" not in caplog.text
    may_end = threading.Event()
    work = [broker.lanes.query.submit(may_end.wait) for _ in range(5)]
    marks.check()
    may_end.set()
    for future in work:
        await future
    assert "requests wait: query 1 of 20000, the first for" in caplog.text


async def test_the_dispatch_and_its_largest_backlog(
    broker: AssembledBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    behind = [0]
    monkeypatch.setattr(type(broker.store), "dispatch_behind", property(lambda _: behind[0]))
    marks = WaterMarks(broker.lanes, broker.store)
    behind[0] = 4096
    marks.check()
    behind[0] = 5
    marks.report_dispatch()
    assert marks.max_dispatch_behind == 4096
    assert "dispatch behind commit log 5 bytes, at most 4096 so far" in caplog.text
