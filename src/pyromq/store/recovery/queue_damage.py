"""Which consume queues cannot be right, by looks that cost little.

At a start nobody reads all entries of all queues. These are looked at: the names and
sizes of the files, the last file's entries for holes, and whether the first and the last
entry point at a message of that topic, queue and offset. A queue that fails is made again
from the log, whole. `check` looks at everything.

Used by `recovery` and by the store that loads its queues, on the thread that starts it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.message.record import RecordError, decode_record
from pyromq.protocol.message.unit_arrays import CONSUME_QUEUE_DTYPE
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    PRE_BLANK_SIZE,
)
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queues import lookup
from pyromq.store.queues.consume_queue import ConsumeQueue
from pyromq.store.recovery.dispatch import QueueRun


def is_other_size(directory: Path, segment_size: int) -> bool:
    """Whether all queues were written with one other segment size: nothing is damaged then."""
    sizes = {path.stat().st_size for path in directory.glob("*/*/*") if path.is_file()}
    sizes.discard(0)
    return len(sizes) == 1 and (size := sizes.pop()) != segment_size and size % 20 == 0


def damage_of(queue: ConsumeQueue, log: CommitLog) -> str | None:
    """What is wrong with a recovered queue; None when nothing shows."""
    lost_units = queue.extension.damage if queue.extension is not None else None
    return _hole(queue) or _wrong_entry(queue, log) or lost_units


def lacks(queue: ConsumeQueue, run: QueueRun) -> bool:
    """Whether a queue does not have the first or the last of these records, and should."""
    return any(_lacks(queue, int(run.offsets[row]), run.entries[row].tolist()) for row in (0, -1))


def _lacks(queue: ConsumeQueue, offset: int, entry: tuple[int, int, int]) -> bool:
    first = queue.entry(queue.min_offset)
    if first is not None and entry[0] < first[0]:
        # Of a topic that was deleted, and made anew; or else the queue has lost its head, for
        # what the log still has no queue gives up.
        return queue.min_offset > 0
    found = queue.entry(offset)
    # Not the tags code: another list of delay levels makes another one of the same message.
    return found is None or found[:2] != entry[:2]


def known_topics(config_directory: Path) -> frozenset[str] | None:
    """The topics of the store's table; None when there is none to read."""
    try:
        table = parse_json((config_directory / "topics.json").read_bytes())["topicConfigTable"]
    except (BodyError, OSError, KeyError, TypeError):
        return None
    return frozenset(table) if isinstance(table, dict) else None


class Deletion(NamedTuple):
    """When a topic was deleted last, and where the log ended then."""

    log_end: int
    #: Milliseconds since 1970.
    timestamp: int


def known_deletions(config_directory: Path) -> dict[str, Deletion]:
    """Topics that were deleted while the log held messages of them, perhaps made anew since.

    The broker's file: see `broker/state/deleted_topics`.
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
        return f"something stands behind entry {queue.next_offset - 1}, its last"
    return None


def _wrong_entry(queue: ConsumeQueue, log: CommitLog) -> str | None:
    for offset in {queue.min_offset, queue.next_offset - 1}:
        entry = queue.entry(offset)
        if entry is None or entry[0] < log.min_offset or entry[1] == PRE_BLANK_SIZE:
            continue
        data = lookup.record_at(log, entry[0])
        try:
            record = decode_record(data) if data is not None else None
        except RecordError:
            record = None
        if (
            record is None
            or record.size != entry[1]
            or (record.topic, record.queue_id) != (queue.topic, queue.queue_id)
            or record.queue_offset != offset
        ):
            return f"entry {offset} does not point at its message"
    return None
