"""The progress of a replay, saved in a directory so that a killed replay can resume.

    state/replay.json        what to replay, and how much of it is done
    state/replay.lock        held by the process that replays

A replay is a list of units (the hours of an archive, or one for a cluster), each divided into
batches. A batch is sent and then recorded as done. A kill therefore repeats at most one batch, with
the same unique keys.

Invariants
1. The messages to replay are determined when a replay starts; later ones are not part of it.
2. A batch that is recorded as done is stored in the target cluster.
3. A replay resumes with the settings it was started with, or not at all.

Used by `replayer`, in the driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from pyromq.base.atomic_file import write_file
from pyromq.base.clock import now_ms
from pyromq.spark.archive.durable_files import make_directories
from pyromq.spark.archive.process_lock import LockHeldError, process_lock
from pyromq.spark.origins.origin import Queue, QueueRange

VERSION: Final = 1
_FILE: Final = "replay.json"
_LOCK: Final = "replay.lock"


class ReplayError(Exception):
    """A replay cannot run as requested: why, and what to do."""


@dataclass(frozen=True)
class Progress:
    """Everything that a replay needs to resume."""

    id: str
    #: The settings it was started with, by the names of the options.
    settings: Mapping[str, Any]
    #: Added to the times of messages, in milliseconds; None until it is known.
    shift: int | None
    #: Names of the units, in order.
    units: Sequence[str]
    #: The replay consists of the offsets of each queue below these.
    ends: Mapping[Queue, int]
    #: How many units are done, and how many batches of the next one.
    units_done: int = 0
    batches_done: int = 0
    #: The batches of the current unit; None until they are known.
    cut: Cut | None = None
    rows: int = 0

    @classmethod
    def begin(
        cls,
        settings: Mapping[str, Any],
        units: Sequence[str],
        ends: Mapping[Queue, int],
        shift: int | None,
    ) -> Self:
        """Return a replay that has sent nothing yet."""
        return cls(uuid.uuid4().hex, settings, shift, tuple(units), ends)

    @property
    def unit(self) -> str | None:
        """The current unit; None when everything is done."""
        return self.units[self.units_done] if self.units_done < len(self.units) else None

    def with_shift(self, shift: int) -> Progress:
        """Return this progress with a known shift."""
        return replace(self, shift=shift)

    def with_cut(self, cut: Cut) -> Progress:
        """Return this progress with the batches of the current unit."""
        return replace(self, cut=cut)

    def batch_done(self, rows: int) -> Progress:
        """Return the progress after one more batch of the current unit."""
        assert self.cut is not None
        if self.batches_done + 1 < self.cut.batches:
            return replace(self, batches_done=self.batches_done + 1, rows=self.rows + rows)
        done = replace(self, rows=self.rows + rows)
        return done.unit_done()

    def unit_done(self) -> Progress:
        """Return the progress after the current unit."""
        return replace(self, units_done=self.units_done + 1, batches_done=0, cut=None)

    def encode(self) -> bytes:
        """Return the progress as JSON."""
        return orjson.dumps(
            {
                "version": VERSION,
                "id": self.id,
                "settings": dict(self.settings),
                "shift": self.shift,
                "units": self.units,
                "ends": [[*queue, end] for queue, end in self.ends.items()],
                "unitsDone": self.units_done,
                "partsDone": self.batches_done,
                "cut": None if self.cut is None else self.cut.to_json(),
                "rows": self.rows,
                "written": now_ms(),
            },
            option=orjson.OPT_INDENT_2,
        )

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Read what `encode` wrote. Raises ValueError, KeyError, TypeError or IndexError."""
        values = orjson.loads(content)
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}: this pyromq reads {VERSION}")
        return cls(
            values["id"],
            values["settings"],
            values["shift"],
            tuple(values["units"]),
            {Queue(*each[:3]): each[3] for each in values["ends"]},
            values["unitsDone"],
            values["partsDone"],
            None if values["cut"] is None else Cut.from_json(values["cut"]),
            values["rows"],
        )


@dataclass(frozen=True)
class Cut:
    """The queues of a unit, and their division into batches: by offsets, or by times.

    By offsets, each batch has the same share of every queue, so that queues advance together.
    """

    ranges: Sequence[QueueRange]
    batches: int
    #: In milliseconds: by times, batches are `slice` long and start at `start`.
    start: int = 0
    slice: int = 0

    @classmethod
    def by_offsets(cls, ranges: Sequence[QueueRange], batch_messages: int) -> Self:
        """Return batches of about `batch_messages` at most."""
        total = sum(wanted.size for wanted in ranges)
        return cls(tuple(ranges), max(1, -(-total // batch_messages)))

    @classmethod
    def by_times(cls, ranges: Sequence[QueueRange], first: int, last: int, slice_ms: int) -> Self:
        """Return batches of `slice_ms` each, from the first message's time to the last one's."""
        return cls(tuple(ranges), max(1, (last - first) // slice_ms + 1), first, slice_ms)

    def ranges_of(self, batch: int) -> list[QueueRange]:
        """Return the offsets of a batch; all of them if divided by times."""
        if self.slice:
            return [wanted for wanted in self.ranges if wanted.size]
        shares = [
            QueueRange(
                queue,
                start + (end - start) * batch // self.batches,
                start + (end - start) * (batch + 1) // self.batches,
            )
            for queue, start, end in self.ranges
        ]
        return [wanted for wanted in shares if wanted.size]

    def times_of(self, batch: int) -> tuple[int, int] | None:
        """Return the times of a batch, excluding the second; None if divided by offsets."""
        if not self.slice:
            return None
        begin = self.start + batch * self.slice
        return begin, begin + self.slice

    def to_json(self) -> dict[str, Any]:
        """Return the cut as JSON values."""
        ranges = [[*queue, start, end] for queue, start, end in self.ranges]
        return {"ranges": ranges, "parts": self.batches, "start": self.start, "slice": self.slice}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        ranges = tuple(QueueRange(Queue(*each[:3]), *each[3:]) for each in values["ranges"])
        return cls(ranges, values["parts"], values["start"], values["slice"])


class StateDirectory:
    """The directory that holds the progress of a replay; with None, nothing is saved."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the directory. Raises ReplayError if another process holds it."""
        if self._path is None:
            yield
            return
        make_directories(self._path)
        with ExitStack() as stack:
            try:
                stack.enter_context(process_lock(self._path / _LOCK))
            except LockHeldError as holder:
                raise ReplayError(
                    f"another process replays with {self._path}: {holder}. Stop it, or use "
                    "another directory"
                ) from None
            yield

    def load(self, settings: Mapping[str, Any]) -> Progress | None:
        """Return the saved progress, or None for a new replay.

        Raises ReplayError if the replay was started with other settings.
        """
        if self._path is None or not (self._path / _FILE).exists():
            return None
        path = self._path / _FILE
        try:
            progress = Progress.decode(path.read_bytes())
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ReplayError(f"cannot read {path}: {type(error).__name__}: {error}") from error
        # Through JSON, so that equal settings compare equal.
        given = orjson.loads(orjson.dumps(dict(settings)))
        for name in sorted({*given, *progress.settings}):
            before, now = progress.settings.get(name), given.get(name)
            if before != now:
                raise ReplayError(
                    f"{self._path} has a replay that was started with {name}={before!r}, not "
                    f"{now!r}: resume it with the same options, or use another directory"
                )
        return progress

    def save(self, progress: Progress) -> None:
        """Save the progress atomically."""
        if self._path is not None:
            write_file(self._path / _FILE, progress.encode())
