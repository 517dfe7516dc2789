from __future__ import annotations

import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from pyromq.admin import sync_areas
from pyromq.admin.session import Area
from pyromq.admin.topics import Topics
from pyromq.client.loop_thread import shared_loop

TOOL = Path(__file__).parents[3] / "tools" / "generate_sync_admin.py"


class Numbers(Area):
    """Counts."""

    def __init__(self) -> None:
        self.closed = False

    async def double(self, number: int, *, plus: int = 0) -> int:
        """Return twice the number."""
        return 2 * number + plus

    async def count(self, end: int) -> AsyncIterator[int]:
        """Yield numbers."""
        try:
            for number in range(end):
                yield number
        finally:
            self.closed = True


class _Admin:
    numbers = Numbers()


def _run(call: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    return shared_loop().run(call(_Admin))


def test_methods_of_a_twin() -> None:
    numbers = sync_areas.twin(Numbers, "numbers")(_run)
    assert type(numbers).__name__ == "SyncNumbers"
    assert numbers.double(3, plus=1) == 7
    assert numbers.double.__doc__ == "Return twice the number."
    assert list(numbers.count(3)) == [0, 1, 2]
    assert _Admin.numbers.closed


def test_an_iterator_that_is_left_early_is_closed() -> None:
    numbers = sync_areas.twin(Numbers, "numbers")(_run)
    _Admin.numbers.closed = False
    for number in numbers.count(3):
        if number == 1:
            break
    assert _Admin.numbers.closed


def test_twins_have_the_methods_of_their_areas() -> None:
    public = {name for name in vars(Topics) if not name.startswith("_")}
    assert public == {name for name in vars(sync_areas.SyncTopics) if not name.startswith("_")}
    assert not inspect.iscoroutinefunction(sync_areas.SyncTopics.names)


def test_the_stub_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_sync_admin", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.STUB.read_text() == tool.render(), f"run {TOOL}"
