from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from pyromq.client.handler_threads import HandlerThreads, call_in_thread
from tests.support.patience import DEADLINE, until


async def test_functions_run_in_threads_and_return_results() -> None:
    threads = HandlerThreads(3, "g")
    names: set[str] = set()
    together = threading.Barrier(3)

    def work(number: int) -> int:
        names.add(threading.current_thread().name)
        together.wait(10)
        return number * 2

    assert await asyncio.gather(*(threads.run(work, n) for n in range(9))) == [
        n * 2 for n in range(9)
    ]
    assert names == {"g-handler-1", "g-handler-2", "g-handler-3"}
    threads.close()
    await until(lambda: not names & {thread.name for thread in threading.enumerate()})


async def test_a_function_sees_the_context_of_its_caller_if_asked_for() -> None:
    threads = HandlerThreads(1, "g")
    variable = ContextVar("variable", default="none")
    variable.set("set")
    assert await call_in_thread(lambda _: variable.get(), None, threads) == "none"
    found = await call_in_thread(lambda _: variable.get(), None, threads, with_context=True)
    assert found == "set"
    threads.close()


async def test_exceptions_reach_the_caller() -> None:
    threads = HandlerThreads(1, "g")

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(ValueError, match="no"):
        await threads.run(fail, ValueError("no"))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(fail, StopIteration("no"))
    threads.close()


async def test_a_thread_whose_function_never_returns_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads = HandlerThreads(1, "g")
    gate = threading.Event()
    begun = threading.Event()

    def hang(_: object) -> None:
        begun.set()
        gate.wait(60)

    hanging = asyncio.create_task(threads.run(hang, None))
    await until(begun.is_set)
    behind = asyncio.create_task(threads.run(len, "abc"))
    never = asyncio.create_task(threads.run(len, "never begun"))
    await asyncio.sleep(0)
    never.cancel()
    hanging.cancel()
    await asyncio.wait([hanging, never])
    async with asyncio.timeout(DEADLINE):
        assert await threads.run(len, "abcd") == 4
        assert await behind == 3
    assert "abandoning its thread" in caplog.text
    gate.set()
    # Its thread is surplus now.
    await until(lambda: sum(t.name.startswith("g-handler") for t in threading.enumerate()) == 1)
    assert await threads.run(len, "ab") == 2
    threads.close()
