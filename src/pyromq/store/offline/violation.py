"""What a check of a store finds wrong: one value for each finding, no logic.

Made by `check` and its parts, shown by `pyromq store check`, asserted empty by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class ViolationKind(Enum):
    """Which rule of the store is broken."""

    #: A file or folder that does not belong where it is, or has a wrong name or size.
    FILE = "file"
    #: Bytes of the log that are no record of their place.
    RECORD = "record"
    BODY_CRC = "body CRC"
    #: Something stands behind the log's end.
    LOG_END = "log end"
    #: A consume-queue entry that does not point at its message.
    QUEUE_ENTRY = "queue entry"
    #: A message of the log that its consume queue does not have.
    MISSING_ENTRY = "missing queue entry"
    #: Bytes of a consume queue's extension that are no unit.
    EXTENSION_UNIT = "extension unit"
    INDEX_HEADER = "index header"
    #: An entry, a link or a slot of the key index that leads to no message with its key.
    INDEX_ENTRY = "index entry"
    #: A key of a message that the key index does not have.
    MISSING_KEY = "missing key"
    CHECKPOINT = "checkpoint"
    #: A JSON table that cannot be read.
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding."""

    kind: ViolationKind
    file: Path
    #: The byte in the file at which it is; 0 when the file as a whole is meant.
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.kind.value}: {self.message}"
