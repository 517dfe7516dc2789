"""Findings of a store check, as plain values.

Created by `check`, printed by `pyromq store check`, asserted to be none by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class ViolationKind(Enum):
    """The rule of the store that is violated."""

    #: A file or folder in the wrong place, or with a wrong name or size.
    FILE = "file"
    #: Bytes of the log that are not a valid record at their offset.
    RECORD = "record"
    BODY_CRC = "body CRC"
    #: Bytes after the end of the log.
    LOG_END = "log end"
    #: A consume-queue entry that does not point at its message.
    QUEUE_ENTRY = "queue entry"
    #: A message of the log that its consume queue does not have.
    MISSING_ENTRY = "missing queue entry"
    #: Bytes of a consume-queue extension that are not a unit.
    EXTENSION_UNIT = "extension unit"
    INDEX_HEADER = "index header"
    #: An entry, a link or a slot of the key index that does not lead to a message with its key.
    INDEX_ENTRY = "index entry"
    #: A key of a message that the key index does not have.
    MISSING_KEY = "missing key"
    CHECKPOINT = "checkpoint"
    #: A JSON table that cannot be parsed.
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding."""

    kind: ViolationKind
    file: Path
    #: The position in the file; 0 if the violation concerns the whole file.
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.kind.value}: {self.message}"
