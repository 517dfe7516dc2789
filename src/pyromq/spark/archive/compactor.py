"""The compact job: merge the small files of each topic and hour into larger ones.

    run_compact(session, "archive", CompactOptions())

Tasks read committed files and write staged ones, which takes long but no lock. Then each directory
is committed separately and quickly (`directory`): the old files must still exist, and the directory
is swapped for one with the new files. An archive job may run at the same time; the files that it
adds stay as they are.

Messages of a queue keep their order: files are merged in the order of their names, which is the
order of their commits.

Runs in the driver, on the main thread; `CompactTask` runs in the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq

from pyromq.spark.archive.defaults import AUTO, TARGET_BYTES
from pyromq.spark.archive.directory import (
    ArchiveDirectory,
    ArchiveError,
    Compaction,
    DataFile,
    StagedFile,
    data_directory,
)
from pyromq.spark.archive.durable_files import CannotExchangeError
from pyromq.spark.archive.files import FileSettings, ParquetFiles
from pyromq.spark.archive.manifest import COMPACT
from pyromq.spark.runtime.fan_out import fan_out, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Each group becomes one file, however large its decoded messages are.
_UNLIMITED_BYTES: Final = 1 << 62
#: Groups per Spark job and core; a kill loses this much work.
_GROUPS_PER_CORE: Final = 4


@dataclass(frozen=True)
class CompactOptions:
    """The files to merge, and how."""

    #: Files of at least half this size stay as they are.
    target_bytes: int = TARGET_BYTES
    #: None means all.
    topics: frozenset[str] | None = None
    #: Only hours before this one, as in directory names ("2026-11-16-05").
    before: str | None = None
    compression: str = AUTO
    #: If directories cannot be swapped, replace file by file; readers may miss messages meanwhile.
    allow_gaps: bool = False


class FileGroup(NamedTuple):
    """Files of one directory to merge into one."""

    topic: str
    hour: str
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """Their total size."""
        return sum(file.bytes for file in self.files)


@dataclass
class Compacted:
    """The progress of a run."""

    groups: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def run_compact(
    session: SparkSession,
    path: str | Path,
    options: CompactOptions,
    *,
    on_progress: Callable[[Compacted], None] | None = None,
) -> Compacted:
    """Merge the small files that exist now. Raises ArchiveError and TaskFailedError."""
    directory = ArchiveDirectory(path)
    directory.need()
    compacted = Compacted()
    with directory.working(COMPACT):
        swap = _can_swap(directory, options.allow_gaps)
        groups = plan_groups(directory.files(), options)
        step = parallelism(session) * _GROUPS_PER_CORE
        for first in range(0, len(groups), step):
            staging = directory.new_staging(COMPACT)
            some = groups[first : first + step]
            written = fan_out(session, CompactTask(str(staging), options.compression), some)
            for group, staged in zip(some, written, strict=True):
                _commit(directory, group, staged, swap)
                _count(compacted, group, staged)
                if on_progress is not None:
                    on_progress(compacted)
            directory.remove_staging(staging)
    return compacted


def plan_archive_groups(path: str | Path, options: CompactOptions) -> list[FileGroup]:
    """Return the groups that `run_compact` would merge now. Raises ArchiveError."""
    return plan_groups(ArchiveDirectory(path).files(), options)


def plan_groups(files: Sequence[DataFile], options: CompactOptions) -> list[FileGroup]:
    """Group consecutive small files up to the target size."""
    groups = []
    for (topic, hour), found in groupby(files, lambda file: (file.topic, file.hour)):
        if options.topics is not None and topic not in options.topics:
            continue
        if options.before is not None and hour >= options.before:
            continue
        # Do not merge across a large file: queues stay in order.
        current: list[DataFile] = []
        for file in found:
            large = 2 * file.bytes >= options.target_bytes
            full = sum(each.bytes for each in current) + file.bytes > options.target_bytes
            if large or full:
                groups.append(FileGroup(topic, hour, tuple(current)))
                current = []
            if not large:
                current.append(file)
        groups.append(FileGroup(topic, hour, tuple(current)))
    return [group for group in groups if len(group.files) > 1]


@dataclass(frozen=True)
class CompactTask:
    """The work of each task: merge the files of a group into one."""

    staging: str
    compression: str

    def __call__(self, group: FileGroup) -> list[StagedFile]:
        """Merge the files of a group."""
        settings = FileSettings(compression=self.compression, file_bytes=_UNLIMITED_BYTES)
        merged = ParquetFiles(Path(self.staging), settings)
        rows = 0
        for file in group.files:
            with pq.ParquetFile(file.path) as opened:
                rows += opened.metadata.num_rows
                for number in range(opened.num_row_groups):
                    merged.add_table(group.topic, group.hour, opened.read_row_group(number))
        merged.close()
        if sum(file.rows for file in merged.staged) != rows:
            raise ArchiveError(
                f"{group.topic}, hour {group.hour}: the merged file does not have all {rows} "
                "messages; nothing is replaced"
            )
        return merged.staged


def _can_swap(directory: ArchiveDirectory, allow_gaps: bool) -> bool:
    try:
        directory.check_swap()
    except CannotExchangeError as error:
        if allow_gaps:
            return False
        raise ArchiveError(
            f"the filesystem of {directory.path} cannot swap two directories atomically "
            f"({error.strerror}), so readers may briefly miss messages. If that does no harm, use "
            "--allow-gaps"
        ) from error
    return True


def _commit(
    directory: ArchiveDirectory, group: FileGroup, staged: Sequence[StagedFile], swap: bool
) -> None:
    directory.commit_compaction(
        Compaction(
            data_directory(group.topic, group.hour),
            tuple(staged),
            tuple(file.path.name for file in group.files),
        ),
        swap=swap,
    )


def _count(compacted: Compacted, group: FileGroup, staged: Sequence[StagedFile]) -> None:
    compacted.groups += 1
    compacted.files_before += len(group.files)
    compacted.files_after += len(staged)
    compacted.bytes_before += group.bytes
    compacted.bytes_after += sum(file.bytes for file in staged)
