"""The pull window against a broker in memory: order, adaptation, backoff and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyromq.client.consumer.pull_request import PullNumbers, pull_command
from pyromq.client.consumer.subscription import Subscription
from pyromq.protocol.message.bulk import record_places
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import RemotingCommand
from pyromq.protocol.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader
from pyromq.remoting.blocking import Reply
from pyromq.remoting.errors import RemotingError
from pyromq.spark.origins import window
from pyromq.spark.origins.origin import (
    LostRecords,
    OriginError,
    Queue,
    QueueRange,
    UnreachableError,
)
from pyromq.spark.origins.window import PullWindow, check_response
from tests import kernel_builds
from tests.unit.spark.fake_origin import FakeOrigin

QUEUE = Queue("T", "a", 0)


@pytest.fixture(autouse=True, params=[None, kernel_builds.FAST], ids=["pure", "compiled"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find records with the Python code, and with the kernel."""
    used: kernel_builds.Build | None = request.param
    monkeypatch.setattr(window, "load", lambda name: used and kernel_builds.load(used, name))


class FakeConnection:
    """A broker with offsets from `first` to `end` that returns at most `limit` for each pull."""

    address = "127.0.0.1:10911"

    def __init__(self, first: int = 0, end: int = 1000, limit: int = 1000) -> None:
        self.origin = FakeOrigin({QUEUE: (first, end)})
        self.first = first
        self.end = end
        self.limit = limit
        self.pulls: list[tuple[int, int]] = []
        self.most_in_flight = 0
        #: Responses to the next pulls, in place of records.
        self.codes: list[ResponseCode] = []
        self.failing_after: int | None = None
        self._in_flight: list[RemotingCommand] = []

    def send(self, command: RemotingCommand) -> int:
        header = PullMessageRequestHeader.decode(command.ext_fields)
        self.pulls.append((header.queue_offset, header.max_msg_nums))
        command.opaque = len(self.pulls)
        self._in_flight.append(command)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        return command.opaque

    def receive(self) -> Reply:
        if self.failing_after is not None:
            self.failing_after -= 1
            if self.failing_after < 0:
                raise RemotingError(self.address, "connection reset")
        # The newest first: responses may overtake each other.
        request = self._in_flight.pop()
        header = PullMessageRequestHeader.decode(request.ext_fields)
        start = header.queue_offset
        code = self.codes.pop(0) if self.codes else ResponseCode.SUCCESS
        body, following = b"", start
        if code is ResponseCode.SUCCESS and not self.first <= start < self.end:
            code = ResponseCode.PULL_OFFSET_MOVED
        elif code is ResponseCode.SUCCESS:
            following = min(start + min(header.max_msg_nums, self.limit), self.end)
            body = bytes(self.origin._block(QUEUE, range(start, following)).buffer)
        fields = PullMessageResponseHeader(0, following, self.first, self.end).encode()
        response = RemotingCommand(code, opaque=request.opaque, ext_fields=fields)
        response.remark = "no"
        return Reply(response, memoryview(body))


def open_window(
    connection: Any,
    start: int = 0,
    end: int = 1000,
    *,
    is_complete: bool = True,
    is_replica: bool = False,
) -> PullWindow:
    def pull(offset: int, count: int) -> RemotingCommand:
        return pull_command("group", "T", 0, Subscription(), PullNumbers(offset, count))

    wanted = QueueRange(QUEUE, start, end)
    return PullWindow(connection, pull, wanted, is_complete=is_complete, is_replica=is_replica)


def read(opened: PullWindow) -> Iterator[int | str]:
    """Yield offsets, and losses as text."""
    for block in opened.blocks():
        if isinstance(block, LostRecords):
            yield f"{block.start}-{block.end}: {block.reason}"
        else:
            yield from record_places(block.buffer, block.starts).queue_offsets.tolist()


def test_one_pull_is_enough_for_a_small_range() -> None:
    connection = FakeConnection()
    opened = open_window(connection)
    assert list(read(opened)) == list(range(1000))
    assert connection.pulls == [(0, 1000)]
    assert opened.is_finished


def test_a_broker_that_caps_pulls_gets_more_of_them() -> None:
    connection = FakeConnection(end=5000, limit=32)
    assert list(read(open_window(connection, 0, 5000))) == list(range(5000))
    assert connection.most_in_flight > 30
    assert len(connection.pulls) < 5000 / 32 + 70


def test_a_busy_broker_is_retried_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(window.time, "sleep", slept.append)  # type: ignore[attr-defined]
    connection = FakeConnection()
    connection.codes = [ResponseCode.SYSTEM_BUSY] * 3
    assert list(read(open_window(connection))) == list(range(1000))
    assert slept == [0.05, 0.1, 0.2]
    connection.codes = [ResponseCode.SYSTEM_BUSY] * 20
    with pytest.raises(UnreachableError, match=r"PULL_MESSAGE of T@a:0 at .*: SYSTEM_BUSY: no"):
        list(read(open_window(connection)))
    assert len(slept) == 3 + 8


def test_offsets_outside_of_the_queue_are_lost() -> None:
    connection = FakeConnection(first=10, end=20)
    assert list(read(open_window(connection, 5, 25))) == [
        "5-10: they have expired",
        *range(10, 20),
        "20-25: the queue ends at 20",
    ]


@pytest.mark.parametrize(
    ("start", "codes", "found"),
    [
        (5, [], []),  # before its first
        (12, [], list(range(12, 20))),  # after its last
        (12, [ResponseCode.PULL_RETRY_IMMEDIATELY], []),  # so Java's replicas put it
        (12, [ResponseCode.PULL_NOT_FOUND], []),
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
def test_what_a_replica_lacks_is_not_lost(
    start: int, codes: list[ResponseCode], found: list[int], is_complete: bool
) -> None:
    connection = FakeConnection(first=10, end=20)
    connection.codes = [*codes]
    opened = open_window(connection, start, 25, is_complete=is_complete, is_replica=True)
    got: list[int | str] = []
    with pytest.raises(UnreachableError, match=r"the replica at .* lacks offset"):  # noqa: PT012
        for each in read(opened):
            got.append(each)  # noqa: PERF402 - a list would lose what came before the error
    assert got == found
    assert opened.position == (found[-1] + 1 if found else start)


def test_a_segment_that_is_being_deleted_is_lost() -> None:
    connection = FakeConnection()
    connection.codes = [ResponseCode.PULL_RETRY_IMMEDIATELY]
    found = list(read(open_window(connection, 0, 4)))
    assert found == ["0-1: they have expired", 1, 2, 3]


def test_a_failure_tells_how_far_the_read_came() -> None:
    connection = FakeConnection(limit=100)
    connection.failing_after = 2
    opened = open_window(connection)
    with pytest.raises(UnreachableError, match=r"reading T@a:0: .*connection reset"):
        list(read(opened))
    assert opened.position >= 100
    assert not opened.is_finished


def test_a_refusal() -> None:
    refused = RemotingCommand(ResponseCode.NO_PERMISSION)
    refused.remark = "not yours"
    with pytest.raises(OriginError, match="GET_MIN_OFFSET at a:1: NO_PERMISSION: not yours") as no:
        check_response(refused, "GET_MIN_OFFSET at a:1")
    assert not isinstance(no.value, UnreachableError)
    check_response(RemotingCommand(ResponseCode.SUCCESS), "anything")
