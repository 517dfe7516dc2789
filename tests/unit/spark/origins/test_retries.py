"""Retries with backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyromq.spark.origins.origin import OriginError, UnreachableError
from pyromq.spark.origins.retries import MAX_PAUSE, Backoff, with_retries
from pyromq.spark.reading.positions import PositionError


def backoff(sleep: Callable[[float], object], **settings: Any) -> Backoff:
    return Backoff(0.5, 2, sleep=sleep, **settings)


class Asked:
    def __init__(self, failures: int, error: Exception) -> None:
        self.failures = failures
        self.error = error
        self.times = 0
        self.slept: list[float] = []

    def ask(self) -> str:
        self.times += 1
        if self.times <= self.failures:
            raise self.error
        return "answer"


def test_an_answer_after_two_failures() -> None:
    asked = Asked(2, OriginError("away"))
    assert with_retries(asked.ask, backoff(asked.slept.append)) == "answer"
    assert asked.slept == [0.5, 1.0]


def test_no_answer() -> None:
    asked = Asked(9, ConnectionRefusedError("away"))
    with pytest.raises(ConnectionRefusedError):
        with_retries(asked.ask, backoff(asked.slept.append))
    assert asked.times == 3


def test_a_mistake_is_not_repeated() -> None:
    asked = Asked(1, PositionError("no such topic"))
    with pytest.raises(PositionError):
        with_retries(asked.ask, backoff(asked.slept.append))
    assert asked.times == 1


class Clock:
    """A clock that advances with every sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_servers_that_are_away_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    asked = Asked(1000, UnreachableError("away"))
    with caplog.at_level("WARNING"), pytest.raises(UnreachableError):
        with_retries(asked.ask, backoff(clock.sleep, patience=300.0, clock=clock))
    assert clock.now - 1000.0 == 300.0
    assert clock.slept[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, MAX_PAUSE]
    assert max(clock.slept) == MAX_PAUSE
    assert "attempt 1 failed, retrying in 0.5 s, for at most 300 s more: away" in caplog.text


def test_a_refusal_is_not_waited_for() -> None:
    clock = Clock()
    asked = Asked(1000, OriginError("no permission"))
    with pytest.raises(OriginError):
        with_retries(asked.ask, backoff(clock.sleep, patience=300.0, clock=clock))
    assert asked.times == 3


def test_progress_resets_the_backoff() -> None:
    clock = Clock()
    backoff = Backoff(1.0, patience=10.0, sleep=clock.sleep, clock=clock)
    for _ in range(50):
        assert backoff.wait("away")
        backoff.reset()
    assert set(clock.slept) == {1.0}
    assert not Backoff(1.0).wait("away")
