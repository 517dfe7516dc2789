"""Correct the JSON tables of a store whose log is truncated.

    consumerOffset.json   committed offsets after the end of their queue become that end. Consumers
                          would otherwise skip the next messages.
    delayOffset.json      the same for the progress of delay levels, in their queues. Delayed
                          messages that were delivered into the truncated part are not delivered
                          again: a replica gets its progress from its master.
    deletedTopics.json    deletions noted after the new end are moved to it: messages that the
                          log gets later belong to a topic that exists again.

A replica overwrites the first two with the tables of its master. `plan_tables` reads, and
`TableEdit.write` replaces a file atomically, with its previous version beside it (`.bak`). Both are
idempotent. Called by `truncate`, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyromq.base.atomic_file import backup_of, read_file, write_file
from pyromq.protocol.java.fastjson import dump_json, parse_json
from pyromq.protocol.names import SCHEDULE_TOPIC
from pyromq.protocol.wire.bodies import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from pyromq.store.results import StoreError

#: Returns the queue offset at which a queue of a topic will end.
EndOf = Callable[[str, int], int]

#: Every file of `config` that a truncation changes or removes.
TABLES = ("consumerOffset.json", "delayOffset.json", "deletedTopics.json")
#: Exact progress of delay levels after a kill, which counts deliveries by the end of the log.
PROGRESS_NOTE = "delayOffset.progress"


class Change(NamedTuple):
    """A value of a table that is too large."""

    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class TableEdit:
    """The new content of a table."""

    path: Path
    content: bytes
    changes: tuple[Change, ...]

    def write(self) -> None:
        """Replace the file."""
        write_file(self.path, self.content, backup=True)


def plan_tables(directory: Path, offset: int, end_of: EndOf) -> list[TableEdit]:
    """Return the edits for a log that ends at `offset`.

    Raises StoreError if a table cannot be read.
    """
    edits = []
    for name in TABLES:
        path = directory / name
        content = read_file(path)
        if content is None:
            content = read_file(backup_of(path))
        if content is None:
            continue
        try:
            edit = _edit(path, content, offset, end_of)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"cannot read {path}: {error}. Restore it from a copy, or move it away"
            ) from error
        if edit.changes:
            edits.append(edit)
    return edits


def _edit(path: Path, content: bytes, offset: int, end_of: EndOf) -> TableEdit:
    changes: list[Change] = []

    def clamp(name: str, value: int, limit: int) -> int:
        if value > limit:
            changes.append(Change(name, value, limit))
        return min(value, limit)

    match path.name:
        case "consumerOffset.json":
            consumers = ConsumerOffsetSerializeWrapper.decode(content)
            for pair, queues in consumers.offset_table.items():
                topic = pair.partition("@")[0]
                for queue_id, value in queues.items():
                    limit = end_of(topic, queue_id)
                    queues[queue_id] = clamp(f"{pair} queue {queue_id}", value, limit)
            content = consumers.encode()
        case "delayOffset.json":
            delays = DelayOffsetSerializeWrapper.decode(content)
            for level, value in delays.offset_table.items():
                limit = end_of(SCHEDULE_TOPIC, level - 1)
                delays.offset_table[level] = clamp(f"level {level}", value, limit)
            content = delays.encode()
        case _:
            table = parse_json(content)
            for topic, deletion in table["topics"].items():
                deletion["logEnd"] = clamp(topic, deletion["logEnd"], offset)
            content = dump_json(table)
    return TableEdit(path, content, tuple(changes))
