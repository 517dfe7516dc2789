from __future__ import annotations

import asyncio
import ctypes
import time
from pathlib import Path

import pytest

from pyromq.base import watchdog
from pyromq.base.watchdog import LoopWatchdog, stacks
from tests.support.patience import until

LIMIT = 0.1


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_QUESTION_SECONDS", 0.01)


def dumps(directory: Path) -> list[Path]:
    return sorted(directory.glob("stacks-*.txt"))


def hang_until_dumped(directory: Path, count: int = 1) -> None:
    deadline = time.monotonic() + 45
    while len(dumps(directory)) < count and time.monotonic() < deadline:
        time.sleep(0.005)


async def test_a_hang_is_dumped_once_and_its_end_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watching = LoopWatchdog(tmp_path / "debug", lambda: LIMIT)
    watching.start(asyncio.get_running_loop())
    hang_until_dumped(tmp_path / "debug")
    await until(lambda: "event loop responds again" in caplog.text)
    watching.stop()
    (path,) = dumps(tmp_path / "debug")
    text = path.read_text()
    assert "hang_until_dumped" in text
    assert "(MainThread)" in text
    assert "(pyromq-watchdog)" in text
    assert f"not responded for 0.1 s: requests wait; the stacks of all threads are in {path}" in (
        caplog.text
    )


async def test_a_loop_that_responds_leaves_nothing(tmp_path: Path) -> None:
    asked: list[int] = []

    def limit() -> float:
        asked.append(1)
        return 30.0

    watching = LoopWatchdog(tmp_path / "debug", limit)
    watching.start(asyncio.get_running_loop())
    await until(lambda: len(asked) > 5)
    watching.stop()
    assert not (tmp_path / "debug").exists()


async def test_zero_disables_it(tmp_path: Path) -> None:
    asked: list[int] = []

    def never() -> float:
        asked.append(1)
        return 0.0

    watching = LoopWatchdog(tmp_path / "debug", never)
    watching.start(asyncio.get_running_loop())
    deadline = time.monotonic() + 45
    while len(asked) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)  # noqa: ASYNC251 - the loop hangs
    watching.stop()
    assert dumps(tmp_path / "debug") == []


async def test_dumps_are_rare_and_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching = LoopWatchdog(tmp_path, lambda: LIMIT)
    watching.start(asyncio.get_running_loop())
    hang_until_dumped(tmp_path)
    await until(lambda: caplog.text.count("responds again") == 1)
    time.sleep(3 * LIMIT)  # noqa: ASYNC251 - a second hang, too soon for another file
    await until(lambda: caplog.text.count("responds again") == 2)
    assert len(dumps(tmp_path)) == 1
    watching.stop()
    for number in range(30):
        (tmp_path / f"stacks-20000101-0000{number:02}-000000-1.txt").touch()
    watching._dump(None, LIMIT, LIMIT)
    assert len(dumps(tmp_path)) == watchdog.MAX_DUMPS


async def test_a_hang_that_holds_the_gil_is_dumped_by_the_interpreter(tmp_path: Path) -> None:
    """Strictly: no Python thread can run then."""
    usleep = ctypes.PyDLL(None).usleep  # keeps the GIL, unlike CDLL
    watching = LoopWatchdog(tmp_path, lambda: LIMIT, strict=lambda: True)
    watching.start(asyncio.get_running_loop())
    await until((tmp_path / "stacks.part").exists)

    def hold_the_gil() -> None:
        usleep(900_000)

    deadline = time.monotonic() + 45
    while not dumps(tmp_path) and time.monotonic() < deadline:
        hold_the_gil()
        await asyncio.sleep(0.02)
    watching.stop()
    text = dumps(tmp_path)[0].read_text()
    assert "hold_the_gil" in text
    assert "is MainThread" in text


async def test_an_unwritable_directory_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "debug").write_text("a file")
    watching = LoopWatchdog(tmp_path / "debug", lambda: LIMIT, strict=lambda: True)
    watching._dump(None, LIMIT, LIMIT)
    with watching._timer(LIMIT) as file:
        assert file is None
    assert "its stacks could not be written to" in caplog.text


async def test_only_one_watchdog_uses_the_interpreter_s_timer(tmp_path: Path) -> None:
    first, second = (LoopWatchdog(tmp_path / name, lambda: LIMIT) for name in "ab")
    with first._timer(45) as file:
        assert file is not None
        with second._timer(45) as other:
            assert other is None
    with second._timer(45) as file:
        assert file is not None


def test_stacks_name_their_threads() -> None:
    assert "(MainThread)" in stacks()
    assert "test_stacks_name_their_threads" in stacks()
