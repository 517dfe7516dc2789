from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from pyromq.client.consumer.push import concurrent as concurrent_module
from pyromq.client.consumer.push.concurrent import ConcurrentHandling
from pyromq.client.consumer.push.handling import HandlerCaller, Retry
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.hooks import Hooks
from pyromq.client.received import ReceivedMessage
from tests.support.patience import DEADLINE, until
from tests.unit.client.received_messages import QUEUE, received


class Rig:
    """A queue with messages, a handler, and a broker that may refuse to take messages back."""

    def __init__(
        self,
        handler: Any,
        *,
        batch_size: int = 1,
        max_handlers: int = 4,
        broadcasting: bool = False,
    ) -> None:
        self.queue = ProcessQueue(QUEUE, 0, Limits())
        self.stats = TopicStats()
        self.sent_back: list[tuple[int, int]] = []
        self.takes_back = True
        call = HandlerCaller(
            handler,
            group="g",
            namespace="",
            takes_lists=batch_size > 1,
            max_handlers=max_handlers,
            hooks=Hooks(),
        )
        self.handling = ConcurrentHandling(
            call,
            None if broadcasting else self._send_back,
            max_handlers=max_handlers,
            batch_size=batch_size,
        )

    def submit(self, count: int) -> None:
        first = self.queue.next_offset
        messages = [received(offset) for offset in range(first, first + count)]
        self.handling.submit(self.queue, self.stats, self.queue.put(messages, first + count))

    async def until_committed(self, offset: int) -> None:
        await until(lambda: self.queue.commit_offset == offset)
        await self.handling.stop(DEADLINE)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        self.sent_back.append((message.queue_offset, delay_level))
        return self.takes_back


async def test_single_messages_and_lists() -> None:
    for batch_size, calls in ((1, [1] * 10), (4, [4, 4, 2]), (32, [10])):
        seen: list[int] = []

        async def handle(argument: Any, seen: list[int] = seen) -> None:
            seen.append(len(argument) if isinstance(argument, list) else 1)

        rig = Rig(handle, batch_size=batch_size)
        rig.submit(10)
        await rig.until_committed(10)
        assert seen == calls
        assert (rig.stats.handled, rig.stats.handlings) == (10, len(calls))


@pytest.mark.parametrize("batch_size", [4, 32])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_may_change_its_list(batch_size: int, in_thread: bool) -> None:
    async def handle(messages: list[ReceivedMessage]) -> None:
        del messages[1:]

    rig = Rig((lambda messages: messages.clear()) if in_thread else handle, batch_size=batch_size)
    rig.submit(10)
    await rig.until_committed(10)
    assert (rig.stats.handled, rig.queue.count, rig.queue.size) == (10, 0, 0)


async def test_failures_go_back_and_do_not_block_others() -> None:
    async def handle(message: ReceivedMessage) -> Retry | None:
        if message.queue_offset == 1:
            raise ValueError("no")
        return Retry(delay_level=7) if message.queue_offset == 2 else None

    rig = Rig(handle)
    rig.submit(4)
    await rig.until_committed(4)
    assert rig.sent_back == [(1, 0), (2, 7)]
    assert (rig.stats.handled, rig.stats.failed) == (2, 2)


async def test_a_handler_of_lists_can_name_the_failed_messages() -> None:
    async def handle(messages: list[ReceivedMessage]) -> Retry:
        return Retry(messages=messages[1:2])

    rig = Rig(handle, batch_size=3)
    rig.submit(3)
    await rig.until_committed(3)
    assert rig.sent_back == [(1, 0)]
    assert (rig.stats.handled, rig.stats.failed) == (2, 1)


async def test_a_message_nobody_takes_back_is_retried_and_stays_uncommitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent_module, "LOCAL_RETRY_SECONDS", 0.01)
    times: list[int] = []
    offsets: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        times.append(message.reconsume_times)
        offsets.append(rig.queue.commit_offset)
        if len(times) < 3:
            raise ValueError("not yet")

    rig = Rig(handle)
    rig.takes_back = False
    rig.submit(1)
    await rig.until_committed(1)
    assert (times, offsets) == ([0, 1, 2], [0, 0, 0])


async def test_broadcasting_does_not_redeliver(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(_message: ReceivedMessage) -> None:
        raise ValueError("no")

    rig = Rig(handle, broadcasting=True)
    rig.submit(1)
    await rig.until_committed(1)
    assert "broadcasting has no redelivery" in caplog.text


async def test_results_for_a_dropped_queue_are_ignored() -> None:
    gate = asyncio.Event()
    calls: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        await gate.wait()
        if message.queue_offset:
            raise ValueError("no")

    rig = Rig(handle, max_handlers=2)
    rig.submit(3)
    await until(lambda: len(calls) == 2)
    await rig.handling.leave(rig.queue)
    gate.set()
    await rig.handling.stop(1)
    assert calls == [0, 1]
    assert rig.sent_back == []
    assert rig.queue.commit_offset == 0


async def test_a_hanging_coroutine_is_cancelled_and_its_message_goes_back() -> None:
    calls: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        if message.queue_offset == 0:
            await asyncio.sleep(30)

    rig = Rig(handle, max_handlers=1)
    rig.submit(2)
    await until(lambda: calls == [0])
    rig.handling.cancel_overdue(30)
    rig.handling.cancel_overdue(0)
    await rig.until_committed(2)
    assert rig.sent_back == [(0, 3)]


async def test_a_coroutine_that_ignores_cancellation_sends_back_once() -> None:
    ended = asyncio.Event()

    async def handle(_message: ReceivedMessage) -> Retry:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await ended.wait()
        return Retry()

    rig = Rig(handle)
    rig.submit(1)
    await until(lambda: rig.handling._workers.running == 1)
    rig.handling.cancel_overdue(0)
    await until(lambda: rig.queue.commit_offset == 1)
    ended.set()
    await rig.handling.stop(1)
    assert rig.sent_back == [(0, 3)]


async def test_a_hanging_thread_is_abandoned_and_its_message_goes_back_once() -> None:
    gate = threading.Event()
    calls: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        calls.append(message.queue_offset)
        if message.queue_offset == 0:
            gate.wait(10)
            raise ValueError("too late")

    rig = Rig(handle, max_handlers=1)
    rig.submit(2)
    await until(lambda: calls == [0])
    rig.handling.cancel_overdue(0)
    await until(lambda: rig.queue.commit_offset == 2)
    gate.set()
    await rig.handling.stop(1)
    assert rig.sent_back == [(0, 3)]


async def test_stop_starts_no_more_handlers() -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.queue_offset)
        assert rig.handling.is_worker(asyncio.current_task())
        await gate.wait()

    rig = Rig(handle, max_handlers=1)
    rig.submit(3)
    await until(lambda: begun == [0])
    stopping = asyncio.create_task(rig.handling.stop(5))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert begun == [0]
    assert rig.queue.commit_offset == 1
