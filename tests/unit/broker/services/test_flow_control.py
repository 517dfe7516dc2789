from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import AsyncIterator
from functools import partial
from unittest.mock import create_autospec

import pytest

from pyromq.acl import classification as access
from pyromq.broker.config import BrokerConfig
from pyromq.broker.routes import Pool, Route, Routes, runs
from pyromq.broker.services import flow_control
from pyromq.broker.services.flow_control import (
    OVERLOAD,
    REJECT_REQUEST,
    Admission,
    FastFailure,
    Lane,
    Lanes,
    SharedBody,
    refuse_sends,
    reject_sends_while,
)
from pyromq.protocol.wire.codes import RequestCode, ResponseCode
from pyromq.protocol.wire.frame import RawFrame, RemotingCommand, RequestError
from pyromq.remoting.connection import Connection
from pyromq.remoting.service import Service
from pyromq.store.config import MessageStoreConfig
from pyromq.store.growth import Growth
from tests.support.patience import DEADLINE, until
from tests.support.requests import pull_request, send_request
from tests.unit.broker.assembled import Client, served

POOLS: dict[int, Pool] = {
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
        ),
        Pool.SEND,
    ),
    RequestCode.PULL_MESSAGE: Pool.PULL,
    RequestCode.HEART_BEAT: Pool.HEARTBEAT,
    RequestCode.END_TRANSACTION: Pool.TRANSACTION,
}


class Gate:
    """Work that stays in its thread until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(DEADLINE)
        return threading.current_thread().name


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


async def stuck(lane: Lane, gate: Gate) -> asyncio.Task[str]:
    """Work that holds the lane's only thread."""
    task = asyncio.create_task(lane.run(gate))
    assert await asyncio.to_thread(gate.begun.wait, DEADLINE)
    return task


async def test_work_runs_in_a_thread_of_the_lane_and_its_value_comes_back(gate: Gate) -> None:
    lane = Lane("query", 1)
    gate.open.set()

    assert (await lane.run(gate)).startswith("pyromq-query")
    await lane.stop()


async def test_what_work_raises_comes_back() -> None:
    lane = Lane("query", 1)

    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    await lane.stop()


async def test_the_loop_goes_on_while_work_takes_long(gate: Gate) -> None:
    lane = Lane("admin", 1)
    task = await stuck(lane, gate)

    await asyncio.sleep(0)
    assert not task.done()
    gate.open.set()
    await task
    await lane.stop()


async def test_one_more_than_may_wait_is_refused(gate: Gate) -> None:
    lane = Lane("query", 2, threads=1)
    first = await stuck(lane, gate)
    waiting = [lane.submit(partial(int, number)) for number in range(2)]

    with pytest.raises(RequestError) as refused:
        await lane.run(lambda: 3)

    assert refused.value.code is ResponseCode.SYSTEM_BUSY
    assert refused.value.remark == OVERLOAD
    assert (lane.size, lane.capacity) == (2, 2)
    gate.open.set()
    await first
    assert await asyncio.gather(*waiting) == [0, 1]
    assert await lane.run(lambda: 4) == 4
    await lane.stop()


async def test_a_lane_whose_threads_are_free_takes_work_whatever_its_capacity() -> None:
    lane = Lane("query", 1, threads=2)

    assert await asyncio.gather(*(lane.run(lambda: 1) for _ in range(3))) == [1, 1, 1]
    await lane.stop()


async def test_what_waits_too_long_is_refused_although_every_thread_is_stuck(gate: Gate) -> None:
    lane = Lane("pull", 10, threads=1, wait_limit_ms=20)
    first = await stuck(lane, gate)
    begun: list[int] = []
    waiting = [lane.submit(partial(begun.append, number)) for number in range(3)]

    refusals = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), DEADLINE)

    for refusal in refusals:
        assert isinstance(refusal, RequestError)
        assert refusal.code is ResponseCode.SYSTEM_BUSY
        assert refusal.remark.startswith(
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        )
    assert isinstance(refusals[0], RequestError)
    assert refusals[0].remark.endswith("ms, size of queue: 2")
    assert not first.done()
    gate.open.set()
    await first
    assert begun == []
    assert lane.size == 0
    await lane.stop()


async def test_a_later_request_is_refused_at_its_own_time(gate: Gate) -> None:
    lane = Lane("pull", 10, threads=1, wait_limit_ms=30)
    first = await stuck(lane, gate)

    for _ in range(2):  # the timer of the first one has run when the second one comes
        with pytest.raises(RequestError, match="TIMEOUT_CLEAN_QUEUE"):
            await asyncio.wait_for(lane.run(lambda: None), DEADLINE)
    gate.open.set()
    await first
    await lane.stop()


