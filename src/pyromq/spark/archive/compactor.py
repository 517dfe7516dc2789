"""The compact job: small files of a topic and an hour become fewer, larger ones.

    run_compact(session, "archive", CompactOptions())

Tasks read committed files and write staged ones, which takes its time and no lock; then each
directory is committed on its own, in a moment (`archive_directory`): the old files must
still be there, the directory is swapped for one with the new files. An archive may be
running: it adds files meanwhile, which stay as they are.

Messages of a queue keep their order: files are joined in the order of their names, that is
of their commits.

Runs in the driver, on the main thread; `CompactTask` in the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq

from pyromq.spark.archive.directory import (
    ArchiveDirectory,
    ArchiveError,
    Compaction,
    DataFile,
    StagedFile,
    data_directory,
)
from pyromq.spark.archive.durable_files import CannotExchangeError, remove_tree
from pyromq.spark.archive.files import AUTO, FileSettings, ParquetFiles
from pyromq.spark.archive.manifest import COMPACT
from pyromq.spark.runtime.fan_out import fan_out, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
DEFAULT_TARGET_BYTES: Final = 256 * _MIB
#: Decoded messages are larger than their file; one compacted file is made of each group.
_NO_LIMIT: Final = 1 << 62
#: Groups of one Spark job for each of its cores: what a kill costs.
_GROUPS_PER_CORE: Final = 4


@dataclass(frozen=True)
class CompactOptions:
    """Which files, and how large."""

    #: Files of half of it and more stay as they are.
    target_bytes: int = DEFAULT_TARGET_BYTES
    #: None: all.
    topics: frozenset[str] | None = None
    #: Hours before this one only, as directories are named ("2026-11-16-05").
    before: str | None = None
    compression: str = AUTO
    #: Where directories cannot be swapped: replace file by file, readers see a part meanwhile.
    allow_gaps: bool = False


class FileGroup(NamedTuple):
    """Files of one directory that become one."""

    topic: str
    hour: str
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """How large they are."""
        return sum(file.bytes for file in self.files)


@dataclass
class Compacted:
    """What a run has done so far."""

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
    """Compact what is there now. Raises ArchiveError and TaskFailedError."""
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
            remove_tree(staging)
    return compacted


def plan_groups(files: Sequence[DataFile], options: CompactOptions) -> list[FileGroup]:
    """Which files become one: small ones that follow each other, up to the target together."""
    groups = []
    for (topic, hour), found in groupby(files, lambda file: (file.topic, file.hour)):
        if options.topics is not None and topic not in options.topics:
            continue
        if options.before is not None and hour >= options.before:
            continue
        # A large file between two small ones keeps them apart: queues stay in order.
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
    """What each task does: writes one file that has the messages of a group's files."""

    staging: str
    compression: str

    def __call__(self, group: FileGroup) -> list[StagedFile]:
        """Join the files of a group."""
        settings = FileSettings(compression=self.compression, file_bytes=_NO_LIMIT)
        joined = ParquetFiles(Path(self.staging), settings)
        rows = 0
        for file in group.files:
            with pq.ParquetFile(file.path) as opened:
                rows += opened.metadata.num_rows
                for number in range(opened.num_row_groups):
                    joined.add_table(group.topic, group.hour, opened.read_row_group(number))
        joined.close()
        if sum(file.rows for file in joined.staged) != rows:
            raise ArchiveError(
                f"{rows} messages of {group.topic}, hour {group.hour}, were read, and not as many "
                "written: nothing is replaced"
            )
        return joined.staged


def _can_swap(directory: ArchiveDirectory, allow_gaps: bool) -> bool:
    try:
        directory.check_swap()
    except CannotExchangeError as error:
        if allow_gaps:
            return False
        raise ArchiveError(
            f"the filesystem of {directory.path} cannot swap two directories in one step "
            f"({error.strerror}): readers would see a directory without some of its files for a "
            "moment. Where that does no harm, allow gaps"
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
