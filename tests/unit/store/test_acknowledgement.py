from __future__ import annotations

import asyncio

from pyromq.store.acknowledgement import Acknowledgements, AckOutcome, OffsetWaiters
from tests.support.patience import until


class Gate:
    """A gate that opens when the test says so."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[AckOutcome]] = []

    def wait(self, offset: int) -> asyncio.Future[AckOutcome]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


def test_nothing_waits_by_default() -> None:
    assert Acknowledgements().gate is None


async def test_one_gate_is_called_directly() -> None:
    flush, replicas = Gate(), Gate()
    acknowledgements = Acknowledgements(flush)
    assert acknowledgements.gate == flush.wait
    acknowledgements = Acknowledgements()
    acknowledgements.require_replicas(replicas)
    assert acknowledgements.gate == replicas.wait
    acknowledgements.require_replicas(None)
    assert acknowledgements.gate is None


async def test_fsync_and_replica_are_awaited_together() -> None:
    for flushed, replicated, expected in (
        (AckOutcome.STORED, AckOutcome.STORED, AckOutcome.STORED),
        (AckOutcome.FLUSH_TIMED_OUT, AckOutcome.STORED, AckOutcome.FLUSH_TIMED_OUT),
        (AckOutcome.STORED, AckOutcome.NO_REPLICA, AckOutcome.NO_REPLICA),
        # As in RocketMQ, the replica's outcome outweighs that of the flush.
        (AckOutcome.FLUSH_TIMED_OUT, AckOutcome.REPLICA_TIMED_OUT, AckOutcome.REPLICA_TIMED_OUT),
    ):
        for flush_is_first in (True, False):
            flush, replicas = Gate(), Gate()
            acknowledgements = Acknowledgements(flush)
            acknowledgements.require_replicas(replicas)
            gate = acknowledgements.gate
            assert gate is not None
            waiting = gate(10)
            futures = [(flush.futures[0], flushed), (replicas.futures[0], replicated)]
            for future, outcome in futures if flush_is_first else reversed(futures):
                assert not waiting.done()
                future.set_result(outcome)
                await asyncio.sleep(0)
            assert await waiting is expected


async def test_waiters_pass_in_the_order_of_their_offsets() -> None:
    mark = 0
    waiters = OffsetWaiters(lambda: mark, AckOutcome.REPLICA_TIMED_OUT)
    futures = [waiters.wait(offset, 600.0) for offset in (10, 20, 30)]
    mark = 20
    waiters.notify()
    assert [future.done() for future in futures] == [True, True, False]
    assert len(waiters) == 1
    mark = 30
    waiters.notify_from_thread()
    assert await futures[2] is AckOutcome.STORED


async def test_a_failure_resolves_all_later_waiters_too() -> None:
    mark = 10
    waiters = OffsetWaiters(lambda: mark, AckOutcome.FLUSH_TIMED_OUT)
    futures = [waiters.wait(offset, 600.0) for offset in (10, 20)]
    waiters.fail(AckOutcome.FLUSH_FAILED)
    waiters.notify()
    assert [future.result() for future in futures] == [AckOutcome.STORED, AckOutcome.FLUSH_FAILED]
    assert await waiters.wait(30, 600.0) is AckOutcome.FLUSH_FAILED


async def test_a_cancelled_waiter_is_skipped() -> None:
    mark = 0
    waiters = OffsetWaiters(lambda: mark, AckOutcome.FLUSH_TIMED_OUT)
    first, second = waiters.wait(10, 600.0), waiters.wait(20, 600.0)
    first.cancel()
    mark = 20
    waiters.notify()
    assert second.result() is AckOutcome.STORED


async def test_each_waiter_has_its_own_deadline() -> None:
    waiters = OffsetWaiters(lambda: 0, AckOutcome.REPLICA_TIMED_OUT)
    first, second = waiters.wait(10, 0.01), waiters.wait(20, 0.02)
    await until(lambda: second.done())
    assert first.result() is second.result() is AckOutcome.REPLICA_TIMED_OUT
