"""The archive job: write new messages of topics to Parquet files and commit them, in rounds.

    run_archive(session, BrokerSource(settings), "archive", ArchiveOptions(Topics(("Orders",))))

A round finds the ends of the queues, has tasks write new messages to staged files (decoded and
written by pyarrow, without passing through the JVM), and commits: files and positions change
atomically (`directory`). The directory is the only state. A driver, executor or Python worker may
be killed at any instant: the next run applies a decided commit, and writes everything else again
under other names.

Runs in the driver, on the main thread; `ArchiveTask` runs in the tasks.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyromq.spark.archive import defaults
from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError, StagedFile
from pyromq.spark.archive.files import FileSettings, ParquetFiles, archive_ranges
from pyromq.spark.archive.manifest import ARCHIVE, Manifest
from pyromq.spark.archive.plan import CommitPlan, plan_commit, plan_tasks
from pyromq.spark.options import Edge, Time, TopicPattern, Topics
from pyromq.spark.origins.opening import Source
from pyromq.spark.origins.origin import Bounds, LostRecords, Origin, OriginError, Queue, QueueRange
from pyromq.spark.reading.positions import TOPIC_OPTION_ADVICE, DataLossError, find_queues
from pyromq.spark.runtime.fan_out import TaskFailedError, fan_out, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Everything that a caller of `run_archive` needs.
__all__ = [
    "ArchiveDirectory",
    "ArchiveOptions",
    "ArchiveTask",
    "Archived",
    "CommitPlan",
    "Edge",
    "FileSettings",
    "TaskResult",
    "Time",
    "TopicPattern",
    "Topics",
    "check_topics",
    "plan_archive",
    "run_archive",
]

logger = logging.getLogger(__name__)

#: Several short tasks per core finish at about the same time; one long task each does not.
_TASKS_PER_CORE: Final = 2
#: Cap on the backoff after failed rounds, in seconds, unless the interval is longer.
_MAX_BACKOFF_SECONDS: Final = 60.0
#: Losses that an error message names.
_MAX_NAMED_LOSSES: Final = 5


@dataclass(frozen=True)
class ArchiveOptions:
    """The topics to archive, where to start, and how to write them."""

    wanted: Topics | TopicPattern
    #: Where to start with topics that are not in the archive yet; None is the earliest message.
    starting: Edge | Time | None = None
    fail_on_data_loss: bool = True
    #: Per commit; a kill loses this much work. It does not affect memory.
    max_records: int = defaults.MAX_RECORDS
    #: Per commit; None derives it from Spark's cores.
    tasks: int | None = None
    #: None keeps the archive's settings, or uses the defaults.
    files: FileSettings | None = None


@dataclass
class Archived:
    """The progress of a run."""

    commits: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    lost: int = 0
    #: Messages that exist and are not archived yet.
    left: int = 0

    def count(self, manifest: Manifest, left: int) -> None:
        """Count a commit."""
        self.commits += 1
        self.messages += manifest.rows
        self.files += len(manifest.added)
        self.bytes += sum(added.bytes for added in manifest.added)
        self.lost += sum(lost.end - lost.start for lost in manifest.lost)
        self.left = left


def run_archive(
    session: SparkSession,
    source: Source,
    path: str | Path,
    options: ArchiveOptions,
    *,
    interval: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable[[Archived], None] | None = None,
) -> Archived:
    """Archive all messages up to now; with an `interval` in seconds, continue until `stop` is set.

    Raises ArchiveError, OriginError, DataLossError, PositionError and TaskFailedError. With an
    interval, rounds that fail because of brokers or tasks are logged and retried.
    """
    directory = ArchiveDirectory(path)
    if not directory.exists:
        try:
            check_topics(source, options)
        except OriginError:
            if interval is None:
                raise  # otherwise wait for the brokers
    directory.create()
    with directory.working(ARCHIVE):
        job = _Archiver(session, source, directory, options, on_progress)
        if interval is None:
            job.run_once()
        else:
            job.run_until_stopped(interval, stop or threading.Event())
    return job.archived


def check_topics(source: Source, options: ArchiveOptions) -> None:
    """Raise PositionError for a topic that does not exist. Changes nothing."""
    with closing(source.open()) as origin:
        _find_bounds(origin, options)


def plan_archive(source: Source, path: str | Path, options: ArchiveOptions) -> CommitPlan:
    """Return what a run would archive now, as a single commit. Changes nothing."""
    with closing(source.open()) as origin:
        positions = ArchiveDirectory(path).peek().positions
        return _plan(origin, options, positions, None, sys.maxsize)


class _Archiver:
    """One run."""

    def __init__(
        self,
        session: SparkSession,
        source: Source,
        directory: ArchiveDirectory,
        options: ArchiveOptions,
        on_progress: Callable[[Archived], None] | None,
    ) -> None:
        self.archived = Archived()
        self._session = session
        self._source = source
        self._directory = directory
        self._options = options
        self._on_progress = on_progress or (lambda _: None)
        self._tasks = options.tasks or parallelism(session) * _TASKS_PER_CORE
        self._files = _file_settings(directory, options.files)

    def run_once(self) -> None:
        """Archive up to the current ends of the queues."""
        with closing(self._source.open()) as origin:
            _, bounds = _find_bounds(origin, self._options)
            ends = {queue: each.end for queue, each in bounds.items()}
            while self._commit(origin, ends):
                pass

    def run_until_stopped(self, interval: float, stop: threading.Event) -> None:
        """Archive new messages in rounds."""
        failures = 0
        while not stop.is_set():
            try:
                with closing(self._source.open()) as origin:
                    while not stop.is_set():
                        more = self._commit(origin, None)
                        failures = 0
                        if not more:
                            stop.wait(interval)
            except (OriginError, TaskFailedError) as error:
                failures += 1
                delay = min(max(interval, _MAX_BACKOFF_SECONDS), 2.0 ** min(failures, 10))
                logger.warning("archive round failed, retrying in %.0f s: %s", delay, error)
                stop.wait(delay)

    def _commit(self, origin: Origin, ends: Mapping[Queue, int] | None) -> bool:
        """Run one round; return whether more messages are left."""
        options = self._options
        last = self._directory.state()
        plan = _plan(origin, options, last.positions, ends, options.max_records)
        self._check_losses([*plan.resets.values(), *plan.lost])
        if not plan.advances:
            self._report(0)
            return False
        self._report(plan.left + plan.records)
        # Kept on failure: a pending commit may need it. The next round removes it.
        staging = self._directory.new_staging(ARCHIVE)
        written = fan_out(
            self._session,
            ArchiveTask(self._source, str(staging), self._files),
            list(enumerate(plan_tasks(plan.ranges, self._tasks))),
        )
        staged = [file for result in written for file in result.staged]
        lost = [each for result in written for each in result.lost]
        self._check_losses(lost)
        _check_rows(plan, staged, lost)
        manifest = self._directory.commit_archive(
            staged,
            plan.advances,
            resets=plan.resets,
            lost=plan.lost + lost,
            properties=self._files.include_properties,
        )
        self._directory.remove_staging(staging)
        self.archived.count(manifest, plan.left)
        self._report(plan.left)
        return plan.left > 0

    def _check_losses(self, lost: Sequence[LostRecords | str]) -> None:
        if lost and self._options.fail_on_data_loss:
            named = "; ".join(map(str, lost[:_MAX_NAMED_LOSSES]))
            more = " and more" if len(lost) > _MAX_NAMED_LOSSES else ""
            raise DataLossError(
                f"{named}{more}. Nothing of this commit is archived; to continue without these "
                "messages, use --ignore-data-loss"
            )
        for each in lost:
            logger.warning("data loss: %s", each)

    def _report(self, left: int) -> None:
        self.archived.left = left
        self._on_progress(self.archived)


class TaskResult(NamedTuple):
    """The files that a task has written, and the messages it could not get."""

    staged: list[StagedFile]
    lost: list[LostRecords]


@dataclass(frozen=True)
class ArchiveTask:
    """The work of each task, in an executor's Python: read ranges and write files."""

    source: Source
    staging: str
    files: FileSettings

    def __call__(self, numbered: tuple[int, list[QueueRange]]) -> TaskResult:
        """Write the ranges of a task."""
        number, ranges = numbered
        files = ParquetFiles(Path(self.staging), self.files, f"{number:05}-")
        with closing(self.source.open()) as origin:
            archive_ranges(origin, ranges, files)
        files.close()
        return TaskResult(files.staged, files.lost)


