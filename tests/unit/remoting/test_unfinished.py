from __future__ import annotations

import asyncio

import pytest

from pyromq.remoting import unfinished as module
from pyromq.remoting.limits import PeerLimits
from pyromq.remoting.unfinished import Unfinished


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_full_connection_resumes_at_half_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_UNFINISHED", 4)
    limits = PeerLimits()
    unfinished = Unfinished(limits)
    task = asyncio.ensure_future(forever())
    for _ in range(5):
        assert not unfinished.is_full
        unfinished.add(task, 10, is_query=False)

    assert unfinished.is_full
    assert (unfinished.count, limits.in_progress) == (5, 50)
    assert [unfinished.remove(task, 10) for _ in range(5)] == [False, False, True, False, False]
    assert limits.in_progress == 0
    task.cancel()


async def test_bodies_of_all_connections_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_UNFINISHED_SIZE", 100)
    limits = PeerLimits(max_received=150)
    one, other = Unfinished(limits), Unfinished(limits)
    task = asyncio.ensure_future(forever())
    one.add(task, 101, is_query=False)
    assert one.is_full
    other.add(task, 60, is_query=False)
    assert other.is_full, "the limit is shared"
    assert one.remove(task, 101)
    assert other.remove(task, 60)
    task.cancel()


async def test_queries_are_cancelled_and_changes_are_not() -> None:
    unfinished = Unfinished(PeerLimits())
    query, change = (asyncio.ensure_future(forever()) for _ in range(2))
    unfinished.add(query, 0, is_query=True)
    unfinished.add(change, 0, is_query=False)

    unfinished.cancel_queries()
    await asyncio.wait((query,))

    assert query.cancelled()
    assert not change.done()
    change.cancel()
