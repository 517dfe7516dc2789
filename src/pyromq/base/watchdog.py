"""Write the stacks of all threads to a file when the event loop hangs.

A thread asks the loop for a sign of life every second. If none comes within the limit, it writes
the stacks to a file and logs where, once per hang; when the loop is back, it logs how long that
took. RocketMQ does this for its put lock (`debugLockEnable`); here everything runs on the loop.

A page fault or a call into C may hold the GIL, and then no Python thread runs. With `strict`, the
interpreter's own timer (`faulthandler`) writes the stacks even so. There is one such timer per
process, so only one strict watchdog uses it.

Runs one daemon thread; `start` and `stop` are called on the loop.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import IO, Final

logger = logging.getLogger(__name__)

#: Seconds between two questions to the loop.
_QUESTION_SECONDS: Final = 1.0
#: Files that are kept; the oldest are removed.
MAX_DUMPS: Final = 20
#: Seconds between two dumps: a loop that hangs again and again does not fill the disk.
MIN_DUMP_SECONDS: Final = 60.0
#: A thread that wakes up this much too late could not run, because something held the GIL.
_LATE_SECONDS: Final = 0.2
#: The file of the interpreter's timer until it gets its name.
_UNNAMED: Final = "stacks.part"
#: Held by the watchdog that uses the interpreter's timer.
_timer_in_use = threading.Lock()


class LoopWatchdog:
    """Watches one event loop."""

    def __init__(
        self,
        directory: Path,
        limit: Callable[[], float],
        strict: Callable[[], bool] = lambda: False,
    ) -> None:
        """`limit` returns the seconds without a sign of life that count as a hang; 0 disables."""
        self._directory = directory
        self._limit = limit
        self._strict = strict
        self._stop = threading.Event()
        #: The sign of life that the thread waits for.
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_dump = float("-inf")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch `loop` until `stop`."""
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="pyromq-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._answered.set()  # the caller may be the loop that should answer
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.wait(_QUESTION_SECONDS):
            limit = self._limit()
            if limit <= 0:
                continue
            self._answered = answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            self._await(answered, limit)

    def _await(self, answered: threading.Event, limit: float) -> None:
        """Wait for the answer; dump the stacks if it is late."""
        asked = time.monotonic()
        is_due = asked - self._last_dump >= MIN_DUMP_SECONDS
        with self._timer(limit) if is_due and self._strict() else nullcontext() as file:
            while not answered.wait(limit if is_due else _QUESTION_SECONDS):
                if self._stop.is_set():
                    return
                if is_due:
                    self._dump(file, limit, time.monotonic() - asked)
                    is_due = False
            took = time.monotonic() - asked
            if took <= limit:
                return
            if is_due:  # this thread could not run either
                self._dump(file, limit, took)
        logger.warning("event loop responds again after %.1f s", took)

    def _dump(self, file: IO[bytes] | None, limit: float, elapsed: float) -> None:
        """Save the stacks: those of the interpreter's timer if this thread ran too late."""
        self._last_dump = time.monotonic()
        is_late = elapsed > limit + _LATE_SECONDS
        if is_late and file is not None and os.fstat(file.fileno()).st_size:
            for thread in threading.enumerate():
                file.write(f"# {thread.ident:#018x} is {thread.name}\n".encode())
            self._save(lambda path: (self._directory / _UNNAMED).rename(path), limit)
            return
        text = stacks()
        if is_late:
            text = f"No thread could run for {elapsed:.1f} s; these stacks are later.\n\n{text}"
        self._save(lambda path: path.write_text(text, encoding="utf-8"), limit)

    def _save(self, save: Callable[[Path], object], limit: float) -> None:
        path = self._directory / f"stacks-{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}.txt"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            save(path)
            for old in sorted(self._directory.glob("stacks-*.txt"))[:-MAX_DUMPS]:
                old.unlink(missing_ok=True)
        except OSError as error:
            logger.error(
                "event loop has not responded for %g s, and its stacks could not be written to %s: "
                "%s",
                limit,
                path,
                error,
            )
            return
        logger.error(
            "event loop has not responded for %g s: requests wait; the stacks of all threads are "
            "in %s",
            limit,
            path,
        )

    @contextmanager
    def _timer(self, limit: float) -> Iterator[IO[bytes] | None]:
        """Let the interpreter write the stacks to the file after `limit`, with or without the GIL.

        Yields None if the timer or the file is not available.
        """
        if not _timer_in_use.acquire(blocking=False):
            yield None
            return
        try:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                path = self._directory / _UNNAMED
                path.unlink(missing_ok=True)
                file = path.open("ab", buffering=0)
            except OSError:
                yield None
                return
            with file:
                faulthandler.dump_traceback_later(limit, file=file)
                try:
                    yield file
                finally:
                    faulthandler.cancel_dump_traceback_later()
        finally:
            _timer_in_use.release()


def stacks() -> str:
    """Return the stacks of all threads, with their names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = io.StringIO()
    for ident, frame in sys._current_frames().items():
        text.write(f"Thread {ident:#x} ({names.get(ident, 'unknown')}):\n")
        text.writelines(traceback.format_stack(frame))
        text.write("\n")
    return text.getvalue()