async def test_the_head_of_the_queue_tells_how_long_it_waits(gate: Gate) -> None:
    lane = Lane("query", 10, threads=1)
    assert lane.head_wait_ms == 0
    first = await stuck(lane, gate)
    second = lane.submit(lambda: None)

    await until(lambda: lane.head_wait_ms >= 2)
    gate.open.set()
    await first
    await second
    assert lane.head_wait_ms == 0
    await lane.stop()


async def test_work_that_nobody_waits_for_any_more_is_not_begun(gate: Gate) -> None:
    lane = Lane("query", 10, threads=1)
    first = await stuck(lane, gate)
    begun: list[str] = []
    gone = lane.submit(lambda: begun.append("gone"))
    kept = lane.submit(lambda: begun.append("kept"))

    gone.cancel()
    gate.open.set()
    await first
    await kept

    assert begun == ["kept"]
    await lane.stop()


async def test_a_lane_is_full_when_much_waits_in_it(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_control, "MAX_WAITING_SIZE", 1000)
    lane = Lane("heartbeat", 10, threads=1)
    running = await stuck(lane, gate)

    waiting = [lane.submit(lambda: 1, 400), lane.submit(lambda: 2, 600)]
    with pytest.raises(RequestError) as refused:
        lane.submit(lambda: 3, 1)
    assert refused.value.remark == OVERLOAD
    assert lane.size == 2
    waiting[1].cancel()
    gate.open.set()
    await running
    assert await waiting[0] == 1
    assert await lane.run(lambda: 3, 1000) == 3
    await lane.stop()


async def test_one_body_is_made_for_all_who_wait() -> None:
    made: list[int] = []
    gates = [asyncio.Event() for _ in range(3)]
    version = 1

    async def make() -> bytes:
        made.append(version)
        number, shown = len(made), version
        await gates[number - 1].wait()
        return b"%d" % shown

    body = SharedBody(make, lambda: version)
    first = [asyncio.create_task(body.get()) for _ in range(1000)]
    await until(lambda: made)
    version = 2
    second = [asyncio.create_task(body.get()) for _ in range(1000)]
    await asyncio.sleep(0)
    version = 3
    third = [asyncio.create_task(body.get()) for _ in range(1000)]
    await asyncio.sleep(0)
    first[0].cancel()
    second[0].cancel()
    gates[0].set()
    assert set(await asyncio.gather(*first[1:])) == {b"1"}
    await until(lambda: len(made) == 2)
    gates[1].set()
    # Both asked before the second body was begun.
    assert set(await asyncio.gather(*second[1:], *third)) == {b"3"}
    assert made == [1, 3]
    gates[2].set()
    assert await body.get() == b"3"
    assert made == [1, 3, 3]


async def test_a_body_that_cannot_be_made_fails_those_who_wait_and_nobody_else() -> None:
    fails = True

    async def make() -> bytes:
        await asyncio.sleep(0)
        if fails:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return b"whole"

    body = SharedBody(make)
    waiting = [asyncio.create_task(body.get()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(body.get()))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, RequestError) for outcome in outcomes)
    fails = False
    assert await body.get() == b"whole"


async def test_few_requests_of_a_kind_are_worked_on_at_once() -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    async def gather(_: Connection, request: RemotingCommand) -> RemotingCommand:
        begun.append(request.opaque)
        await gate.wait()
        return request.answer()

    connection = create_autospec(Connection)
    handler = Admission(concurrent=2, capacity=5).of(gather)
    tasks = [
        asyncio.ensure_future(handler(connection, RemotingCommand(1, opaque=number)))
        for number in range(8)
    ]
    await until(lambda: tasks[7].done())
    assert begun == [0, 1]
    with pytest.raises(RequestError, match="flow control"):
        await tasks[7]
    tasks[2].cancel()
    gate.set()
    answers = await asyncio.gather(*tasks[:2], *tasks[3:7])
    assert [answer.opaque for answer in answers if answer is not None] == [0, 1, 3, 4, 5, 6]
    assert begun == [0, 1, 3, 4, 5, 6]


async def test_a_stop_refuses_what_waits_and_waits_for_what_runs(gate: Gate) -> None:
    lane = Lane("query", 10, threads=1)
    first = await stuck(lane, gate)
    second = lane.submit(lambda: None)

    stopping = asyncio.create_task(lane.stop())
    await asyncio.wait((second,), timeout=DEADLINE)
    assert second.cancelled()
    assert not stopping.done()
    gate.open.set()
    await stopping
    await first
    with pytest.raises(RequestError):
        await lane.run(lambda: None)


