from __future__ import annotations

import pytest

from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.protocol.codes import ResponseCode
from pyromq.protocol.frame import RemotingCommand
from pyromq.protocol.headers import HeaderError
from tests.unit.broker.fakes import FakeConnection


class Store:
    """Answers each question with its own number and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def max_offset(self, topic: str, queue_id: int) -> int:
        self.asked.append(("max", topic, queue_id))
        return 42

    def min_offset(self, topic: str, queue_id: int) -> int:
        self.asked.append(("min", topic, queue_id))
        return -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        self.asked.append(("time", topic, queue_id, timestamp))
        return 7

    def earliest_time(self, topic: str, queue_id: int) -> int:
        self.asked.append(("earliest", topic, queue_id))
        return 1700000000123


@pytest.mark.parametrize(
    ("method", "more", "asked", "answered"),
    [
        ("max_offset", {}, ("max", "t", 3), {"offset": "42"}),
        ("min_offset", {}, ("min", "t", 3), {"offset": "0"}),
        ("offset_by_time", {"timestamp": "99"}, ("time", "t", 3, 99), {"offset": "7"}),
        ("earliest_time", {}, ("earliest", "t", 3), {"timestamp": "1700000000123"}),
    ],
)
def test_answers_what_the_store_says(
    method: str, more: dict[str, str], asked: tuple[object, ...], answered: dict[str, str]
) -> None:
    store = Store()
    handler = getattr(QueueOffsetHandlers(store), method)
    request = RemotingCommand(30, opaque=9, ext_fields={"topic": "t", "queueId": "3", **more})
    answer = handler(FakeConnection(), request)
    assert store.asked == [asked]
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 9)
    assert answer.ext_fields == answered


@pytest.mark.parametrize("method", ["max_offset", "min_offset", "offset_by_time", "earliest_time"])
def test_missing_fields_are_named(method: str) -> None:
    handler = getattr(QueueOffsetHandlers(Store()), method)
    with pytest.raises(HeaderError, match="queueId"):
        handler(FakeConnection(), RemotingCommand(30, ext_fields={"topic": "t"}))