def _plan(
    origin: Origin,
    options: ArchiveOptions,
    positions: Mapping[Queue, int],
    ends: Mapping[Queue, int] | None,
    max_records: int,
) -> CommitPlan:
    queues, bounds = _find_bounds(origin, options)
    for queue in queues:
        if queue not in bounds:
            logger.warning("%s is unavailable: archiving it when its broker is back", queue)
    if ends is not None:
        bounds = {
            queue: each._replace(end=max(each.first, min(each.end, ends[queue])))
            for queue, each in bounds.items()
            if queue in ends
        }
    return plan_commit(positions, bounds, _starts(origin, options, positions, bounds), max_records)


def _find_bounds(
    origin: Origin, options: ArchiveOptions
) -> tuple[list[Queue], dict[Queue, Bounds]]:
    queues = find_queues(origin, options.wanted, advice=TOPIC_OPTION_ADVICE)
    return queues, origin.bounds(queues)


def _starts(
    origin: Origin,
    options: ArchiveOptions,
    positions: Mapping[Queue, int],
    bounds: Mapping[Queue, Bounds],
) -> dict[Queue, int]:
    """Return where queues of new topics start; all others start at their first offset."""
    known = {queue.topic for queue in positions}
    fresh = [queue for queue in bounds if queue.topic not in known]
    if isinstance(options.starting, Time):
        found = origin.offsets_at(dict.fromkeys(fresh, options.starting.milliseconds))
        return {
            queue: min(max(offset, bounds[queue].first), bounds[queue].end)
            for queue, offset in found.items()
        }
    if options.starting is Edge.LATEST:
        return {queue: bounds[queue].end for queue in fresh}
    return {}


def _file_settings(directory: ArchiveDirectory, wanted: FileSettings | None) -> FileSettings:
    last = directory.state()
    if wanted is None:
        return FileSettings(include_properties=last.properties)
    if last.number and last.properties != wanted.include_properties:
        raise ArchiveError(
            f"{directory.path} stores properties as {last.properties!r}: readers cannot mix these "
            f"files with {wanted.include_properties!r}"
        )
    return wanted


def _check_rows(
    plan: CommitPlan, staged: Sequence[StagedFile], lost: Sequence[LostRecords]
) -> None:
    """Raise ArchiveError unless rows and losses add up to the plan."""
    rows = sum(file.rows for file in staged)
    missing = sum(each.end - each.start for each in lost)
    if rows + missing != plan.records:
        raise ArchiveError(
            f"the tasks wrote {rows} messages and lost {missing} of {plan.records}: nothing is "
            "committed"
        )