async def test_every_lane_has_the_capacity_and_limit_of_its_settings() -> None:
    lanes = Lanes(
        BrokerConfig(
            send_thread_pool_queue_capacity=1,
            pull_thread_pool_queue_capacity=2,
            query_thread_pool_queue_capacity=4,
            heartbeat_thread_pool_queue_capacity=7,
            end_transaction_pool_queue_capacity=8,
        )
    )

    assert {lane.name: (lane.capacity, lane.wait_limit_ms) for lane in lanes.all} == {
        "send": (1, 200),
        "pull": (2, 5000),
        "query": (4, None),
        "admin": (10_000, None),
        "heartbeat": (7, 31_000),
        "end-transaction": (8, 3000),
    }
    await lanes.stop()


def test_without_fast_failure_nothing_is_refused_for_waiting() -> None:
    lanes = Lanes(BrokerConfig(broker_fast_failure_enable=False))

    assert {lane.wait_limit_ms for lane in lanes.all} == {None}


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        (RequestCode.SEND_MESSAGE, 0.2),
        (RequestCode.SEND_MESSAGE_V2, 0.2),
        (RequestCode.SEND_BATCH_MESSAGE, 0.2),
        (RequestCode.CONSUMER_SEND_MSG_BACK, 0.2),
        (RequestCode.PULL_MESSAGE, 5.0),
        (RequestCode.HEART_BEAT, 31.0),
        (RequestCode.END_TRANSACTION, 3.0),
    ],
)
def test_a_request_whose_turn_came_too_late_is_refused(code: RequestCode, limit: float) -> None:
    failing = FastFailure(BrokerConfig(), MessageStoreConfig(), POOLS)

    assert failing.shortest_limit == 0.2
    assert failing.refuse(code, limit - 0.001, 7) is None
    refusal = failing.refuse(code, limit, 7)
    assert refusal is not None
    assert refusal.code is ResponseCode.SYSTEM_BUSY
    assert refusal.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {limit * 1000:.0f}ms, size of queue: 7"
    )


def test_requests_without_a_limit_wait_for_ever() -> None:
    failing = FastFailure(BrokerConfig(), MessageStoreConfig(), POOLS)

    assert failing.refuse(RequestCode.QUERY_MESSAGE, 1000.0, 0) is None


class Clock:
    def __init__(self) -> None:
        self.now = 0.5  # just booted

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flow_control, "monotonic", clock)
    return clock


def slow_append(failing: FastFailure, clock: Clock) -> None:
    def end_chunk() -> str:
        clock.now += 0.02
        return "sealed"

    assert failing.timed(end_chunk)() == "sealed"


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE])
def test_sends_that_waited_for_a_slow_append_are_told_so(code: RequestCode, clock: Clock) -> None:
    failing = FastFailure(
        BrokerConfig(), MessageStoreConfig(os_page_cache_busy_time_out_mills=10), POOLS
    )
    assert failing.shortest_limit == 0.01
    slow_append(failing, clock)

    refusal = failing.refuse(code, 0.05, 3)

    if code is RequestCode.PULL_MESSAGE:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.remark == (
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
            "period in queue: 50ms, size of queue: 3"
        )


def test_a_slow_append_refuses_sends_also_without_fast_failure(clock: Clock) -> None:
    failing = FastFailure(
        BrokerConfig(broker_fast_failure_enable=False),
        MessageStoreConfig(os_page_cache_busy_time_out_mills=10),
        POOLS,
    )
    assert failing.refuse(RequestCode.SEND_MESSAGE, 1000.0, 0) is None
    slow_append(failing, clock)

    refusal = failing.refuse(RequestCode.SEND_MESSAGE, 0.05, 0)

    assert refusal is not None
    assert refusal.remark == REJECT_REQUEST


def test_sends_that_waited_for_room_in_the_log_are_told_so(clock: Clock) -> None:
    growth = Growth()
    failing = FastFailure(BrokerConfig(), MessageStoreConfig(), POOLS, growth)
    growth.busy_until = clock.now
    clock.now += 0.02

    refusal = failing.refuse(RequestCode.SEND_MESSAGE, 0.05, 0)
    assert refusal is not None
    assert refusal.remark is not None
    assert "[PCBUSY_CLEAN_QUEUE]" in refusal.remark
    assert failing.refuse(RequestCode.SEND_MESSAGE, 0.01, 0) is None  # it came later


def test_what_came_after_a_slow_append_is_taken(clock: Clock) -> None:
    failing = FastFailure(
        BrokerConfig(), MessageStoreConfig(os_page_cache_busy_time_out_mills=10), POOLS
    )
    slow_append(failing, clock)
    clock.now += 0.02

    assert failing.refuse(RequestCode.SEND_MESSAGE, 0.01, 0) is None


