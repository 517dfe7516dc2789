"""The directory of an archive: a data file appears in it if and only if it is committed.

    archive/topic=Orders/hour=2026-11-16-05/0000000012-00000.parquet     committed, complete
    archive/topic=Orders/hour=2026-11-16-05/0000000007-00000-c0000000011-00000.parquet
                                                 files from commit 7 on, merged by commit 11
    archive/_pyromq/commits/0000000012.json                    the manifest of a commit
    archive/_pyromq/commits/0000000013.pending                 decided, not applied yet
    archive/_pyromq/staging/archive-…/00000-….staged           being written by tasks
    archive/_pyromq/swap/0000000013/                           a directory about to be swapped in
    archive/_pyromq/{archive,compact,commit}.lock              held by the process that works here

Spark and pyarrow ignore names that start with `_`, and the names of staged files do not end in
`.parquet`. A commit has three steps: write the manifest as pending, move the files into place,
rename the manifest. The first step decides: from then on the commit is only ever applied, never
undone. A process that finds a pending manifest applies it before anything else. Every step is
idempotent.

Invariants
1. A data file in its place belongs to a decided commit, and is complete and fsynced.
2. The positions in the last manifest match the files in their places.
3. At most one process archives and one compacts (locked as long as they run), and one commits
   (locked briefly). The kernel releases the locks of a process that dies.
4. A compaction changes one directory, by exchanging it with a new one atomically: a listing shows
   all old files or all new ones.

Used by the jobs `archive`, `compact` and `replay`, in the driver, on the main thread.
"""

from __future__ import annotations

import fcntl
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pyromq.base.clock import now_ms
from pyromq.spark.archive import durable_files as durable
from pyromq.spark.archive.manifest import ARCHIVE, COMPACT, AddedFile, Manifest, ManifestError
from pyromq.spark.archive.process_lock import LockHeldError, process_lock
from pyromq.spark.columns import RAW
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange
from pyromq.spark.reading.queue_offsets import Offsets

logger = logging.getLogger(__name__)

CONTROL: Final = "_pyromq"
DATA_SUFFIX: Final = ".parquet"
STAGED_SUFFIX: Final = ".staged"
#: Older manifests are removed. Only the last one is needed.
MAX_KEPT_MANIFESTS: Final = 100
_DONE: Final = ".json"
_PENDING: Final = ".pending"
_DIGITS: Final = 10
_INDEX_DIGITS: Final = 5


class ArchiveError(Exception):
    """An archive cannot be used as requested: where, why, what to do."""


class StagedFile(NamedTuple):
    """A data file that a task has written and fsynced, in a staging directory."""

    topic: str
    hour: str
    path: str
    rows: int
    bytes: int


class DataFile(NamedTuple):
    """A committed data file."""

    path: Path
    topic: str
    hour: str
    bytes: int


@dataclass(frozen=True)
class Compaction:
    """New files for one directory, and the names of the files they replace."""

    directory: str
    staged: tuple[StagedFile, ...]
    removed: tuple[str, ...]


