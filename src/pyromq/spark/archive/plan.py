"""What the next commit of an archive reads: which offsets of which queues, by which tasks.

    plan = plan_commit(positions, bounds, starts, max_records=4_000_000)
    for ranges in plan_tasks(plan.ranges, tasks=8): ...

Pure; called in the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyromq.spark.origins.origin import Bounds, LostRecords, Queue, QueueRange

#: A task with less to do costs more to start than it saves.
MIN_TASK_RECORDS: Final = 10_000


class CommitPlan(NamedTuple):
    """What to read and to commit."""

    #: What tasks read; only what there is.
    ranges: list[QueueRange]
    #: Of each queue that moves or is new, from where to where: read and lost.
    advances: list[QueueRange]
    lost: list[LostRecords]
    #: Queues that end before their position, and what that means.
    begun_anew: dict[Queue, str]
    #: Records that are there and left for the commits after this one.
    left: int

    @property
    def records(self) -> int:
        """How many records tasks read."""
        return sum(wanted.size for wanted in self.ranges)


def plan_commit(
    positions: Mapping[Queue, int],
    bounds: Mapping[Queue, Bounds],
    starts: Mapping[Queue, int],
    max_records: int,
) -> CommitPlan:
    """The next commit of queues with these bounds; `starts` has those without a position.

    With more than `max_records` to read, each queue gets its share of them.
    """
    whole: list[QueueRange] = []
    lost: list[LostRecords] = []
    begun_anew: dict[Queue, str] = {}
    origins: dict[Queue, int] = {}
    for queue, (first, end) in sorted(bounds.items()):
        at = positions.get(queue, starts.get(queue, first))
        if at > end:
            begun_anew[queue] = (
                f"{queue} is archived up to offset {at - 1} and ends at {end - 1} now: its topic "
                "was deleted and made anew, or it is another cluster's"
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
        if queue in begun_anew or positions.get(queue) != end
    ]
    return CommitPlan(
        [wanted for wanted in ranges if wanted.size],
        advances,
        lost,
        begun_anew,
        total - sum(wanted.size for wanted in ranges),
    )


def _share(wanted: QueueRange, limit: int, total: int) -> QueueRange:
    if total <= limit or not wanted.size:
        return wanted
    return wanted._replace(end=wanted.start + max(1, wanted.size * limit // total))


def plan_tasks(ranges: Sequence[QueueRange], tasks: int) -> list[list[QueueRange]]:
    """Ranges cut and dealt to tasks with the same number of records each, in order.

    Neighbours stay together: queues of one topic share files. There are fewer tasks where
    there is little to do.
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
