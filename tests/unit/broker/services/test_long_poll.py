from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any, Protocol

import pytest

from pyromq.broker.services import long_poll as module
from pyromq.broker.services.long_poll import LongPoll, ParkedPull
from pyromq.broker.services.turns import TURN_SECONDS
from pyromq.protocol.wire.frame import RequestError
from pyromq.remoting.connection import MAX_UNSENT
from pyromq.store.queues.consume_queue import ConsumeQueue
from tests.support.brokers import local_broker
from tests.support.patience import until


class Peer:
    """A connection that records writes."""

    def __init__(self) -> None:
        self.remote_address = "10.0.0.1:1"
        self.closed = False
        self.unsent = 0
        self.written: list[bytes] = []

    def write(self, frames: bytes) -> None:
        assert not self.closed
        self.written.append(frames)

    def close(self) -> None:
        self.closed = True


class Answers:
    """Decides for all pulls of a test: they complete when `ready`."""

    def __init__(self) -> None:
        self.ready = False
        #: Each call: the pull's name, and whether it expired.
        self.runs: list[tuple[Any, bool]] = []
        self.cancelled: list[Any] = []
        self.failing: set[Any] = set()
        #: The duration of each call.
        self.seconds = 0.0


class NamedPull(ParkedPull):
    """A parked pull that answers with its name."""

    def __init__(
        self, answers: Answers, name: Any, peer: Peer, seconds: float, weight: int
    ) -> None:
        super().__init__(peer, seconds, weight=weight)  # type: ignore[arg-type]
        self.name = name
        self._answers = answers

    def try_complete(self) -> bool:
        self._run(is_over=False)
        if self._answers.ready:
            self.connection.write(b"%s found" % str(self.name).encode())
        return self._answers.ready

    def expire(self) -> None:
        self._run(is_over=True)
        self.connection.write(b"%s over" % str(self.name).encode())

    def cancel(self) -> None:
        self._answers.cancelled.append(self.name)

    def _run(self, *, is_over: bool) -> None:
        answers = self._answers
        answers.runs.append((self.name, is_over))
        end = time.perf_counter() + answers.seconds
        while time.perf_counter() < end:
            pass
        if self.name in answers.failing:
            raise RuntimeError("broken pull")


class MakePull(Protocol):
    def __call__(
        self, name: object, peer: Peer, seconds: float = 100.0, weight: int = 0
    ) -> ParkedPull: ...


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def long_poll(answers: Answers) -> Any:
    parked = LongPoll()
    parked.start()
    yield parked
    answers.failing.clear()
    parked.stop()


@pytest.fixture
def queues(tmp_path: Path) -> list[ConsumeQueue]:
    return [ConsumeQueue(tmp_path, 2000, "T", number) for number in range(2)]


@pytest.fixture
def pull(answers: Answers) -> MakePull:
    def make(name: object, peer: Peer, seconds: float = 100.0, weight: int = 0) -> ParkedPull:
        return NamedPull(answers, name, peer, seconds, weight)

    return make


