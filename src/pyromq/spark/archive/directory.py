"""An archive's directory: data files that are there when they are committed, and only then.

    archive/topic=Orders/hour=2026-11-16-05/0000000012-00000.parquet     committed, whole
    archive/topic=Orders/hour=2026-11-16-05/0000000007-00000-c0000000011-00000.parquet
                                                 of commits from 7 on, joined by commit 11
    archive/_pyromq/commits/0000000012.json                    the manifest of a commit
    archive/_pyromq/commits/0000000013.pending                 decided, not carried out yet
    archive/_pyromq/staging/archive-…/00000-….staged           being written by tasks
    archive/_pyromq/swap/0000000013/                           a directory about to be swapped in
    archive/_pyromq/{archive,compact,commit}.lock              who works here

Spark and pyarrow pass over names that begin with `_`; staged files have no name that ends
in `.parquet`. A commit is three steps: the manifest is written as pending (that decides:
from here on it is only ever carried out, never undone), its files get their places, the
manifest gets its final name. Whoever finds a pending manifest carries it out first. Every
step may be done again.

Invariants
1. A data file that has its place belongs to a decided commit, and is whole and on the disk.
2. The positions of the last manifest and the files in their places say the same.
3. One process at a time archives, one compacts (locks for as long as they run), one commits
   (a lock for a moment). Locks go with their process, however it ends.
4. A compaction changes one directory, by swapping it with a new one in one step: who lists
   it sees all old files or all new ones.

Used by the jobs `archive` and `compact`, in the driver, on the main thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pyromq.spark.archive import durable_files as durable
from pyromq.spark.archive.manifest import ARCHIVE, COMPACT, AddedFile, Manifest, ManifestError
from pyromq.spark.columns import RAW
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange
from pyromq.spark.reading.queue_offsets import Offsets

logger = logging.getLogger(__name__)

CONTROL: Final = "_pyromq"
DATA_SUFFIX: Final = ".parquet"
STAGED_SUFFIX: Final = ".staged"
#: Older manifests are removed: the last one says all that is needed.
KEPT_MANIFESTS: Final = 100
_DONE: Final = ".json"
_PENDING: Final = ".pending"
_DIGITS: Final = 10
_INDEX_DIGITS: Final = 5


class ArchiveError(Exception):
    """An archive that cannot be used as was asked: where, why, what to do."""


class StagedFile(NamedTuple):
    """A data file that a task has written and brought to the disk, in a staging directory."""

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
    """New files for one directory, and the names that they replace."""

    directory: str
    staged: tuple[StagedFile, ...]
    removed: tuple[str, ...]


class ArchiveDirectory:
    """One archive. Making the object touches nothing; `create` makes the directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._control = self.path / CONTROL
        self._commits = self._control / "commits"
        self._staging = self._control / "staging"
        self._swap = self._control / "swap"

    @property
    def exists(self) -> bool:
        """Whether something has been archived here, or begun to be."""
        return self._commits.is_dir()

    def create(self) -> None:
        """Make the directory. Raises ArchiveError for one that is somebody else's."""
        if self.exists:
            return
        if self.path.is_dir() and any(self.path.glob("topic=*")):
            raise ArchiveError(
                f"{self.path} has data but no {CONTROL}/commits: it is no archive of pyromq's, or "
                "that was removed. How far each queue had come stood there: take a new directory"
            )
        for directory in (self._staging, self._swap, self._commits):
            durable.make_directories(directory)

    def need(self) -> None:
        """Raise ArchiveError when there is no archive here."""
        if not self.exists:
            raise ArchiveError(f"{self.path} is no archive: there is no {CONTROL}/commits in it")

    # Who works here

    @contextmanager
    def working(self, kind: str) -> Iterator[None]:
        """Be the only one that does this kind of work, for a `with`. Raises ArchiveError."""
        path = self._control / f"{kind}.lock"
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ArchiveError(
                    f"another process does `{kind}` in {self.path}: {file.read().strip()}. "
                    "Stop it first, or wait for its end"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield

    def new_staging(self, kind: str) -> Path:
        """An empty directory for tasks to write to; what earlier runs left there is removed.

        Only with the lock of this kind: tasks of a driver that was killed may still be
        writing. They write to a directory of their own, which is gone now.
        """
        with self._committing():
            for leftover in self._staging.glob(f"{kind}-*"):
                durable.remove_tree(leftover)
        staging = self._staging / f"{kind}-{uuid.uuid4().hex[:12]}"
        durable.make_directories(staging)
        return staging

    # Commits

    def state(self) -> Manifest:
        """The last commit, with the positions; a pending one is carried out first.

        Number 0 stands for an archive without a commit.
        """
        with self._committing() as last:
            return last

    def peek(self) -> Manifest:
        """The last commit, carried out or only decided; nothing is changed or locked."""
        while True:
            found = [*self._manifests(_DONE), *self._manifests(_PENDING)] if self.exists else []
            try:
                return self._read(found[-1]) if found else Manifest(0, ARCHIVE, 0)
            except FileNotFoundError:
                continue  # it was carried out between the two looks, and has its final name

    def commit_archive(
        self,
        staged: Sequence[StagedFile],
        ranges: Sequence[QueueRange],
        *,
        begun_anew: Collection[Queue] = (),
        lost: Sequence[LostRecords] = (),
        properties: str = RAW,
    ) -> Manifest:
        """Add files. `ranges`, one for each queue, is what they hold and what of it was lost.

        Raises ArchiveError when a range does not begin where its queue's last one ended;
        queues that were `begun_anew` may.
        """
        with self._committing() as last:
            _check_ranges(
                self.path, [each for each in ranges if each.queue not in begun_anew], last.positions
            )
            number = last.number + 1
            manifest = Manifest(
                number,
                ARCHIVE,
                time.time_ns() // 1_000_000,
                properties,
                last.positions | {queue: end for queue, _, end in ranges},
                tuple(ranges),
                tuple(lost),
                self._added(number, staged),
            )
            self._commit(manifest, staged)
            return manifest

    def commit_compaction(self, compaction: Compaction, *, swap: bool = True) -> Manifest:
        """Replace files of one directory by new ones.

        Raises ArchiveError when one of the old files is not there any more. Without `swap`,
        for filesystems that cannot do it, old files go first and new ones come one by one:
        who lists the directory meanwhile sees a part.
        """
        with self._committing() as last:
            directory = self.path / compaction.directory
            for name in compaction.removed:
                if not (directory / name).is_file():
                    raise ArchiveError(
                        f"{directory / name} is gone: something else has compacted or removed it"
                    )
            number = last.number + 1
            manifest = Manifest(
                number,
                COMPACT,
                time.time_ns() // 1_000_000,
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
        """All committed files, in the order of their names; between two commits, not in one."""
        self.need()
        with self._committing():
            found = []
            for path in sorted(self.path.glob(f"topic=*/hour=*/*{DATA_SUFFIX}")):
                topic = unquote(path.parent.parent.name.removeprefix("topic="))
                hour = path.parent.name.removeprefix("hour=")
                found.append(DataFile(path, topic, hour, path.stat().st_size))
            return found

    def check_swap(self) -> None:
        """Raise `durable_files.CannotExchangeError` where directories cannot be swapped."""
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
        """Be the only one that commits; gives the last commit, carried out."""
        with (self._control / "commit.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._last()

    def _last(self) -> Manifest:
        pending = self._manifests(_PENDING)
        if pending:
            manifest = self._read(pending[-1])
            logger.warning("%s: commit %d is carried out now", self.path, manifest.number)
            self._carry_out(manifest)
            return manifest
        done = self._manifests(_DONE)
        return self._read(done[-1]) if done else Manifest(0, ARCHIVE, 0)

    def _manifests(self, suffix: str) -> list[Path]:
        return sorted(self._commits.glob(f"[0-9]*{suffix}"))

    def _read(self, path: Path) -> Manifest:
        try:
            return Manifest.decode(path.read_bytes())
        except ManifestError as error:
            raise ArchiveError(f"{path} is no manifest that can be read: {error}") from error

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
        # Named after the first of the old files: names stay in the order of what they hold.
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
                    f"{self.path / file.path} is there already: manifests were removed from "
                    f"{self._commits}. Take a new directory"
                )
        # Contents were synced by who wrote them, names are synced here.
        for directory in sorted({Path(file.path).parent for file in staged}):
            durable.sync_directory(directory)
        durable.write_whole(self._manifest_path(manifest, _PENDING), manifest.encode())
        self._carry_out(manifest)

    def _carry_out(self, manifest: Manifest) -> None:
        """Do what a pending manifest says, or what is left of it."""
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
        for old in self._manifests(_DONE)[:-KEPT_MANIFESTS]:
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
        # The names of new files have the commit's number: they are there after the swap only.
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
            f"commit {manifest.number} of {self.path} cannot be carried out: neither {file.path} "
            f"nor {file.staged} is there, something has removed it"
        )

    def _manifest_path(self, manifest: Manifest, suffix: str) -> Path:
        return self._commits / f"{manifest.number:0{_DIGITS}}{suffix}"


def data_directory(topic: str, hour: str) -> str:
    """Where the files of a topic and an hour are, below the archive."""
    return f"topic={quote(topic, safe='')}/hour={hour}"


def _check_ranges(path: Path, ranges: Sequence[QueueRange], last: Offsets) -> None:
    """Whether each queue is gone on with where the last commit left it."""
    for queue, start, _ in ranges:
        at = last.get(queue, start)
        if start != at:
            raise ArchiveError(
                f"{path}: {queue} is archived up to offset {at}, not {start}: somebody else "
                "archives here, too. The lock does not work on this filesystem"
            )
