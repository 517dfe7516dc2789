"""Progress of delay levels; persisted as `config/delayOffset.json`.

The offset of a level is the queue offset, in its queue of SCHEDULE_TOPIC_XXXX, of the next message
to deliver.

Invariants
1. The file counts a message as delivered only once its delivered copy is fsynced: after a power cut
   a delayed message may arrive twice, but is never lost. (RocketMQ saves what it has written,
   flushed or not.)
2. After a kill of the process only the messages of the last loop iteration may be delivered twice:
   `delay_progress`.
3. A replica delivers nothing. It takes over its master's offsets, but only those whose delivered
   copies are fsynced in its own log: after a promotion messages may arrive twice, but none is lost.

Called on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyromq.broker.state.delay_progress import Progress, ProgressNote
from pyromq.broker.state.persistence import TableFile
from pyromq.protocol.wire.bodies import DelayOffsetSerializeWrapper

logger = logging.getLogger(__name__)


class DelayOffsetTable:
    """Next queue offsets by delay level."""

    def __init__(self, directory: Path, abort_file: Path) -> None:
        """`abort_file` exists at the start if the last process was killed."""
        self._abort_file = abort_file
        self._offsets: dict[int, int] = {}
        #: The copies of all counted deliveries end before this physical offset.
        self._log_end = 0
        #: Offsets that may be saved now, and those that may be once the log is flushed that far.
        self._safe: dict[int, int] = {}
        self._written: Progress | None = None
        self._saved: dict[int, int] = {}
        self._note = ProgressNote(directory / "delayOffset.progress")
        self._noted: Progress | None = None
        self.file = TableFile(directory / "delayOffset.json", self._snapshot)

    def load(self) -> None:
        """Load the file. Raises PersistenceError."""
        loaded = self.file.load(DelayOffsetSerializeWrapper.decode)
        if loaded is not None:
            self._offsets = loaded.offset_table
            self._safe = self._saved = dict(self._offsets)
        self._noted = self._note.read() if self._abort_file.exists() else None

    def begin(self, log_end: int) -> None:
        """Start after recovery, which found the end of the log at `log_end`."""
        noted, self._noted = self._noted, None
        if noted is not None and noted.log_end <= log_end:
            for level, offset in noted.offsets.items():
                self._offsets[level] = max(offset, self._offsets.get(level, 0))
        self._log_end = log_end
        self._note.open()
        self._note.write(Progress(log_end, self._offsets))

    def get(self, level: int) -> int:
        """Return the offset of a level's next message."""
        return self._offsets.get(level, 0)

    def move(self, offsets: dict[int, int], log_end: int) -> None:
        """Advance levels; the delivered copies are written and end before `log_end`."""
        self._offsets.update(offsets)
        self._log_end = log_end
        self._note.write(Progress(log_end, self._offsets))

    def take_over(self, offsets: Mapping[int, int], log_end: int) -> None:
        """Replace levels by those of the master, and save them.

        The copies of all counted deliveries are fsynced here and end before `log_end`. Levels that
        the master does not have stay.
        """
        self._offsets.update(offsets)
        self._log_end = log_end
        self._safe, self._written = dict(self._offsets), None
        self._note.write(Progress(log_end, self._offsets))
        self.save_if_changed()

    def settle(self, flushed: int) -> bool:
        """Allow a save of the offsets whose deliveries are below `flushed`, the fsynced end.

        Return False if there are none yet: call again later.
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

    def drop_unsettled(self) -> None:
        """Forget deliveries that may have no copies in the log: they are repeated."""
        self._offsets, self._written = dict(self._safe), None
        self._note.write(Progress(self._log_end, self._offsets))

    def save_if_changed(self) -> None:
        """Schedule a save of the safe offsets, unless they are saved."""
        if self._safe != self._saved:
            self._saved = self._safe
            self.file.save_soon()

    def table(self) -> DelayOffsetSerializeWrapper:
        """Return the current offsets."""
        return DelayOffsetSerializeWrapper(dict(self._offsets))

    async def close(self) -> None:
        """Save the safe offsets. Raises PersistenceError."""
        await self.file.close()
        if self._safe == self._offsets:
            self._note.remove()

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(dict(self._safe))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    offsets: dict[int, int]

    def encode(self) -> bytes:
        """Return the content of the file, byte for byte as Java writes it."""
        levels = ",".join(f"{level}:{self.offsets[level]}" for level in sorted(self.offsets))
        return f'{{\n\t"offsetTable":{{{levels}\n\t}}\n}}'.encode()
