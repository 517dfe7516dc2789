"""Clocks that stand still: for tests of what happens after some time, on a machine that stalls."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from tests.support.loops import AsyncTest


class HeldLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when a test says so, however long things really take."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self._now

    async def pass_time(self, seconds: float) -> None:
        """Let that much time pass, and let those run who waited for it."""
        self._now += seconds
        await settled()


async def settled() -> None:
    """Let what is ready run, and what its bytes on this machine's own sockets bring about."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_held_loop(test: AsyncTest) -> Callable[..., None]:
    """Run an asynchronous test on a loop whose time it holds in its hands."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=HeldLoop) as runner:
            runner.run(test(*arguments, **fixtures))

    return run


def held_loop() -> HeldLoop:
    """The running one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    return loop