async def test_an_arrival_wakes_all_that_wait_on_its_queue(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    peers = [Peer() for _ in range(100)]
    for number, peer in enumerate(peers):
        long_poll.park(queues[0], pull(number, peer))
    beside = Peer()
    long_poll.park(queues[1], pull("beside", beside))
    assert len(long_poll) == 101
    assert [queue.watched for queue in queues] == [True, True]

    answers.ready = True
    long_poll.arrived(queues[0])
    assert answers.runs == []  # the chunk is not over yet
    await asyncio.sleep(0)

    assert [peer.written for peer in peers] == [[b"%d found" % n] for n in range(100)]
    assert beside.written == []
    assert len(long_poll) == 1
    assert [queue.watched for queue in queues] == [False, True]


async def test_arrivals_of_one_iteration_wake_once(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    peer = Peer()
    long_poll.park(queues[0], pull("a", peer))
    long_poll.park(queues[1], pull("b", peer))
    for _ in range(5):
        long_poll.arrived(queues[0])
        long_poll.arrived(queues[1])
    await asyncio.sleep(0)

    assert sorted(answers.runs) == [("a", False), ("b", False)]
    assert len(long_poll) == 2  # nothing for them: they keep waiting
    assert all(queue.watched for queue in queues)

    answers.ready = True
    long_poll.arrived(queues[0])
    await asyncio.sleep(0)
    assert peer.written == [b"a found"]


async def test_an_arrival_in_a_queue_without_waiting_pulls_does_nothing(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue]
) -> None:
    queues[0].watched = True
    long_poll.arrived(queues[0])
    await asyncio.sleep(0)

    assert answers.runs == []
    assert not queues[0].watched


async def test_only_expired_pulls_are_answered(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    peer = Peer()
    long_poll.park(queues[0], pull("short", peer, 0.02))
    long_poll.park(queues[0], pull("long", peer))
    await until(lambda: peer.written)

    assert peer.written == [b"short over"]
    assert len(long_poll) == 1
    assert queues[0].watched


async def test_pulls_of_closed_connections_are_cancelled(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    gone, there = Peer(), Peer()
    long_poll.park(queues[0], pull("gone", gone))
    long_poll.park(queues[1], pull("gone too", gone))
    long_poll.park(queues[1], pull("there", there))
    gone.close()
    await until(lambda: len(long_poll) == 1)

    assert not queues[0].watched
    assert queues[1].watched
    assert answers.runs == []
    assert sorted(answers.cancelled) == ["gone", "gone too"]


async def test_a_stop_expires_all_pulls(
    answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    long_poll = LongPoll()
    long_poll.start()
    peers = [Peer() for _ in range(4)]
    for number, peer in enumerate(peers):
        long_poll.park(queues[number % 2], pull(number, peer))
    peers[3].close()

    long_poll.stop()

    assert [peer.written for peer in peers[:3]] == [[b"0 over"], [b"1 over"], [b"2 over"]]
    assert peers[3].written == []
    assert len(long_poll) == 0
    seen = len(answers.runs)
    await asyncio.sleep(0.05)
    assert len(answers.runs) == seen  # no tick any more


async def test_a_stop_before_the_start_does_nothing() -> None:
    LongPoll().stop()


async def test_too_many_on_one_queue_expire_the_oldest(
    long_poll: LongPoll, queues: list[ConsumeQueue], monkeypatch: pytest.MonkeyPatch, pull: MakePull
) -> None:
    monkeypatch.setattr(module, "_MAX_PER_QUEUE", 3)
    peer = Peer()
    for number in range(5):
        long_poll.park(queues[0], pull(number, peer))

    assert peer.written == [b"0 over", b"1 over"]
    assert len(long_poll) == 3


async def test_a_client_that_does_not_read_gets_no_responses_until_it_does(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    slow, quick = Peer(), Peer()
    slow.unsent = MAX_UNSENT + 1
    long_poll.park(queues[0], pull("slow", slow))
    long_poll.park(queues[0], pull("quick", quick))
    answers.ready = True
    long_poll.arrived(queues[0])
    await asyncio.sleep(0)

    assert quick.written == [b"quick found"]
    assert slow.written == []
    assert len(long_poll) == 1
    slow.unsent = MAX_UNSENT
    await until(lambda: slow.written)
    assert len(long_poll) == 0


async def test_a_failing_pull_does_not_affect_others(
    long_poll: LongPoll,
    answers: Answers,
    queues: list[ConsumeQueue],
    caplog: pytest.LogCaptureFixture,
    pull: MakePull,
) -> None:
    broken, fine, later = Peer(), Peer(), Peer()
    answers.failing = {"broken"}
    long_poll.park(queues[0], pull("broken", broken, 0.0))
    long_poll.park(queues[0], pull("fine", fine, 0.0))
    with caplog.at_level(logging.ERROR):
        await until(lambda: fine.written)

    assert broken.closed
    assert answers.cancelled == ["broken"]
    assert [record.getMessage() for record in caplog.records] == [
        "waiting pull of 10.0.0.1:1 failed: connection closed"
    ]
    long_poll.park(queues[0], pull("later", later, 0.0))
    await until(lambda: later.written)  # the ticks continue


async def test_many_woken_pulls_run_in_slices(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    """The loop stays responsive however many pulls wait."""
    answers.seconds = TURN_SECONDS / 4
    peer = Peer()
    for number in range(40):
        long_poll.park(queues[number % 2], pull(number, peer))
    long_poll.arrived(queues[0])
    long_poll.arrived(queues[1])
    await asyncio.sleep(0)
    assert 1 <= len(answers.runs) <= 8
    # A message in between wakes all pulls of its queue, none of them twice.
    long_poll.arrived(queues[0])
    await until(lambda: len(answers.runs) >= 40 and not long_poll.turns)
    names = [name for name, _ in answers.runs]
    assert sorted(set(names)) == list(range(40))
    assert len(names) <= 48
    assert len(long_poll) == 40


async def test_pulls_that_expire_together_are_answered_in_slices(
    long_poll: LongPoll, answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    answers.seconds = TURN_SECONDS / 4
    peer = Peer()
    for number in range(40):
        long_poll.park(queues[0], pull(number, peer, 0.0))
    seen = set()
    while len(peer.written) < 40:
        seen.add(len(peer.written))
        await asyncio.sleep(0)
    assert len(seen) > 4
    assert peer.written == [b"%d over" % number for number in range(40)]
    assert len(long_poll) == 0


async def test_no_pull_waits_longer_than_allowed(
    answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    long_poll = LongPoll(local_broker(max_suspend_timeout_millis=20))
    long_poll.start()
    peer = Peer()
    long_poll.park(queues[0], pull("for years", peer, 1e9))
    await until(lambda: peer.written)
    assert peer.written == [b"for years over"]
    long_poll.stop()


async def test_the_limits_of_parked_pulls(
    answers: Answers, queues: list[ConsumeQueue], pull: MakePull
) -> None:
    config = local_broker(
        max_parked_pulls=5, max_parked_pulls_per_connection=3, max_parked_expression_size=100
    )
    long_poll = LongPoll(config)
    long_poll.start()

    def park(peer: Peer, *, seconds: float = 100.0, weight: int = 0) -> str:
        try:
            long_poll.park(queues[0], pull(0, peer, seconds, weight))
        except RequestError as refused:
            return f"{refused.code.name}: {refused.remark}"
        return ""

    one, other = Peer(), Peer()
    held = "waiting pulls hold expressions of"
    limit_of_size = "limit 100 (maxParkedExpressionSize)"
    assert [park(one, weight=40) for _ in range(3)] == [
        "",
        "",
        f"SYSTEM_BUSY: {held} 80 characters, this one has 40, {limit_of_size}",
    ]
    assert [park(one) for _ in range(2)] == [
        "",
        "SYSTEM_BUSY: 3 pulls of this connection wait, limit 3 (maxParkedPullsPerConnection)",
    ]
    assert [park(other, seconds=0.0) for _ in range(3)] == [
        "",
        "",
        "SYSTEM_BUSY: 5 pulls wait, limit 5 (maxParkedPulls)",
    ]
    await until(lambda: len(other.written) == 2)
    assert park(other, seconds=0.0, weight=20) == ""
    await until(lambda: len(other.written) == 3)
    one.close()
    await until(lambda: not len(long_poll))
    assert park(other, weight=100) == ""
    long_poll.stop()
