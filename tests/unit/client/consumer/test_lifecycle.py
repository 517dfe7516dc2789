from __future__ import annotations

import asyncio

import pytest

from pyromq.client.consumer.lifecycle import Lifecycle, State
from pyromq.client.errors import ClientStateError


class Work:
    """The work of closing, which waits for `may_end`."""

    def __init__(self) -> None:
        self.runs = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> None:
        self.runs += 1
        await self.may_end.wait()


async def test_a_consumer_starts_runs_and_closes() -> None:
    lifecycle, work = Lifecycle(), Work()
    states = [lifecycle.state]
    assert lifecycle.begin_start()
    states.append(lifecycle.state)
    assert lifecycle.end_start()
    states.append(lifecycle.state)
    assert not lifecycle.begin_start()
    closing = lifecycle.close(work)
    states.append(lifecycle.state)
    work.may_end.set()
    await closing
    await lifecycle.until_closed()
    states.append(lifecycle.state)
    assert states == list(State)
    with pytest.raises(ClientStateError, match="closed"):
        lifecycle.begin_start()


async def test_two_tasks_cannot_start_a_consumer() -> None:
    lifecycle = Lifecycle()
    lifecycle.begin_start()
    with pytest.raises(ClientStateError, match="another task is starting"):
        lifecycle.begin_start()


@pytest.mark.parametrize("is_starting", [False, True])
async def test_a_consumer_can_be_closed_before_it_runs(is_starting: bool) -> None:
    lifecycle, work = Lifecycle(), Work()
    work.may_end.set()
    if is_starting:
        lifecycle.begin_start()
    closing = lifecycle.close(work)
    assert lifecycle.is_closing
    assert not lifecycle.end_start()
    await closing
    assert lifecycle.state is State.CLOSED


async def test_every_close_shares_one_task_that_survives_its_callers() -> None:
    lifecycle, work = Lifecycle(), Work()

    async def close() -> None:
        await asyncio.shield(lifecycle.close(work))

    callers = [asyncio.create_task(close()) for _ in range(2)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert lifecycle.state is State.CLOSING
    work.may_end.set()
    await lifecycle.until_closed()
    await close()
    assert work.runs == 1


async def test_a_failed_close_ends_closed_and_raises() -> None:
    lifecycle = Lifecycle()

    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await lifecycle.close(fail)
    assert lifecycle.state is State.CLOSED


@pytest.mark.parametrize(
    ("state", "new"),
    [
        (State.NEW, State.RUNNING),
        (State.RUNNING, State.STARTING),
        (State.CLOSING, State.RUNNING),
        (State.CLOSED, State.STARTING),
    ],
)
def test_illegal_transitions_are_refused(state: State, new: State) -> None:
    lifecycle = Lifecycle()
    lifecycle.state = state
    with pytest.raises(ClientStateError, match=f"from {state.value} to {new.value}"):
        lifecycle._move(new)
