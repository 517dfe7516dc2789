from __future__ import annotations

import asyncio
from typing import Any

from pyromq.client.consumer.process_queue import Limits, ProcessQueue
from pyromq.client.consumer.push.handling import HandlerCaller, Retry
from pyromq.client.consumer.push.orderly import OrderlyHandling
from pyromq.client.consumer.push.send_back import DEAD_LETTER
from pyromq.client.consumer.push.stats import TopicStats
from pyromq.client.hooks import Hooks
from pyromq.client.received import ReceivedMessage
from pyromq.protocol.wire.bodies import MessageQueue
from tests.support.patience import DEADLINE, until
from tests.unit.client.received_messages import received


class Rig:
    """Two queues, a handler, and locks that can be taken away."""

    def __init__(
        self,
        handler: Any,
        *,
        batch_size: int = 1,
        max_reconsume_times: int = 0x7FFFFFFF,
        broadcasting: bool = False,
    ) -> None:
        self.queues = [
            ProcessQueue(MessageQueue("t", "b0", number), 0, Limits()) for number in range(2)
        ]
        self.queue = self.queues[0]
        self.stats = TopicStats()
        self.buried: list[int] = []
        self.buries = True
        self.is_locked = True
        call = HandlerCaller(
            handler,
            group="g",
            namespace="",
            takes_lists=batch_size > 1,
            max_handlers=4,
            hooks=Hooks(),
        )
        self.handling = OrderlyHandling(
            call,
            None if broadcasting else self._send_back,
            None if broadcasting else lambda _: self.is_locked,
            max_handlers=4,
            batch_size=batch_size,
            suspend=0.01,
            max_reconsume_times=max_reconsume_times,
        )

    def submit(self, count: int, number: int = 0) -> None:
        queue = self.queues[number]
        first = queue.next_offset
        messages = [received(n, queue=queue.queue) for n in range(first, first + count)]
        self.handling.submit(queue, self.stats, queue.put(messages, first + count))

    async def until_committed(self, offset: int) -> None:
        await until(lambda: self.queue.commit_offset == offset)
        await self.handling.stop(DEADLINE)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        assert delay_level == DEAD_LETTER
        if self.buries:
            self.buried.append(message.queue_offset)
        return self.buries


async def test_one_handler_per_queue_and_several_queues_at_once() -> None:
    seen: list[tuple[int, int]] = []
    at_work: set[int] = set()
    together: list[int] = []
    most = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal most
        number = message.queue.queue_id
        if number in at_work:
            together.append(number)
        at_work.add(number)
        most = max(most, len(at_work))
        await asyncio.sleep(0)
        at_work.discard(number)
        seen.append((number, message.queue_offset))

    rig = Rig(handle)
    for number in (0, 1, 0, 1):
        rig.submit(10, number)
    await until(lambda: len(seen) == 40)
    await rig.until_committed(20)
    for number in (0, 1):
        assert [offset for other, offset in seen if other == number] == [*range(20)]
    assert (most, together) == (2, [])


async def test_a_failure_blocks_its_queue_only() -> None:
    seen: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> Retry | None:
        seen.append((message.queue_offset, message.reconsume_times))
        return Retry() if message.queue_offset == 1 and message.reconsume_times < 2 else None

    rig = Rig(handle)
    rig.submit(3)
    await rig.until_committed(3)
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert (rig.stats.handled, rig.stats.failed) == (3, 2)


async def test_lists_are_retried_whole() -> None:
    seen: list[list[int]] = []

    async def handle(messages: list[ReceivedMessage]) -> Retry | None:
        seen.append([message.queue_offset for message in messages])
        return Retry(suspend=0) if len(seen) == 1 else None

    rig = Rig(handle, batch_size=2)
    rig.submit(3)
    await rig.until_committed(3)
    assert seen == [[0, 1], [0, 1], [2]]


async def test_a_message_becomes_a_dead_letter_after_too_many_retries() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 0:
            rig.buries = len(seen) > 3
            raise ValueError("never")

    rig = Rig(handle, max_reconsume_times=1)
    rig.submit(2)
    await rig.until_committed(2)
    # No broker took it after the second and third failure: it stayed in place.
    assert seen == [0, 0, 0, 0, 1]
    assert rig.buried == [0]


async def test_broadcasting_drops_a_message_after_too_many_retries() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 0:
            raise ValueError("never")

    rig = Rig(handle, max_reconsume_times=1, broadcasting=True)
    rig.submit(2)
    await rig.until_committed(2)
    assert seen == [0, 0, 1]


async def test_no_message_is_handed_out_without_a_lock() -> None:
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        rig.is_locked = False

    rig = Rig(handle)
    rig.submit(2)
    await until(lambda: seen == [0])
    for _ in range(20):
        await asyncio.sleep(0)
    assert seen == [0]
    rig.is_locked = True
    await rig.until_committed(2)


async def test_a_queue_is_left_once_its_handler_returns() -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    rig = Rig(handle)
    rig.submit(2)
    await until(lambda: seen == [0])
    leaving = asyncio.create_task(rig.handling.leave(rig.queue))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not leaving.done()
    rig.handling.cancel_overdue(0)  # an orderly handler has no time limit
    gate.set()
    await leaving
    # Handled messages count; the others belong to the next owner.
    assert (rig.queue.commit_offset, seen) == (1, [0])
    await rig.handling.leave(rig.queues[1])
    assert rig.queues[1].dropped
    await rig.handling.stop(1)