class ArchiveDirectory:
    """One archive. The constructor touches nothing; `create` creates the directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._control = self.path / CONTROL
        self._commits = self._control / "commits"
        self._staging = self._control / "staging"
        self._swap = self._control / "swap"

    @property
    def exists(self) -> bool:
        """Whether there is an archive, possibly without a commit."""
        return self._commits.is_dir()

    def create(self) -> None:
        """Create the directory. Raises ArchiveError if it contains other data."""
        if self.exists:
            return
        if self.path.is_dir() and any(self.path.glob("topic=*")):
            raise ArchiveError(
                f"{self.path} has data but no {CONTROL}/commits: it is not an archive, or its "
                "manifests, which record how far each queue is archived, were removed. Use a new "
                "directory"
            )
        for directory in (self._staging, self._swap, self._commits):
            durable.make_directories(directory)

    def need(self) -> None:
        """Raise ArchiveError if there is no archive here."""
        if not self.exists:
            raise ArchiveError(f"{self.path} is not an archive: it has no {CONTROL}/commits")

    # Locks and staging

    @contextmanager
    def working(self, kind: str) -> Iterator[None]:
        """Hold the lock of a kind of job. Raises ArchiveError if another process holds it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(process_lock(self._control / f"{kind}.lock"))
            except LockHeldError as holder:
                raise ArchiveError(
                    f"another process runs `{kind}` in {self.path}: {holder}. Stop it, or wait "
                    "until it ends"
                ) from None
            yield

    def new_staging(self, kind: str) -> Path:
        """Create a directory for tasks to write to, and remove those of earlier runs.

        Hold the lock of this kind. Tasks of a killed driver may still be writing, but to a
        directory of their own, which this removes.
        """
        with self._committing():
            for leftover in self._staging.glob(f"{kind}-*"):
                durable.remove_tree(leftover)
        staging = self._staging / f"{kind}-{uuid.uuid4().hex[:12]}"
        durable.make_directories(staging)
        return staging

    def remove_staging(self, staging: Path) -> None:
        """Remove a staging directory after its commit. A failed job leaves it to the next one."""
        durable.remove_tree(staging)

    # Commits

    def state(self) -> Manifest:
        """Return the last commit, after applying a pending one.

        Number 0 stands for an archive without a commit.
        """
        with self._committing() as last:
            return last

    def peek(self) -> Manifest:
        """Return the last commit, applied or pending, without changing or locking anything."""
        while True:
            found = [*self._manifests(_DONE), *self._manifests(_PENDING)] if self.exists else []
            try:
                return self._read(found[-1]) if found else Manifest(0, ARCHIVE, 0)
            except FileNotFoundError:
                continue  # applied in the meantime, so renamed

    def commit_archive(
        self,
        staged: Sequence[StagedFile],
        ranges: Sequence[QueueRange],
        *,
        resets: Mapping[Queue, str] | None = None,
        lost: Sequence[LostRecords] = (),
        properties: str = RAW,
    ) -> Manifest:
        """Add files. `ranges` has the offsets of each queue that are in the files or lost.

        Raises ArchiveError if a range does not start at its queue's position. Queues in `resets`
        (see `CommitPlan`) may start anywhere.
        """
        with self._committing() as last:
            continued = [each for each in ranges if each.queue not in (resets or {})]
            _check_ranges(self.path, continued, last.positions)
            number = last.number + 1
            manifest = Manifest(
                number,
                ARCHIVE,
                now_ms(),
                properties,
                last.positions | {queue: end for queue, _, end in ranges},
                tuple(ranges),
                tuple(lost),
                self._added(number, staged),
            )
            self._commit(manifest, staged)
            return manifest

    def commit_compaction(self, compaction: Compaction, *, swap: bool = True) -> Manifest:
        """Replace files of one directory.

        Raises ArchiveError if one of the old files no longer exists. Without `swap`, for
        filesystems that cannot exchange directories, the old files are removed first and the new
        ones moved in one by one: a listing in between misses some messages.
        """
        with self._committing() as last:
            directory = self.path / compaction.directory
            for name in compaction.removed:
                if not (directory / name).is_file():
                    raise ArchiveError(
                        f"{directory / name} is gone: another program removed or compacted it"
                    )
            number = last.number + 1
            manifest = Manifest(
                number,
                COMPACT,
                now_ms(),
                last.properties,
                last.positions,
                added=self._joined(number, compaction),
                removed=compaction.removed,
                directory=compaction.directory,
                swapped=swap,
            )
            self._commit(manifest, compaction.staged)
            return manifest

    def files(self) -> list[DataFile]:
        """Return all committed files, ordered by name; wait for a commit in progress."""
        self.need()
        with self._committing():
            found = []
            for path in sorted(self.path.glob(f"topic=*/hour=*/*{DATA_SUFFIX}")):
                topic = unquote(path.parent.parent.name.removeprefix("topic="))
                hour = path.parent.name.removeprefix("hour=")
                found.append(DataFile(path, topic, hour, path.stat().st_size))
            return found

    def check_swap(self) -> None:
        """Raise `durable_files.CannotExchangeError` if directories cannot be swapped here."""
        one, other = self._swap / "probe-1", self._swap / "probe-2"
        try:
            for probe in (one, other):
                probe.mkdir(exist_ok=True)
            durable.exchange(one, other)
        finally:
            for probe in (one, other):
                durable.remove_tree(probe)

    @contextmanager
    def _committing(self) -> Iterator[Manifest]:
        """Hold the commit lock; yield the last commit, after applying a pending one."""
        with (self._control / "commit.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._last()

    def _last(self) -> Manifest:
        pending = self._manifests(_PENDING)
        if pending:
            manifest = self._read(pending[-1])
            logger.warning("applying pending commit %d of %s", manifest.number, self.path)
            self._apply(manifest)
            return manifest
        done = self._manifests(_DONE)
        return self._read(done[-1]) if done else Manifest(0, ARCHIVE, 0)

    def _manifests(self, suffix: str) -> list[Path]:
        return sorted(self._commits.glob(f"[0-9]*{suffix}"))

    def _read(self, path: Path) -> Manifest:
        try:
            return Manifest.decode(path.read_bytes())
        except ManifestError as error:
            raise ArchiveError(f"{path} is not a readable manifest: {error}") from error

    def _added(self, number: int, staged: Sequence[StagedFile]) -> tuple[AddedFile, ...]:
        return tuple(
            AddedFile(
                f"{data_directory(file.topic, file.hour)}/"
                f"{number:0{_DIGITS}}-{index:0{_INDEX_DIGITS}}{DATA_SUFFIX}",
                Path(file.path).relative_to(self.path).as_posix(),
                file.rows,
                file.bytes,
            )
            for index, file in enumerate(staged)
        )

    def _joined(self, number: int, compaction: Compaction) -> tuple[AddedFile, ...]:
        # Named after the first old file, so that names remain in the order of their messages.
        first = compaction.removed[0][: _DIGITS + 1 + _INDEX_DIGITS]
        return tuple(
            added._replace(
                path=f"{compaction.directory}/{first}-c{Path(added.path).stem}{DATA_SUFFIX}"
            )
            for added in self._added(number, compaction.staged)
        )

    def _commit(self, manifest: Manifest, staged: Sequence[StagedFile]) -> None:
        for file in manifest.added:
            if (self.path / file.path).exists():
                raise ArchiveError(
                    f"{self.path / file.path} already exists: manifests were removed from "
                    f"{self._commits}. Use a new directory"
                )
        # Tasks have fsynced the contents; this fsyncs the names.
        for directory in sorted({Path(file.path).parent for file in staged}):
            durable.sync_directory(directory)
        durable.write_file(self._manifest_path(manifest, _PENDING), manifest.encode())
        self._apply(manifest)

    def _apply(self, manifest: Manifest) -> None:
        """Apply a pending manifest, or the rest of it."""
        if manifest.kind == COMPACT and manifest.swapped:
            self._swap_in(manifest)
        else:
            for name in manifest.removed:
                durable.remove(self.path / manifest.directory / name)
            self._move_in(manifest)
        durable.rename(
            self._manifest_path(manifest, _PENDING), self._manifest_path(manifest, _DONE)
        )
        durable.sync_directory(self._commits)
        for old in self._manifests(_DONE)[:-MAX_KEPT_MANIFESTS]:
            durable.remove(old)

    def _move_in(self, manifest: Manifest) -> None:
        directories = {(self.path / file.path).parent for file in manifest.added}
        for directory in sorted(directories):
            durable.make_directories(directory)
        for file in manifest.added:
            staged, place = self.path / file.staged, self.path / file.path
            if staged.exists():
                durable.rename(staged, place)
            elif not place.exists():
                raise self._missing(manifest, file)
        for directory in sorted(directories):
            durable.sync_directory(directory)

    def _swap_in(self, manifest: Manifest) -> None:
        directory = self.path / manifest.directory
        replacement = self._swap / f"{manifest.number:0{_DIGITS}}"
        # New file names contain the commit's number, so they exist only after the swap.
        if not all((self.path / file.path).exists() for file in manifest.added):
            durable.remove_tree(replacement)
            durable.make_directories(replacement)
            kept = {path.name for path in directory.iterdir()}.difference(manifest.removed)
            for name in sorted(kept):
                durable.link(directory / name, replacement / name)
            for file in manifest.added:
                staged = self.path / file.staged
                if not staged.exists():
                    raise self._missing(manifest, file)
                durable.link(staged, replacement / Path(file.path).name)
            durable.sync_directory(replacement)
            durable.exchange(directory, replacement)
        durable.sync_directory(directory.parent)
        durable.remove_tree(replacement)
        for file in manifest.added:
            durable.remove(self.path / file.staged)

    def _missing(self, manifest: Manifest, file: AddedFile) -> ArchiveError:
        return ArchiveError(
            f"cannot apply commit {manifest.number} of {self.path}: another program has removed "
            f"{file.staged}, and {file.path} does not exist"
        )

    def _manifest_path(self, manifest: Manifest, suffix: str) -> Path:
        return self._commits / f"{manifest.number:0{_DIGITS}}{suffix}"


def data_directory(topic: str, hour: str) -> str:
    """Return the directory of a topic and an hour, relative to the archive."""
    return f"topic={quote(topic, safe='')}/hour={hour}"


def _check_ranges(path: Path, ranges: Sequence[QueueRange], last: Offsets) -> None:
    """Raise ArchiveError for a range that does not start at its queue's position."""
    for queue, start, _ in ranges:
        at = last.get(queue, start)
        if start != at:
            raise ArchiveError(
                f"{path}: {queue} is archived up to offset {at}, not {start}: another process "
                "archives here as well, because locks do not work on this filesystem"
            )
