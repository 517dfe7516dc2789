"""The background loop: results, exceptions, cancellation, its own thread, forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pyromq.client import ClientStateError
from pyromq.client.loop_thread import LoopThread, shared_loop


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.stop()


async def _where() -> str:
    return threading.current_thread().name


async def _fail() -> None:
    raise LookupError("not here")


def test_the_shared_loop_ends_before_the_interpreter() -> None:
    """A thread that wakes up after the interpreter has exited crashes the process."""
    program = """if True:
        import atexit, threading
        atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
        from pyromq.client.loop_thread import shared_loop  # its end comes before that line
        shared_loop()
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['MainThread']\n"


def test_coroutines_run_in_the_thread(loop_thread: LoopThread) -> None:
    assert loop_thread.run(_where()) == "test-loop"


def test_exceptions_come_through(loop_thread: LoopThread) -> None:
    with pytest.raises(LookupError, match="not here"):
        loop_thread.run(_fail())


async def test_other_loops_do_not_block(loop_thread: LoopThread) -> None:
    assert await loop_thread.run_from_loop(_where()) == "test-loop"


def test_a_caller_that_stops_waiting_cancels_the_coroutine(loop_thread: LoopThread) -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        loop_thread.run(forever(), timeout=0.05)
    assert ended.wait(10)


def test_it_refuses_to_wait_for_itself(loop_thread: LoopThread) -> None:
    async def inner() -> None:
        loop_thread.run(_fail())

    with pytest.raises(ClientStateError, match="event loop that serves it"):
        loop_thread.run(inner())


async def _exit() -> None:
    raise SystemExit(3)


def test_a_coroutine_cannot_end_the_loop(
    loop_thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        loop_thread.run(_exit())
    assert loop_thread.run(_where()) == "test-loop"
    assert "tried to exit the process" in caplog.text


def test_stop_cancels_running_coroutines() -> None:
    thread = LoopThread("test-loop")
    future = thread.submit(asyncio.sleep(3600))
    thread.stop()
    assert future.cancelled()
    assert thread.loop.is_closed()
    thread.stop()


def test_a_process_has_one_shared_loop() -> None:
    found: list[LoopThread] = []
    threads = [threading.Thread(target=lambda: found.append(shared_loop())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    ours = shared_loop()
    child = os.fork()
    if child == 0:
        theirs = shared_loop()
        try:
            ours.check_thread()
        except ClientStateError as error:
            good = "and this is a fork of it" in str(error)
        ours.stop()
        good = good and theirs is not ours and theirs.run(_where()) == "pyromq-client"
        os._exit(0 if good else 1)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0)
    assert shared_loop() is ours
    assert ours.run(_where()) == "pyromq-client"
