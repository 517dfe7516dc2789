"""How far a replay has come, in a directory of its own: killed at any instant, it goes on.

    state/replay.json        what is replayed, and how much of it is done
    state/replay.lock        who replays

A replay is a list of units (the hours of an archive; all that is wanted of a cluster), each
cut into parts. A part is sent as a whole and then written down as done: what
is repeated after a kill is one part at most, with the same unique keys as before.

Invariants
1. What is to be replayed is fixed when a replay begins: what comes later is not part of it.
2. A part that is written down as done is stored in the target cluster.
3. A replay goes on with what it was begun with, or not at all.

Used by `replayer`, in the driver.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import orjson

from pyromq.spark.archive import durable_files as durable
from pyromq.spark.origins.origin import Queue, QueueRange

VERSION: Final = 1
_FILE: Final = "replay.json"
_LOCK: Final = "replay.lock"


class ReplayError(Exception):
    """A replay that cannot be done as was asked: why, and what to do."""


@dataclass(frozen=True)
class Progress:
    """Everything that a replay needs to go on."""

    id: str
    #: What it was begun with, by the names of the options.
    settings: Mapping[str, Any]
    #: In milliseconds, by how much times are shifted; None: not known yet.
    shift: int | None
    #: Their names, in order.
    units: Sequence[str]
    #: Which offsets of queues are part of it: those below these. Of an archive.
    ends: Mapping[Queue, int]
    #: How many units are done, and of the next one how many parts.
    units_done: int = 0
    parts_done: int = 0
    #: Of the unit that is under way; None: it is not known yet.
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
        """A replay that has sent nothing."""
        return cls(uuid.uuid4().hex, settings, shift, tuple(units), ends)

    @property
    def unit(self) -> str | None:
        """The unit that is under way, or next; None when everything is done."""
        return self.units[self.units_done] if self.units_done < len(self.units) else None

    def with_shift(self, shift: int) -> Progress:
        """Times are shifted by so much."""
        return replace(self, shift=shift)

    def with_cut(self, cut: Cut) -> Progress:
        """The unit under way is cut like this."""
        return replace(self, cut=cut)

    def part_done(self, rows: int) -> Progress:
        """One more part of the unit under way is stored."""
        assert self.cut is not None
        if self.parts_done + 1 < self.cut.parts:
            return replace(self, parts_done=self.parts_done + 1, rows=self.rows + rows)
        done = replace(self, rows=self.rows + rows)
        return done.unit_done()

    def unit_done(self) -> Progress:
        """The unit under way has nothing more."""
        return replace(self, units_done=self.units_done + 1, parts_done=0, cut=None)

    def encode(self) -> bytes:
        """As JSON."""
        return orjson.dumps(
            {
                "version": VERSION,
                "id": self.id,
                "settings": dict(self.settings),
                "shift": self.shift,
                "units": self.units,
                "ends": [[*queue, end] for queue, end in self.ends.items()],
                "unitsDone": self.units_done,
                "partsDone": self.parts_done,
                "cut": None if self.cut is None else self.cut.to_json(),
                "rows": self.rows,
                "written": time.time_ns() // 1_000_000,
            },
            option=orjson.OPT_INDENT_2,
        )

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """What `encode` made; raises ValueError and the like for anything else."""
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
    """A unit's queues and how they are cut into parts: by offsets, or by times.

    By offsets each part has the same share of every queue, so queues stay side by side.
    """

    ranges: Sequence[QueueRange]
    parts: int
    #: In milliseconds: by times the parts are `slice` long, from `start` on.
    start: int = 0
    slice: int = 0

    @classmethod
    def by_offsets(cls, ranges: Sequence[QueueRange], part_messages: int) -> Self:
        """Parts of so many messages at most, about."""
        total = sum(wanted.size for wanted in ranges)
        return cls(tuple(ranges), max(1, -(-total // part_messages)))

    @classmethod
    def by_times(cls, ranges: Sequence[QueueRange], first: int, last: int, slice_ms: int) -> Self:
        """Parts of so many milliseconds, from the first message's time to the last one's."""
        return cls(tuple(ranges), max(1, (last - first) // slice_ms + 1), first, slice_ms)

    def ranges_of(self, part: int) -> list[QueueRange]:
        """The offsets of a part; by times, all of them."""
        if self.slice:
            return [wanted for wanted in self.ranges if wanted.size]
        parts = [
            QueueRange(
                queue,
                start + (end - start) * part // self.parts,
                start + (end - start) * (part + 1) // self.parts,
            )
            for queue, start, end in self.ranges
        ]
        return [wanted for wanted in parts if wanted.size]

    def times_of(self, part: int) -> tuple[int, int] | None:
        """The times of a part in milliseconds, without the last; None when cut by offsets."""
        if not self.slice:
            return None
        begin = self.start + part * self.slice
        return begin, begin + self.slice

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        ranges = [[*queue, start, end] for queue, start, end in self.ranges]
        return {"ranges": ranges, "parts": self.parts, "start": self.start, "slice": self.slice}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        ranges = tuple(QueueRange(Queue(*each[:3]), *each[3:]) for each in values["ranges"])
        return cls(ranges, values["parts"], values["start"], values["slice"])


class StateDirectory:
    """Where a replay keeps its progress; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one that replays with this state."""
        if self._path is None:
            yield
            return
        durable.make_directories(self._path)
        with (self._path / _LOCK).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise ReplayError(
                    f"another process replays with {self._path}: {file.read().strip()}. Stop it "
                    "first, or take another directory"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield

    def load(self, settings: Mapping[str, Any]) -> Progress | None:
        """The progress that was saved; None for a new replay.

        Raises ReplayError for one that was begun with other settings.
        """
        if self._path is None or not (self._path / _FILE).exists():
            return None
        path = self._path / _FILE
        try:
            progress = Progress.decode(path.read_bytes())
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ReplayError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        # Through JSON once, so that equal settings are equal.
        given = orjson.loads(orjson.dumps(dict(settings)))
        for name in sorted({*given, *progress.settings}):
            before, now = progress.settings.get(name), given.get(name)
            if before != now:
                raise ReplayError(
                    f"{self._path} has a replay that was begun with {name}={before!r}, not "
                    f"{now!r}: go on as it was begun, or take another directory"
                )
        return progress

    def save(self, progress: Progress) -> None:
        """Write progress down, wholly or not at all."""
        if self._path is not None:
            durable.write_whole(self._path / _FILE, progress.encode())
