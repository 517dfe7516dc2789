"""Examines the pieces of a log, those of a long one on two cores.

Whatever is made of a log keeps the interpreter's lock, so threads would take turns. Once a
walk has become long, a second process (`piece_process`) examines pieces and makes their
queue entries, while this one does the same with others and writes all of them. It maps the
same files, for reading only.

Invariants
1. A record counts as valid only after it was examined, there or here, and as the log's end
   only after it was examined here: the log is cut at such a one.
2. Whatever happens to the other process (it cannot be started, dies, does not answer), its
   pieces are examined here. Its answer is waited for no longer than examining a few pieces
   takes, and passed over when it comes later.
3. At most `_ASKED` pieces are asked for at a time: when the other process is the slower one,
   this one does more of them.

Used by `log_walk`, on the thread that starts the store. No process is forked: it is a fresh
interpreter, so it does not matter which threads the program has.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.store.recovery import piece_process
from pyromq.store.recovery.piece import LogPiece, Rules

logger = logging.getLogger(__name__)

#: So much is examined here before another process is started: short walks are done by then.
WORTH_A_PROCESS: Final = 128 * 1024 * 1024
_ASKED: Final = 5
_PIPE_SIZE: Final = 1024 * 1024
_PATIENCE_MS: Final = 10
#: For the rest of an answer that has begun to come.
_REST_MS: Final = 2000
_END_SECONDS: Final = 5.0
#: Modules are found where this process finds them, and nowhere else.
_PROGRAM: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyromq.store.recovery.piece_process import main; main(sys.argv[2])"
)


class FilePiece(NamedTuple):
    """A piece, and where it stands."""

    path: Path
    position: int
    piece: LogPiece


class PieceHelper:
    """Takes pieces by `add`, and gives by `take` each one with its valid records."""

    def __init__(self, rules: Rules, *, worth_a_process: int | None = None) -> None:
        self._rules = rules
        self._worth = WORTH_A_PROCESS if worth_a_process is None else worth_a_process
        self._examined_here = 0
        self._process: _PieceProcess | None = None
        #: In order; with the result of those that were examined here.
        self._added: deque[tuple[LogPiece, LogPiece | None]] = deque()

    def add(self, found: FilePiece) -> None:
        """Have a piece examined."""
        if self._process is None and self._examined_here >= self._worth:
            self._worth = sys.maxsize  # once, whatever comes of it
            self._process = _start(self._rules)
        piece = found.piece
        if piece.starts.size and self._process is not None and self._process.ask(found):
            self._added.append((piece, None))
        else:
            self._examined_here += len(piece.data)
            self._added.append((piece, piece.examine()))

    @property
    def is_ready(self) -> bool:
        """Whether `take` would not wait."""
        if not self._added:
            return False
        return self._added[0][1] is not None or self._process is None or self._process.has_answer

    def take(self) -> LogPiece:
        """The oldest piece with the valid records at its head."""
        piece, examined = self._added.popleft()
        if examined is not None:
            return examined
        answer = None
        if self._process is not None:
            answer = self._process.answer()
            if self._process.is_gone:
                logger.warning("the process that examines the log is gone: it is done here")
                self.close()
        if answer is None or answer.runs is None or answer.records != piece.starts.size:
            return piece.examine()
        return LogPiece(piece.base, piece.data, piece.starts, self._rules, runs=answer.runs)

    def close(self) -> None:
        """End the other process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


class _PieceProcess:
    """The other process: what it was asked for, and its answers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin.fileno()
        self._answers = process.stdout.fileno()
        _widen(self._answers)
        #: How many requests are not answered yet, and how many answers nobody waits for.
        self._asked = self._late = 0
        self._path: Path | None = None
        self.is_gone = False
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def ask(self, found: FilePiece) -> bool:
        """Have a piece examined; False when it shall be done here."""
        self._pass_over_late_ones()
        if self._asked >= _ASKED:
            return False
        path = os.fsencode(found.path.absolute()) if found.path != self._path else b""
        piece = found.piece
        request = piece_process.REQUEST.pack(len(path), found.position, piece.base, len(piece.data))
        try:
            # A few of them always fit in a pipe.
            written = os.write(self._requests, request + path)
        except OSError:
            return False  # it is gone; the next answer that is missing tells
        if written < len(request) + len(path):
            self.is_gone = True
            return False
        self._path = found.path
        self._asked += 1
        return True

    @property
    def has_answer(self) -> bool:
        """Whether `answer` would not wait."""
        self._pass_over_late_ones()
        return self.is_gone or bool(self._poll.poll(0))

    def answer(self) -> piece_process.Answer | None:
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

    def _read(self) -> piece_process.Answer | None:
        head = self._read_exactly(piece_process.ANSWER.size)
        if self.is_gone:
            return None
        rest = self._read_exactly(piece_process.answer_rest(head))
        if self.is_gone:
            return None
        self._asked -= 1
        return piece_process.decode_answer(head, rest)

    def _read_exactly(self, size: int) -> bytes:
        """So many bytes; fewer and `is_gone` when they do not come."""
        parts = []
        while size and not self.is_gone:
            part = os.read(self._answers, size) if self._poll.poll(_REST_MS) else b""
            parts.append(part)
            size -= len(part)
            self.is_gone = not part
        return b"".join(parts)

    def end(self) -> None:
        """Let it go."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._asked or self.is_gone:
            process.kill()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(rules: Rules) -> _PieceProcess | None:
    """The other process; None where there is no second core or no interpreter to start."""
    if _cores() < 2 or not _is_interpreter(sys.executable):
        return None
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    command = [*program, paths, piece_process.encode_rules(rules)]
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of this package
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        logger.info("no process to examine the log beside this one: %s", error)
        return None
    return _PieceProcess(process)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_interpreter(executable: str | None) -> bool:
    """Not a program that has Python in it: to start that again would be something else."""
    if not executable or getattr(sys, "frozen", False):
        return False
    return Path(executable).name.lower().startswith(("python", "pypy"))


def _widen(pipe: int) -> None:
    """Make a pipe as large as it may be, so that nobody waits for the other one."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
