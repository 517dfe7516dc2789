"""Plan the next commit of an archive: the offsets to read, and the tasks that read them.

    plan = plan_commit(positions, bounds, starts, max_records=4_000_000)
    for ranges in plan_tasks(plan.ranges, tasks=8): ...

Pure; called in the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyromq.spark.origins.origin import Bounds, LostRecords, Queue, QueueRange

#: A task with less work costs more to start than it saves.
MIN_TASK_RECORDS: Final = 10_000


class CommitPlan(NamedTuple):
    """The offsets to read and to commit."""

    #: Offsets that tasks read; all of them exist.
    ranges: list[QueueRange]
    #: The offsets, read or lost, by which each queue advances, including new queues.
    advances: list[QueueRange]
    lost: list[LostRecords]
    #: Queues that end below their position and start over, with a description for the user.
    resets: dict[Queue, str]
    #: Records that exist and are left for later commits.
    left: int

    @property
    def records(self) -> int:
        """The number of records to read."""
        return sum(wanted.size for wanted in self.ranges)


def plan_commit(
    positions: Mapping[Queue, int],
    bounds: Mapping[Queue, Bounds],
    starts: Mapping[Queue, int],
    max_records: int,
) -> CommitPlan:
    """Plan the next commit of queues with these bounds.

    `starts` says where queues without a position start, by default at their first offset. If there
    are more than `max_records` to read, each queue gets a proportional share.
    """
    whole: list[QueueRange] = []
    lost: list[LostRecords] = []
    resets: dict[Queue, str] = {}
    origins: dict[Queue, int] = {}
    for queue, (first, end) in sorted(bounds.items()):
        at = positions.get(queue, starts.get(queue, first))
        if at > end:
            resets[queue] = (
                f"{queue} is archived up to offset {at - 1} but now ends at {end - 1}: its topic "
                "was deleted and recreated, or this is another cluster"
            )
            at = first
        origins[queue] = at
        if at < first:
            lost.append(LostRecords(queue, at, first, "they have expired"))
        whole.append(QueueRange(queue, max(at, first), end))
    total = sum(wanted.size for wanted in whole)
    ranges = [_share(wanted, max_records, total) for wanted in whole]
    advances = [
        QueueRange(queue, origins[queue], end)
        for queue, _, end in ranges
        if queue in resets or positions.get(queue) != end
    ]
    return CommitPlan(
        [wanted for wanted in ranges if wanted.size],
        advances,
        lost,
        resets,
        total - sum(wanted.size for wanted in ranges),
    )


def _share(wanted: QueueRange, limit: int, total: int) -> QueueRange:
    if total <= limit or not wanted.size:
        return wanted
    return wanted._replace(end=wanted.start + max(1, wanted.size * limit // total))


def plan_tasks(ranges: Sequence[QueueRange], tasks: int) -> list[list[QueueRange]]:
    """Split ranges among tasks, in order, with the same number of records each.

    Neighbours stay together, so that queues of one topic share files. Little work gets fewer
    tasks.
    """
    total = sum(wanted.size for wanted in ranges)
    count = max(1, min(tasks, total // MIN_TASK_RECORDS))
    dealt: list[list[QueueRange]] = [[]]
    done = 0
    for queue, start, end in ranges:
        at = start
        while at < end:
            room = total * len(dealt) // count - done
            if room <= 0:
                dealt.append([])
                continue
            taken = min(room, end - at)
            dealt[-1].append(QueueRange(queue, at, at + taken))
            at += taken
            done += taken
    return [each for each in dealt if each]
