from __future__ import annotations

import asyncio
import logging

import pytest

from pyromq.client.session import away as away_module
from pyromq.client.session.away import AwayBrokers
from tests.support.patience import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away_module, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(away_module, "MAX_PAUSE_SECONDS", 0.002)


async def test_a_broker_is_away_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []
    is_back = False

    async def answers(address: str) -> bool:
        asked.append(address)
        return is_back

    away = AwayBrokers(answers, lambda _: True)
    assert not away
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            away.add("a:1", RuntimeError("refused"))
        assert "a:1" in away
        assert "b:1" not in away
        assert caplog.text.count("broker a:1 is away") == 1
        assert "refused" in caplog.text
        await until(lambda: len(asked) > 2)
        assert away
        is_back = True
        await until(lambda: not away)
        assert "broker a:1 is back" in caplog.text
    assert set(asked) == {"a:1"}


async def test_a_broker_that_left_the_routes_is_forgotten() -> None:
    listed = {"a:1"}

    async def answers(_: str) -> bool:
        return False

    away = AwayBrokers(answers, listed.__contains__)
    away.add("a:1", RuntimeError("refused"))
    listed.clear()
    await until(lambda: not away)


async def test_nothing_waits_after_close() -> None:
    async def answers(_: str) -> bool:
        await asyncio.Event().wait()
        return True

    away = AwayBrokers(answers, lambda _: True)
    away.add("a:1", RuntimeError("refused"))
    await asyncio.sleep(0.01)
    await away.close()
    assert not away
    away.add("a:1", RuntimeError("refused"))
    assert not away


async def test_a_broker_that_answered_otherwise_is_used_again_at_once() -> None:
    async def answers(_: str) -> bool:
        return False

    away = AwayBrokers(answers, lambda _: True)
    away.remove("a:1")
    away.add("a:1", RuntimeError("refused"))
    away.remove("a:1")
    assert not away
    away.add("a:1", RuntimeError("refused"))
    await asyncio.sleep(0.01)  # the end of the first task must not end the second
    assert away
    await away.close()
