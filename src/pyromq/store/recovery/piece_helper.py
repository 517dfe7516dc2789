"""Examine the pieces of a log without the compiled kernel, on two cores if the log is long.

Decoding with numpy holds the GIL, so threads would not help; the kernel is twice as fast on
one core as two processes without it. Once a walk gets long, a second process (`piece_process`)
examines pieces and builds their queue entries, while this process does the same with other pieces
and writes all entries. The second process maps the same files read-only.

Invariants
1. A record counts as valid only after either process has examined it. The log is truncated only at
   a record that this process has examined.
2. Whatever happens to the second process (it does not start, dies, hangs), this process examines
   its pieces. It waits for a response no longer than examining a few pieces takes, and ignores
   responses that arrive later.
3. At most `_MAX_REQUESTS` pieces are in flight. If the second process is slower, this one examines
   more of them.

Used by `walk` on the thread that starts the store. The second process is a fresh interpreter, not a
fork, so threads of the program do not matter.
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

from pyromq.base.sizes import MIB
from pyromq.store.recovery import piece_process
from pyromq.store.recovery.piece import LogPiece, Rules

logger = logging.getLogger(__name__)

#: Bytes examined before the second process is started; a short walk needs none.
BYTES_BEFORE_PROCESS: Final = 128 * MIB
#: Pieces in flight to the second process.
_MAX_REQUESTS: Final = 5
_PIPE_SIZE: Final = MIB
#: Time to wait for the start of a response.
_RESPONSE_TIMEOUT_MS: Final = 10
#: Time to wait for the rest of a response that has started to arrive.
_REST_TIMEOUT_MS: Final = 2000
#: Time to wait for the second process to exit.
_EXIT_SECONDS: Final = 5.0
#: The second process finds modules exactly where this one does.
_PROGRAM: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from pyromq.store.recovery.piece_process import main; main(sys.argv[2])"
)


class FilePiece(NamedTuple):
    """A piece and its position in a file."""

    path: Path
    position: int
    piece: LogPiece


class PieceHelper:
    """Examines pieces: `add` takes them, `take` returns each, in order, with its valid records."""

    def __init__(self, rules: Rules, *, bytes_before_process: int | None = None) -> None:
        self._rules = rules
        self._bytes_before_process = (
            BYTES_BEFORE_PROCESS if bytes_before_process is None else bytes_before_process
        )
        self._examined_here = 0
        self._process: _PieceProcess | None = None
        #: In order; the result is None if the other process examines the piece.
        self._added: deque[tuple[LogPiece, LogPiece | None]] = deque()

    def add(self, found: FilePiece) -> None:
        """Examine a piece, or have the other process do so."""
        if self._process is None and self._examined_here >= self._bytes_before_process:
            self._bytes_before_process = sys.maxsize  # try only once
            self._process = _start(self._rules)
        piece = found.piece
        if piece.starts.size and self._process is not None and self._process.request(found):
            self._added.append((piece, None))
        else:
            self._examined_here += len(piece.data)
            self._added.append((piece, piece.examine()))

    @property
    def is_ready(self) -> bool:
        """Whether `take` would not wait."""
        if not self._added:
            return False
        return self._added[0][1] is not None or self._process is None or self._process.has_response

    def take(self) -> LogPiece:
        """Return the oldest piece, up to its first invalid record."""
        piece, examined = self._added.popleft()
        if examined is not None:
            return examined
        response = None
        if self._process is not None:
            response = self._process.response()
            if self._process.is_gone:
                logger.warning("log examination process died, continuing without it")
                self.close()
        if response is None or response.runs is None or response.records != piece.starts.size:
            return piece.examine()
        return LogPiece(piece.base, piece.data, piece.starts, self._rules, runs=response.runs)

    def close(self) -> None:
        """Stop the other process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


class _PieceProcess:
    """The other process with its pending requests and responses."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin.fileno()
        self._responses = process.stdout.fileno()
        _widen(self._responses)
        #: Requests without a response, and how many of these responses to ignore.
        self._pending = self._late = 0
        self._path: Path | None = None
        self.is_gone = False
        self._poll = select.poll()
        self._poll.register(self._responses, select.POLLIN)

    def request(self, found: FilePiece) -> bool:
        """Send a piece to the process; return False if the caller must examine it."""
        self._drop_late_responses()
        if self._pending >= _MAX_REQUESTS:
            return False
        path = os.fsencode(found.path.absolute()) if found.path != self._path else b""
        piece = found.piece
        request = piece_process.REQUEST.pack(len(path), found.position, piece.base, len(piece.data))
        try:
            # A few requests always fit in a pipe.
            written = os.write(self._requests, request + path)
        except OSError:
            return False  # it died; `response` will notice
        if written < len(request) + len(path):
            self.is_gone = True
            return False
        self._path = found.path
        self._pending += 1
        return True

    @property
    def has_response(self) -> bool:
        """Whether `response` would not wait."""
        self._drop_late_responses()
        return self.is_gone or bool(self._poll.poll(0))

    def response(self) -> piece_process.Response | None:
        """Return the response to the oldest request, or None if it does not arrive in time."""
        self._drop_late_responses()
        if self._late or not self._poll.poll(_RESPONSE_TIMEOUT_MS):
            self._late += 1
            return None
        return self._read()

    def _drop_late_responses(self) -> None:
        while self._late and not self.is_gone and self._poll.poll(0):
            self._read()
            self._late -= 1

    def _read(self) -> piece_process.Response | None:
        head = self._read_exactly(piece_process.RESPONSE.size)
        if self.is_gone:
            return None
        rest = self._read_exactly(piece_process.response_rest(head))
        if self.is_gone:
            return None
        self._pending -= 1
        return piece_process.decode_response(head, rest)

    def _read_exactly(self, size: int) -> bytes:
        """Read `size` bytes; return fewer and set `is_gone` if they do not arrive."""
        received = []
        while size and not self.is_gone:
            data = os.read(self._responses, size) if self._poll.poll(_REST_TIMEOUT_MS) else b""
            received.append(data)
            size -= len(data)
            self.is_gone = not data
        return b"".join(received)

    def end(self) -> None:
        """Close the pipes and wait until the process has exited."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._pending or self.is_gone:
            process.kill()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(rules: Rules) -> _PieceProcess | None:
    """Start the other process; return None without a second core or an interpreter to start."""
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
        logger.info("log examination process did not start: %s", error)
        return None
    return _PieceProcess(process)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_interpreter(executable: str | None) -> bool:
    """Return whether this is a Python interpreter, and not a program that embeds one."""
    if not executable or getattr(sys, "frozen", False):
        return False
    return Path(executable).name.lower().startswith(("python", "pypy"))


def _widen(pipe: int) -> None:
    """Enlarge a pipe, so that neither process waits for the other."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
