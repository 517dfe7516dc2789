"""The archive job: what is new in topics is written by tasks and committed, round by round.

    run_archive(session, BrokerSource(settings), "archive", ArchiveOptions(Topics(("Orders",))))

A round asks how far queues reach, has tasks write what is new to staged files (decoded and
written by pyarrow: messages do not pass through the JVM), and commits: files and positions
become true in the same step (`archive_directory`). The directory is the only state. What is
killed at any instant, driver, executor or Python worker, is started again and goes on: what
was committed is carried out, what was not is written again, under other names.

Runs in the driver, on the main thread; `ArchiveTask` in the tasks.
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

from pyromq.spark.archive.directory import ArchiveDirectory, ArchiveError, StagedFile
from pyromq.spark.archive.durable_files import remove_tree
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

logger = logging.getLogger(__name__)

DEFAULT_MAX_RECORDS: Final = 4_000_000
#: More tasks than cores: the last ones to end wait for each other less.
_TASKS_PER_CORE: Final = 2
#: Seconds until a failed round is tried again, at the most, unless the interval is longer.
_LONGEST_WAIT: Final = 60.0


@dataclass(frozen=True)
class ArchiveOptions:
    """What is archived, from where on, and how."""

    wanted: Topics | TopicPattern
    #: Where topics begin that are not in the archive yet; None is the earliest message.
    starting: Edge | Time | None = None
    fail_on_data_loss: bool = True
    #: Of one commit. Tasks hold no more than a part of it, but it is what a kill costs.
    max_records: int = DEFAULT_MAX_RECORDS
    #: None: by Spark's cores.
    tasks: int | None = None
    #: None: as the archive has them, or by default.
    files: FileSettings | None = None


@dataclass
class Archived:
    """What a run has done so far."""

    commits: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    lost: int = 0
    #: Messages that are there and not archived yet.
    left: int = 0

    def count(self, manifest: Manifest, left: int) -> None:
        """Add a commit."""
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
    """Archive what there is now; with an `interval` in seconds, go on until `stop` is set.

    Raises ArchiveError, OriginError, DataLossError, PositionError and TaskFailedError. In a
    run that goes on, brokers that are away and tasks that failed are tried again, and logged.
    """
    directory = ArchiveDirectory(path)
    if not directory.exists:
        try:
            check_topics(source, options)
        except OriginError:
            if interval is None:
                raise  # else its brokers are waited for
    directory.create()
    with directory.working(ARCHIVE):
        job = _Archiver(session, source, directory, options, on_progress)
        if interval is None:
            job.run_once()
        else:
            job.run_on(interval, stop or threading.Event())
    return job.archived


def check_topics(source: Source, options: ArchiveOptions) -> None:
    """Raise PositionError for a topic that is not there, and change nothing."""
    with closing(source.open()) as origin:
        _look(origin, options)


def plan_archive(source: Source, path: str | Path, options: ArchiveOptions) -> CommitPlan:
    """What a run would archive now, in one go; nothing is changed."""
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
        """Archive up to where queues reach now."""
        with closing(self._source.open()) as origin:
            _, bounds = _look(origin, self._options)
            ends = {queue: each.end for queue, each in bounds.items()}
            while self._commit(origin, ends):
                pass

    def run_on(self, interval: float, stop: threading.Event) -> None:
        """Archive what is new, again and again."""
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
                logger.warning("nothing is archived now, and tried again: %s", error)
                stop.wait(min(max(interval, _LONGEST_WAIT), 2.0 ** min(failures, 10)))

    def _commit(self, origin: Origin, ends: Mapping[Queue, int] | None) -> bool:
        """One round; returns whether more is left."""
        options = self._options
        last = self._directory.state()
        plan = _plan(origin, options, last.positions, ends, options.max_records)
        self._judge([*plan.begun_anew.values(), *plan.lost])
        if not plan.advances:
            self._report(0)
            return False
        self._report(plan.left + plan.records)
        # Left where it is when something fails: a commit may need it, the next round clears it.
        staging = self._directory.new_staging(ARCHIVE)
        written = fan_out(
            self._session,
            ArchiveTask(self._source, str(staging), self._files),
            list(enumerate(plan_tasks(plan.ranges, self._tasks))),
        )
        staged = [file for result in written for file in result.staged]
        lost = [each for result in written for each in result.lost]
        self._judge(lost)
        _check_rows(plan, staged, lost)
        manifest = self._directory.commit_archive(
            staged,
            plan.advances,
            begun_anew=plan.begun_anew,
            lost=plan.lost + lost,
            properties=self._files.include_properties,
        )
        remove_tree(staging)
        self.archived.count(manifest, plan.left)
        self._report(plan.left)
        return plan.left > 0

    def _judge(self, lost: Sequence[LostRecords | str]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{'; '.join(map(str, lost[:5]))}{' and more' if len(lost) > 5 else ''}. Nothing "
                "of this commit is archived; to go on without these messages, ignore data loss"
            )
        for each in lost:
            logger.warning("data loss: %s", each)

    def _report(self, left: int) -> None:
        self.archived.left = left
        self._on_progress(self.archived)


class TaskResult(NamedTuple):
    """What a task has written, and what it could not have."""

    staged: list[StagedFile]
    lost: list[LostRecords]


@dataclass(frozen=True)
class ArchiveTask:
    """What each task does: reads its ranges and writes files, in an executor's Python."""

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
    queues, bounds = _look(origin, options)
    for queue in queues:
        if queue not in bounds:
            logger.warning(
                "%s cannot be seen now: its messages are archived when it is back", queue
            )
    if ends is not None:
        bounds = {
            queue: each._replace(end=max(each.first, min(each.end, ends[queue])))
            for queue, each in bounds.items()
            if queue in ends
        }
    return plan_commit(positions, bounds, _starts(origin, options, positions, bounds), max_records)


def _look(origin: Origin, options: ArchiveOptions) -> tuple[list[Queue], dict[Queue, Bounds]]:
    queues = find_queues(origin, options.wanted, advice=TOPIC_OPTION_ADVICE)
    return queues, origin.bounds(queues)


def _starts(
    origin: Origin,
    options: ArchiveOptions,
    positions: Mapping[Queue, int],
    bounds: Mapping[Queue, Bounds],
) -> dict[Queue, int]:
    """Where queues of new topics begin; new queues of known topics begin at their first offset."""
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
            f"{directory.path} has properties as {last.properties!r}: files with "
            f"{wanted.include_properties!r} beside them could not be read together"
        )
    return wanted


def _check_rows(
    plan: CommitPlan, staged: Sequence[StagedFile], lost: Sequence[LostRecords]
) -> None:
    """Nothing is committed that does not add up."""
    rows = sum(file.rows for file in staged)
    missing = sum(each.end - each.start for each in lost)
    if rows + missing != plan.records:
        raise ArchiveError(
            f"{plan.records} messages were to be written, {rows} were and {missing} are lost: "
            "nothing is committed"
        )
