"""Tests that run on asyncio's own loop and on uvloop's, and fail on what a loop has to report."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.patience import DEADLINE

AsyncTest = Callable[..., Coroutine[Any, Any, None]]
NewLoop = Callable[[], asyncio.AbstractEventLoop]

_LOOPS: dict[str, NewLoop] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_both_loops(test: AsyncTest) -> Callable[..., None]:
    """Run an asynchronous test on each loop; an exception that nobody handled fails it."""
    return _on_loops(test, [pytest.param(new_loop, id=name) for name, new_loop in _LOOPS.items()])


def on_uvloop_often(test: AsyncTest) -> Callable[..., None]:
    """The same, but on asyncio's only in a soak: for many tests of one kind."""
    marks = {"asyncio": [pytest.mark.soak]}
    loops = [
        pytest.param(new_loop, id=name, marks=marks.get(name, []))
        for name, new_loop in _LOOPS.items()
    ]
    return _on_loops(test, loops)


def _on_loops(test: AsyncTest, loops: list[Any]) -> Callable[..., None]:

    @functools.wraps(test)
    def run(new_loop: NewLoop, **fixtures: Any) -> None:
        unhandled: list[dict[str, Any]] = []

        async def limited() -> None:
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: unhandled.append(context)
            )
            async with asyncio.timeout(2 * DEADLINE):
                await test(**fixtures)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(limited())
        assert unhandled == []

    # pytest reads the fixtures' names from the signature.
    signature = inspect.signature(test)
    loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
    ]
    run.__signature__ = signature.replace(parameters=[loop, *parameters])  # type: ignore[attr-defined]
    del run.__wrapped__
    mark = pytest.mark.parametrize("new_loop", loops)
    marked: Callable[..., None] = mark(run)
    return marked
