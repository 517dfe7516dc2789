from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pyromq.broker.handlers.admin.queue_offsets import QueueOffsetHandlers
from pyromq.broker.services.flow_control import Lane
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import HeaderError
from tests.unit.broker.fakes import FakeConnection


class Store:
    """Returns a different number from each method and records the arguments."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def max_offset(self, topic: str, queue_id: int) -> int:
        self.asked.append(("max", topic, queue_id))
        return 42

    def min_offset(self, topic: str, queue_id: int) -> int | None:
        self.asked.append(("min", topic, queue_id))
        return None

    def time_search(self, topic: str, queue_id: int, timestamp: int) -> Callable[[], int]:
        self.asked.append(("time", topic, queue_id, timestamp))
        return lambda: self.in_the_lane(7)

    def earliest_search(self, topic: str, queue_id: int) -> Callable[[], int]:
        self.asked.append(("earliest", topic, queue_id))
        return lambda: self.in_the_lane(1700000000123)

    def in_the_lane(self, answer: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return answer


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane("admin", 10)
    yield lane
    await lane.stop()


async def answered_by(handler: Any, request: RemotingCommand) -> RemotingCommand:
    """Return the response of a handler, which may be a coroutine."""
    answer = handler(FakeConnection(), request)
    return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "more", "asked", "answered"),
    [
        ("max_offset", {}, ("max", "t", 3), {"offset": "42"}),
        ("min_offset", {}, ("min", "t", 3), {"offset": "0"}),
        ("offset_by_time", {"timestamp": "99"}, ("time", "t", 3, 99), {"offset": "7"}),
        ("earliest_time", {}, ("earliest", "t", 3), {"timestamp": "1700000000123"}),
    ],
)
async def test_responses_carry_the_numbers_of_the_store(
    lane: Lane,
    method: str,
    more: dict[str, str],
    asked: tuple[object, ...],
    answered: dict[str, str],
) -> None:
    store = Store()
    handler = getattr(QueueOffsetHandlers(store, lane), method)
    request = RemotingCommand(30, opaque=9, ext_fields={"topic": "t", "queueId": "3", **more})
    answer = await answered_by(handler, request)
    assert store.asked == [asked]
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 9)
    assert answer.ext_fields == answered


@pytest.mark.parametrize("method", ["max_offset", "min_offset", "offset_by_time", "earliest_time"])
async def test_missing_fields_are_named(lane: Lane, method: str) -> None:
    handler = getattr(QueueOffsetHandlers(Store(), lane), method)
    with pytest.raises(HeaderError, match="queueId"):
        await answered_by(handler, RemotingCommand(30, ext_fields={"topic": "t"}))