@pytest.mark.usefixtures("clock")
def test_a_quick_append_leaves_no_trace() -> None:
    failing = FastFailure(BrokerConfig(), MessageStoreConfig(), POOLS)
    failing.timed(lambda: None)()

    assert failing.refuse(RequestCode.SEND_MESSAGE, 0.1, 0) is None


def test_sends_to_a_server_that_will_stop_are_refused_and_the_rest_is_served() -> None:
    def other(*_: object) -> None:
        return None

    routes = refuse_sends(
        Routes(
            Route(
                RequestCode.SEND_MESSAGE_V2, access.SEND_V2, other, hot=runs(other), pool=Pool.SEND
            ),
            Route(RequestCode.HEART_BEAT, access.HEARTBEAT, other, pool=Pool.HEARTBEAT),
            Route(RequestCode.PULL_MESSAGE, access.ADMIN, hot=runs(other), pool=Pool.PULL),
        )
    )

    assert routes.hot == {RequestCode.PULL_MESSAGE: other}
    assert routes.plain[RequestCode.HEART_BEAT] is other
    with pytest.raises(RequestError, match="stopping") as refused:
        routes.plain[RequestCode.SEND_MESSAGE_V2](
            create_autospec(Connection, instance=True), RemotingCommand(0)
        )
    assert refused.value.code is ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.usefixtures("clock")
def test_limits_follow_the_settings() -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")
    lanes = Lanes(config)
    fast_failure = FastFailure(config, MessageStoreConfig(), POOLS)
    assert lanes.send.wait_limit_ms == 200
    assert fast_failure.refuse(RequestCode.SEND_MESSAGE, 0.3, 0) is not None

    longer = dataclasses.replace(config, wait_time_mills_in_send_queue=400)
    for limited in (lanes, fast_failure):
        limited.set_limits(longer)
    assert lanes.send.wait_limit_ms == 400
    assert fast_failure.shortest_limit == 0.4
    assert fast_failure.refuse(RequestCode.SEND_MESSAGE, 0.3, 0) is None

    off = dataclasses.replace(config, broker_fast_failure_enable=False)
    for limited in (lanes, fast_failure):
        limited.set_limits(off)
    assert lanes.pull.wait_limit_ms is None
    assert fast_failure.refuse(RequestCode.SEND_MESSAGE, 100.0, 0) is None


async def test_sends_are_rejected_while_the_store_has_no_buffer() -> None:
    handled: list[str] = []

    def hot(_: Connection, frames: list[RawFrame], __: list[bytes]) -> None:
        handled.append(f"hot {len(frames)}")

    def plain(_: Connection, request: RemotingCommand) -> RemotingCommand:
        handled.append("plain")
        return request.answer()

    back = RequestCode.CONSUMER_SEND_MSG_BACK
    deficient = True
    routes = reject_sends_while(
        Routes(
            Route(back, access.SEND_BACK, plain, pool=Pool.SEND),
            Route(RequestCode.HEART_BEAT, access.HEARTBEAT, plain),
            Route(RequestCode.SEND_MESSAGE_V2, access.SEND_V2, hot=runs(hot), pool=Pool.SEND),
            Route(RequestCode.PULL_MESSAGE, access.ADMIN, hot=runs(hot), pool=Pool.PULL),
        ),
        lambda: deficient,
    )
    service = Service(routes.plain, hot_handlers=routes.hot)
    client = Client(served(service), ("127.0.0.1", 40404))

    answers = client.exchange(
        send_request(opaque=1),
        send_request(opaque=2, oneway=True),
        RemotingCommand(back, opaque=3),
        pull_request(opaque=4),
        RemotingCommand(RequestCode.HEART_BEAT, opaque=5),
    )

    assert [(answer.opaque, answer.remark) for answer in answers] == [
        (1, REJECT_REQUEST),
        (3, REJECT_REQUEST),
        (5, None),
    ]
    assert handled == ["hot 1", "plain"]
    deficient = False
    client.exchange(send_request(), RemotingCommand(back))
    assert handled == ["hot 1", "plain", "hot 1", "plain"]


@pytest.mark.usefixtures("clock")
def test_a_crowd_of_refusals_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    failing = FastFailure(BrokerConfig(), MessageStoreConfig(), POOLS)

    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            failing.refuse(RequestCode.SEND_MESSAGE, 1.5, 0)

    (line,) = caplog.messages
    assert "refused" in line
    assert "1.5 s" in line
