"""Build the consume queues and key indexes of many stores from their logs, with Spark tasks.

    rebuilt = build_stores(session, [StoreBuild(config, targets, scratch)])

There are two rounds of tasks: the first decodes the parts of all logs, the second assembles queues
and index files (`store.offline.log_parts`). The number of tasks depends on the logs and on Spark,
not on the number of stores: one store is spread over all cores, many stores share them. The driver
only plans and joins. Used by `rebuild` and `verify`, in the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyromq.spark.runtime.fan_out import fan_out, is_connect, parallelism
from pyromq.store.offline.log_parts import (
    PART_SIZE,
    DecodedPart,
    IndexSpan,
    LogPart,
    assemble_index_file,
    assemble_queues,
    decode_part,
    index_spans,
    join_parts,
    plan_parts,
)
from pyromq.store.offline.rebuild import Rebuilt, Targets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyromq.store.config import MessageStoreConfig

#: Receives the name of a step, and how many of its tasks are done, of how many.
Progress = Callable[[str, int, int], None]
_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class StoreBuild:
    """One store: its settings, where to build its files, and a directory for decoded parts."""

    config: MessageStoreConfig
    targets: Targets
    scratch: Path


def build_stores(
    session: SparkSession,
    builds: Sequence[StoreBuild],
    *,
    part_size: int = PART_SIZE,
    progress: Progress | None = None,
) -> list[Rebuilt]:
    """Build the files of all stores in their targets, which exist and are empty."""
    parts = [plan_parts(build.config, part_size) for build in builds]
    decoding = [
        (build.config, part, build.scratch)
        for build, of_store in zip(builds, parts, strict=True)
        for part in of_store
    ]
    with watched(session, progress, "decoding logs", len(decoding)):
        decoded = iter(fan_out(session, _decode, decoding))
    plans: list[_Plan] = []
    for build, of_store in zip(builds, parts, strict=True):
        found = [next(decoded) for _ in of_store]
        end, used = join_parts(build.config, of_store, found, build.scratch)
        begin = of_store[0].start if of_store else 0
        plans.append(_Plan(build, begin, end, tuple(used)))
    groups = max(1, -(-2 * parallelism(session) // max(1, len(builds))))
    # Index files take longest, so they start first.
    tasks: list[_Task] = [
        _IndexTask(number, plan, span)
        for number, plan in enumerate(plans)
        if plan.build.targets.index is not None
        for span in index_spans(plan.build.config, plan.parts, datetime.now())
    ]
    tasks += [
        _QueueTask(number, plan, group, groups)
        for group in range(groups)
        for number, plan in enumerate(plans)
        if plan.build.targets.queues is not None and plan.parts
    ]
    with watched(session, progress, "writing queues and indexes", len(tasks)):
        counted = fan_out(session, _run, tasks)
    return [
        Rebuilt(
            plan.begin,
            plan.end,
            *(sum(counts[at] for store, *counts in counted if store == number) for at in range(3)),
        )
        for number, plan in enumerate(plans)
    ]


@contextmanager
def watched(
    session: SparkSession, progress: Progress | None, step: str, total: int
) -> Iterator[None]:
    """Report how many tasks are done while the `with` block runs; over Connect only the end."""
    if progress is None:
        yield
        return
    progress(step, 0, total)
    ended = threading.Event()
    watcher = None
    if not is_connect(session):
        watcher = threading.Thread(
            target=_watch, args=(session, progress, step, total, ended), daemon=True
        )
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()
    progress(step, total, total)


def _watch(
    session: SparkSession, progress: Progress, step: str, total: int, ended: threading.Event
) -> None:
    tracker = session.sparkContext.statusTracker()
    while not ended.wait(_POLL_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        progress(step, min(done, total), total)


@dataclass(frozen=True, slots=True)
class _Plan:
    build: StoreBuild
    begin: int
    end: int
    parts: tuple[DecodedPart, ...]


@dataclass(frozen=True, slots=True)
class _QueueTask:
    store: int
    plan: _Plan
    group: int
    groups: int

    def run(self) -> tuple[int, int, int, int]:
        """Return the number of the store, and how many queues, entries and keys were written."""
        plan = self.plan
        build = plan.build
        queues, entries = assemble_queues(
            build.config, build.targets, plan.parts, self.group, self.groups, plan.begin
        )
        return self.store, queues, entries, 0


@dataclass(frozen=True, slots=True)
class _IndexTask:
    store: int
    plan: _Plan
    span: IndexSpan

    def run(self) -> tuple[int, int, int, int]:
        """Return the same as `_QueueTask.run`."""
        build = self.plan.build
        keys = assemble_index_file(build.config, build.targets, self.plan.parts, self.span)
        return self.store, 0, 0, keys


_Task = _QueueTask | _IndexTask


def _decode(item: tuple[MessageStoreConfig, LogPart, Path]) -> DecodedPart:
    return decode_part(*item)


def _run(task: _Task) -> tuple[int, int, int, int]:
    return task.run()
