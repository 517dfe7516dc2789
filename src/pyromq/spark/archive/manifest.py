"""The manifest of a commit: the files it adds and removes, and the position of each queue.

    {"version": 1, "number": 12, "kind": "archive", "time": 1794813120000,
     "properties": "raw",
     "positions": {"Orders": {"broker-a:0": 42, "broker-a:1": 17}},
     "ranges": [["Orders", "broker-a", 0, 30, 42], ["Orders", "broker-a", 1, 10, 17]],
     "lost": [["Orders", "broker-a", 0, 30, 33, "have expired"]],
     "added": [{"path": "topic=Orders/hour=2026-11-16-05/0000000012-00000.parquet",
                "staged": "_pyromq/staging/archive-…/00000-….staged",
                "rows": 16, "bytes": 4711}],
     "removed": [], "directory": "", "swapped": true}

`positions` lists all queues, so the next commit needs only the last manifest. A manifest of kind
"compact" names the one `directory` that it changes, and the files that it removes from it. No other
module knows the format. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from pyromq.spark.columns import MAP, RAW
from pyromq.spark.origins.origin import LostRecords, Queue, QueueRange
from pyromq.spark.reading.queue_offsets import (
    Offsets,
    OffsetsError,
    offsets_from_dict,
    offsets_to_dict,
)

VERSION: Final = 1
ARCHIVE: Final = "archive"
COMPACT: Final = "compact"


class ManifestError(ValueError):
    """These bytes are not a manifest, or one of an unknown version."""


class AddedFile(NamedTuple):
    """A data file: its final and its staged path, both relative to the archive."""

    path: str
    staged: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """One commit."""

    number: int
    kind: str
    #: Milliseconds since 1970.
    time: int
    #: The form of the column `properties` in all files of the archive.
    properties: str = RAW
    #: The first offset of each queue that is not archived.
    positions: Offsets = field(default_factory=dict)
    ranges: tuple[QueueRange, ...] = ()
    lost: tuple[LostRecords, ...] = ()
    added: tuple[AddedFile, ...] = ()
    #: Names in `directory`.
    removed: tuple[str, ...] = ()
    directory: str = ""
    #: Whether `directory` is replaced atomically, not file by file.
    swapped: bool = True

    @property
    def rows(self) -> int:
        """The number of messages in the added files."""
        return sum(added.rows for added in self.added)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return orjson.dumps(
            {
                "version": VERSION,
                "number": self.number,
                "kind": self.kind,
                "time": self.time,
                "properties": self.properties,
                "positions": offsets_to_dict(self.positions),
                "ranges": [[*queue, start, end] for queue, start, end in self.ranges],
                "lost": [[*queue, start, end, why] for queue, start, end, why in self.lost],
                "added": [added._asdict() for added in self.added],
                "removed": self.removed,
                "directory": self.directory,
                "swapped": self.swapped,
            },
            option=orjson.OPT_INDENT_2,
        )

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Read what `encode` wrote. Raises ManifestError for anything else."""
        try:
            values = orjson.loads(content)
            if values["version"] != VERSION:
                raise ManifestError(
                    f"version {values['version']!r}: this pyromq reads version {VERSION}"
                )
            return cls._of(values)
        except (KeyError, TypeError, ValueError, OffsetsError) as error:
            if isinstance(error, ManifestError):
                raise
            raise ManifestError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Manifest:
        if values["kind"] not in (ARCHIVE, COMPACT) or values["properties"] not in (RAW, MAP):
            raise ManifestError(f"kind {values['kind']!r}, properties {values['properties']!r}")
        added = tuple(
            AddedFile(_inside(file["path"]), _inside(file["staged"]), file["rows"], file["bytes"])
            for file in values["added"]
        )
        return cls(
            int(values["number"]),
            values["kind"],
            int(values["time"]),
            values["properties"],
            offsets_from_dict(values["positions"]),
            tuple(QueueRange(Queue(*each[:3]), *each[3:]) for each in values["ranges"]),
            tuple(LostRecords(Queue(*each[:3]), *each[3:]) for each in values["lost"]),
            added,
            tuple(_inside(name) for name in values["removed"]),
            _inside(values["directory"]),
            bool(values["swapped"]),
        )


def _inside(path: str) -> str:
    """Return a path inside the archive, or raise: commits rename and remove these files."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ManifestError(f"the path {path!r} leaves the archive")
    return path
