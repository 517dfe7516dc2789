"""The audit log: who did what, with which result, as one JSON object per line.

    {"time":"2026-11-17T12:00:00.000Z","server":"broker-a","account":"alice_key","address":
     "10.0.0.7:40112","code":17,"request":"UPDATE_AND_CREATE_TOPIC","resource":"orders",
     "result":"denied","reason":"Need admin permission ..."}

`result` is `denied`, `done` or `failed`. Refused requests and all administrative ones are logged.
`resource` is the topic, group or account that the request names, if any. No field holds a secret or
a message.

A file is rotated at `max_bytes`; `backups` old ones stay, as NAME.1, NAME.2 and so on. At most
`MAX_LINES_PER_SECOND` lines are written; a line with `dropped` counts the others, so that a flood
of refused requests can neither fill the disk nor stop the server. A disk that cannot be written
costs the lines, with one error in the server's log, and nothing else.

On the loop: a line goes to the page cache, nobody waits for the disk.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from pyromq.base.clock import Clock, now_ms
from pyromq.base.log_lines import RARELY, printable

logger = logging.getLogger(__name__)

MAX_LINES_PER_SECOND: Final = 200
_TEXT: Final = 512
_MODE: Final = 0o600

DENIED: Final = "denied"
DONE: Final = "done"
FAILED: Final = "failed"


class AuditLog:
    """Appends lines to one file."""

    def __init__(
        self,
        path: Path,
        server: str,
        *,
        max_bytes: int,
        backups: int,
        clock: Clock = now_ms,
    ) -> None:
        self.path = path
        self._server = server
        self._max_bytes = max_bytes
        self._backups = backups
        self._clock = clock
        self._file: int | None = None
        self._size = 0
        #: The second that is being counted, its lines, and the lines that were dropped.
        self._second = 0
        self._lines = 0
        self._dropped = 0

    def write(
        self, *, account: str | None, address: str, code: int, request: str, **details: str | None
    ) -> None:
        """Log one request. Never raises."""
        now = self._clock()
        if not self._is_wanted(now):
            return
        line: dict[str, Any] = {
            "time": _time(now),
            "server": self._server,
            "account": account,
            "address": address,
            "code": code,
            "request": request,
            **{name: printable(text, _TEXT) for name, text in details.items() if text},
        }
        self._append(line)

    def close(self) -> None:
        """Write the count of dropped lines and close the file. Idempotent."""
        self._report_dropped(self._clock())
        self._close_file()

    def _is_wanted(self, now: int) -> bool:
        second = now // 1000
        if second != self._second:
            self._report_dropped(now)
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= MAX_LINES_PER_SECOND:
            return True
        self._dropped += 1
        return False

    def _report_dropped(self, now: int) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._append({"time": _time(now), "server": self._server, "dropped": dropped})

    def _append(self, line: dict[str, Any]) -> None:
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        try:
            if self._file is not None and self._size + len(data) > self._max_bytes:
                self._rotate()
            if self._file is None:
                self._open()
            assert self._file is not None
            os.write(self._file, data)
            self._size += len(data)
        except OSError as error:
            logger.error("audit log %s not written: %s", self.path, error, extra=RARELY)
            self._close_file()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self.path, flags, _MODE)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        self._close_file()
        for number in range(self._backups, 0, -1):
            older = self._numbered(number - 1) if number > 1 else self.path
            if older.exists():
                older.replace(self._numbered(number))
        if not self._backups:
            self.path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _time(now: int) -> str:
    moment = datetime.fromtimestamp(now / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
