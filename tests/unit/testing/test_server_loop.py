from __future__ import annotations

import asyncio
import threading

import pytest

from pyromq.testing.server_loop import ServerLoop


async def thread_name() -> str:
    return threading.current_thread().name


def test_it_runs_coroutines_in_its_thread_until_the_stop() -> None:
    loop, ended = ServerLoop(), []

    async def last() -> None:
        ended.append(await thread_name())

    assert not loop.is_running
    assert not loop.stop(last)
    for _ in range(2):
        loop.start()
        assert loop.is_running
        assert loop.run(thread_name()) == "pyromq-testing"
        assert asyncio.run(loop.run_from_loop(thread_name())) == "pyromq-testing"
        assert loop.stop(last)
        assert not loop.is_running
    assert ended == ["pyromq-testing"] * 2


def test_the_thread_ends_even_if_the_last_coroutine_fails() -> None:
    async def fail() -> None:
        raise OSError("no")

    loop = ServerLoop()
    loop.start()
    thread = loop.check()
    with pytest.raises(OSError, match="no"):
        loop.stop(fail)
    assert not loop.is_running
    assert thread.loop.is_closed()


def test_nothing_runs_before_the_start() -> None:
    coroutine = thread_name()
    with pytest.raises(RuntimeError, match=r"is not running: use it in `with`, or call start\(\)"):
        ServerLoop().run(coroutine)
    # It was closed: Python would warn otherwise, and cannot run it any more.
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)
