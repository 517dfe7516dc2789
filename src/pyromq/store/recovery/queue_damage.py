"""Detect damaged consume queues cheaply, and read the tables of topics and deletions.

Reading all entries of all queues would make a start slow. Checked are the names and sizes of the
files, holes in the last file, and whether the first and the last entry point at a message of that
topic, queue and offset. A queue that fails is rebuilt completely from the log. `offline.check`
checks every entry.

Used by `recovery` and by the store when it loads its queues, on the thread that starts it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.message.record import RecordError, decode_record
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import CONSUME_QUEUE_ENTRY_SIZE, PRE_BLANK_SIZE, Entry
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues import lookup
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import QueueRun


def is_other_size(directory: Path, segment_size: int) -> bool:
    """Return whether all queues have one other segment size; that does not count as damage."""
    sizes = {path.stat().st_size for path in directory.glob("*/*/*") if path.is_file()}
    sizes.discard(0)
    if len(sizes) != 1:
        return False
    size = sizes.pop()
    return size != segment_size and size % CONSUME_QUEUE_ENTRY_SIZE == 0


def damage_of(queue: ConsumeQueue, log: CommitLog) -> str | None:
    """Return what is wrong with a recovered queue, or None."""
    lost_units = queue.extension.damage if queue.extension is not None else None
    return _hole(queue) or _wrong_entry(queue, log) or lost_units


def lacks(queue: ConsumeQueue, run: QueueRun) -> bool:
    """Return whether a queue lacks the first or the last of these records, but should have it."""
    return any(
        _lacks(queue, int(run.offsets[row]), Entry._make(run.entries[row].tolist()))
        for row in (0, -1)
    )


def _lacks(queue: ConsumeQueue, offset: int, expected: Entry) -> bool:
    first = _entry(queue, queue.min_offset)
    if first is not None and expected.physical_offset < first.physical_offset:
        # Either the topic was deleted and recreated, or the queue lost its head: a queue drops
        # no entry of a message that the log still has.
        return queue.min_offset > 0
    found = _entry(queue, offset)
    # The tags code may differ: other delay levels give the same message another one.
    return found is None or (found.physical_offset, found.size) != (
        expected.physical_offset,
        expected.size,
    )


def known_topics(config_directory: Path) -> frozenset[str] | None:
    """Return the topics in the store's table, or None if it cannot be read."""
    try:
        table = parse_json((config_directory / "topics.json").read_bytes())["topicConfigTable"]
    except (BodyError, OSError, KeyError, TypeError):
        return None
    return frozenset(table) if isinstance(table, dict) else None


class Deletion(NamedTuple):
    """The last deletion of a topic: where the log ended, and when it happened."""

    log_end: int
    #: Milliseconds since the epoch.
    timestamp: int


def known_deletions(config_directory: Path) -> dict[str, Deletion]:
    """Return topics that were deleted while the log had messages of them.

    They may have been recreated since. `broker/state/deleted_topics` writes the file.
    """
    try:
        topics = parse_json((config_directory / "deletedTopics.json").read_bytes())["topics"]
        return {
            topic: Deletion(int(note["logEnd"]), int(note["timestamp"]))
            for topic, note in topics.items()
        }
    except (BodyError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _hole(queue: ConsumeQueue) -> str | None:
    file = queue.segments.find((queue.next_offset - 1) * CONSUME_QUEUE_ENTRY_SIZE)
    if file is None:
        return None
    used = queue.next_offset * CONSUME_QUEUE_ENTRY_SIZE - file.base
    entries = np.frombuffer(file.read(0, used), CONSUME_QUEUE_DTYPE)
    blank = (entries["size"] <= 0) | (entries["physical_offset"] < 0)
    if blank.any():
        return f"entry {file.base // CONSUME_QUEUE_ENTRY_SIZE + int(blank.argmax())} is blank"
    real = entries["physical_offset"][entries["size"] != PRE_BLANK_SIZE].astype(np.int64)
    if (np.diff(real) <= 0).any():
        return f"{file.path.name} points back in the log"
    if any(file.read(used, used + CONSUME_QUEUE_ENTRY_SIZE)):
        return f"entry {queue.next_offset - 1}, the last one, is followed by other bytes"
    return None


def _wrong_entry(queue: ConsumeQueue, log: CommitLog) -> str | None:
    for offset in {queue.min_offset, queue.next_offset - 1}:
        entry = _entry(queue, offset)
        if entry is None or entry.physical_offset < log.min_offset or entry.is_pre_blank:
            continue
        data = lookup.record_at(log, entry.physical_offset)
        try:
            record = decode_record(data) if data is not None else None
        except RecordError:
            record = None
        if (
            record is None
            or record.size != entry.size
            or (record.topic, record.queue_id) != (queue.topic, queue.queue_id)
            or record.queue_offset != offset
        ):
            return f"entry {offset} does not point at its message"
    return None


def _entry(queue: ConsumeQueue, offset: int) -> Entry | None:
    entry = queue.entry(offset)
    return None if entry is None else Entry._make(entry)
