"""Questions asked again."""

from __future__ import annotations

import pytest

from pyromq.spark.options import ReadOptions, Topics
from pyromq.spark.origin import OriginError
from pyromq.spark.positions import PositionError
from pyromq.spark.retries import with_retries

OPTIONS = ReadOptions(wanted=Topics(("T",)), fetch_retries=2, fetch_retry_interval=0.5)


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
    assert with_retries(OPTIONS, asked.ask, asked.slept.append) == "answer"
    assert asked.slept == [0.5, 0.5]


def test_no_answer() -> None:
    asked = Asked(9, ConnectionRefusedError("away"))
    with pytest.raises(ConnectionRefusedError):
        with_retries(OPTIONS, asked.ask, asked.slept.append)
    assert asked.times == 3


def test_a_mistake_is_not_repeated() -> None:
    asked = Asked(1, PositionError("no such topic"))
    with pytest.raises(PositionError):
        with_retries(OPTIONS, asked.ask, asked.slept.append)
    assert asked.times == 1
