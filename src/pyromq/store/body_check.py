"""Whether the bodies of records have the CRCs that stand in their heads, on two cores.

The CRC of a body keeps the interpreter's lock, and takes up to half of a recovery's time.
So once a walk has become long, a second process (`crc_process`) checks pieces of the log,
while this one makes queues of those that are checked. It maps the same files, for reading
only, and is told where the bodies are: what a record looks like it does not know.

Invariants
1. A body counts as right only after its CRC was computed, there or here, and as wrong only
   after it was computed here: the log is cut at such a one.
2. Whatever happens to the other process (it cannot be started, dies, does not answer), its
   pieces are checked here. Its answer is waited for no longer than checking a few pieces takes,
   and passed over when it comes later.
3. At most `_ASKED` pieces are asked for at a time, and never more bytes than fit in the pipe:
   when the other process is the slower one, this one checks pieces, too.

Used by `log_walk`, on the thread that starts the store. No process is forked: it is a fresh
interpreter, so it does not matter which threads the program has.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import subprocess
import sys
from array import array
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pyromq.protocol.bulk import Buffer, RecordColumns
from pyromq.protocol.crc import CRC_MASK, LIBRARY, crc32
from pyromq.store import crc_process

logger = logging.getLogger(__name__)

#: So much is checked here before another process is started: short walks are done by then.
WORTH_A_PROCESS: Final = 128 * 1024 * 1024
_ASKED: Final = 3
_PIPE_SIZE: Final = 1024 * 1024
_USUAL_PIPE_SIZE: Final = 64 * 1024
_PAGE: Final = 4096
_PATIENCE_MS: Final = 10
_END_SECONDS: Final = 5.0
_NUMBER: Final = np.dtype(np.uint32)


class Bodies(NamedTuple):
    """The records of one piece of a file."""

    path: Path
    #: Where the piece begins in the file.
    position: int
    data: Buffer
    columns: RecordColumns


class BodyCheck:
    """Takes pieces by `add`, and gives by `take` how many of each one's records are right."""

    def __init__(self, *, worth_a_process: int | None = None) -> None:
        self._worth = WORTH_A_PROCESS if worth_a_process is None else worth_a_process
        self._checked_here = 0
        self._process: _CrcProcess | None = None
        #: In order; with the result of those that were checked here.
        self._added: deque[tuple[Bodies, int | None]] = deque()

    def add(self, bodies: Bodies) -> None:
        """Have a piece checked."""
        if self._process is None and self._checked_here >= self._worth:
            self._worth = sys.maxsize  # once, whatever comes of it
            self._process = _start()
        if self._process is not None and self._process.ask(bodies):
            self._added.append((bodies, None))
        else:
            self._checked_here += len(bodies.data)
            self._added.append((bodies, check_bodies(bodies)))

    @property
    def is_ready(self) -> bool:
        """Whether `take` would not wait."""
        if not self._added:
            return False
        return self._added[0][1] is not None or self._process is None or self._process.has_answer

    def take(self) -> int:
        """How many records at the head of the oldest piece are right."""
        bodies, right = self._added.popleft()
        if right is None and self._process is not None:
            right = self._process.answer()
            if self._process.is_gone:
                logger.warning("the process that checks CRCs is gone: they are checked here")
                self.close()
        if right is None or right < bodies.columns.starts.size:
            right = check_bodies(bodies)
        return right

    def close(self) -> None:
        """End the other process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


def check_bodies(bodies: Bodies) -> int:
    """How many records at the head of a piece have bodies with the right CRC."""
    with memoryview(bodies.data) as view:
        return crc_process.count_right(crc32, view, *_spans(bodies.columns), CRC_MASK)


class _CrcProcess:
    """The other process: what it was asked for, and its answers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin.fileno()
        self._answers = process.stdout.fileno()
        self._room = _widen(self._requests)
        #: The sizes of the requests that are not answered yet, as they count in the pipe.
        self._sizes: deque[int] = deque()
        #: How many answers are to come that nobody waits for.
        self._late = 0
        self._path: Path | None = None
        self.is_gone = False
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def ask(self, bodies: Bodies) -> bool:
        """Have a piece checked; False when it shall be done here."""
        self._pass_over_late_ones()
        if len(self._sizes) >= _ASKED:
            return False
        path = os.fsencode(bodies.path.absolute()) if bodies.path != self._path else b""
        begins, ends, crcs = _spans(bodies.columns)
        head = crc_process.REQUEST.pack(len(path), bodies.position, len(bodies.data), len(begins))
        request = b"".join((head, path, begins, ends, crcs))
        size = len(request) + _PAGE
        if size + sum(self._sizes) > self._room:
            return False
        try:
            written = os.write(self._requests, request)
        except OSError:
            return False  # it is gone; the next answer that is missing tells
        if written < len(request):
            self._room = 0  # never: there was room
            return False
        self._path = bodies.path
        self._sizes.append(size)
        return True

    @property
    def has_answer(self) -> bool:
        """Whether `answer` would not wait."""
        self._pass_over_late_ones()
        return self.is_gone or bool(self._poll.poll(0))

    def answer(self) -> int | None:
        """The answer to the oldest request; None when there is none in time."""
        self._pass_over_late_ones()
        if self._late or not self._poll.poll(_PATIENCE_MS):
            self._late += 1
            return None
        return self._read()

    def _pass_over_late_ones(self) -> None:
        while self._late and not self.is_gone and self._poll.poll(0):
            self._read()
            self._late -= 1

    def _read(self) -> int | None:
        answer = os.read(self._answers, crc_process.ANSWER.size)
        if len(answer) < crc_process.ANSWER.size:
            self.is_gone = True
            return None
        self._sizes.popleft()
        (right,) = crc_process.ANSWER.unpack(answer)
        return int(right)

    def end(self) -> None:
        """Let it go."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._sizes:
            process.kill()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start() -> _CrcProcess | None:
    """The other process; None where there is no second core or no interpreter to start."""
    if _cores() < 2 or not _is_interpreter(sys.executable):
        return None
    command = [sys.executable, "-I", "-S", crc_process.__file__, str(CRC_MASK), LIBRARY]
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and a file of this package
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        logger.info("no process to check CRCs beside this one: %s", error)
        return None
    return _CrcProcess(process)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_interpreter(executable: str | None) -> bool:
    """Not a program that has Python in it: to start that again would be something else."""
    if not executable or getattr(sys, "frozen", False):
        return False
    return Path(executable).name.lower().startswith(("python", "pypy"))


def _widen(pipe: int) -> int:
    """Make a pipe as large as it may be; how much fits in it."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    try:
        return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    except (OSError, AttributeError):  # a system that does not tell
        return _USUAL_PIPE_SIZE


def _spans(columns: RecordColumns) -> tuple[array[int], array[int], array[int]]:
    """Begins, ends and CRCs of the bodies, as `crc_process` takes them."""
    begins, lengths = columns.bodies
    return (
        _numbers(begins),
        _numbers(begins + lengths),
        _numbers(columns.column("body_crc")),
    )


def _numbers(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> array[int]:
    return array(crc_process.NUMBER, values.astype(_NUMBER).tobytes())
