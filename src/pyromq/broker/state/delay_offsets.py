"""How far the delivery of each delay level has come; persisted as `config/delayOffset.json`.

An offset is the queue offset, in the level's queue of SCHEDULE_TOPIC_XXXX, of the next
message that is to be delivered.

Invariants
1. The file never counts a message as delivered whose delivered copy is not on the disk:
   after a cut of the power a delayed message may come twice, but is never lost. (RocketMQ
   saves what it has written, flushed or not.)
2. After a kill of the process no message is delivered twice, but those of the turn in which
   it was killed: `delay_progress`.

All methods are called on the event loop.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from pyromq.broker.state.delay_progress import Progress, ProgressNote
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper

logger = logging.getLogger(__name__)


class DelayOffsetTable:
    """Next queue offsets by delay level."""

    def __init__(self, directory: Path, abort_file: Path) -> None:
        """`abort_file` is there at a start when the broker before was killed."""
        self._abort_file = abort_file
        self._offsets: dict[int, int] = {}
        #: Deliveries that are counted end below this physical offset.
        self._log_end = 0
        #: What may be saved, and what may be when the log is flushed so far.
        self._safe: dict[int, int] = {}
        self._written: Progress | None = None
        self._saved: dict[int, int] = {}
        self._note = ProgressNote(directory / "delayOffset.progress")
        self._noted: Progress | None = None
        self.file = TableFile(directory / "delayOffset.json", self._snapshot)

    def load(self) -> None:
        """Take the offsets of the file. Raises PersistenceError."""
        loaded = self.file.load(DelayOffsetSerializeWrapper.decode)
        if loaded is not None:
            self._offsets = loaded.offset_table
            self._safe = self._saved = dict(self._offsets)
        self._noted = self._note.read() if self._abort_file.exists() else None

    def begin(self, log_end: int) -> None:
        """The store has started; recovery found the log to end there."""
        noted, self._noted = self._noted, None
        if noted is not None and noted.log_end <= log_end:
            for level, offset in noted.offsets.items():
                self._offsets[level] = max(offset, self._offsets.get(level, 0))
        self._log_end = log_end
        self._note.open()
        self._note.write(Progress(log_end, self._offsets))

    def get(self, level: int) -> int:
        """The offset of a level's next message; 0 when none was ever delivered."""
        return self._offsets.get(level, 0)

    def move(self, offsets: dict[int, int], log_end: int) -> None:
        """These levels have come so far; what they delivered is written, below `log_end`."""
        self._offsets.update(offsets)
        self._log_end = log_end
        self._note.write(Progress(log_end, self._offsets))

    def settle(self, flushed: int) -> bool:
        """Let be saved what the log, which is on the disk up to `flushed`, bears out.

        False when that is nothing new, and to be asked again.
        """
        if self._log_end <= flushed:
            self._safe, self._written = dict(self._offsets), None
            return True
        if self._written is None:
            self._written = Progress(self._log_end, dict(self._offsets))
        elif self._written.log_end <= flushed:
            self._safe, self._written = self._written.offsets, None
            return True
        return False

    def save_if_changed(self) -> None:
        """Save what is safe soon, unless it was saved before."""
        if self._safe != self._saved:
            self._saved = self._safe
            self.file.save_soon()

    def table(self) -> DelayOffsetSerializeWrapper:
        """The offsets as they are now."""
        return DelayOffsetSerializeWrapper(dict(self._offsets))

    async def close(self) -> None:
        """Save what is safe. Raises PersistenceError."""
        await self.file.close()
        if self._safe == self._offsets:
            self._note.remove()

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(dict(self._safe))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    offsets: dict[int, int]

    def encode(self) -> bytes:
        """The file's content, byte for byte as Java writes it."""
        levels = ",".join(f"{level}:{self.offsets[level]}" for level in sorted(self.offsets))
        return f'{{\n\t"offsetTable":{{{levels}\n\t}}\n}}'.encode()
