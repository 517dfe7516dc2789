"""The manifest of a backup: `backup.json`, written last, so that only complete backups have one.

    {
      "format": 1,                        readers refuse other numbers
      "name": "20261117T040000Z",
      "version": "0.1",                   of pyromq
      "started": 1794887000000,           milliseconds since the epoch
      "finished": 1794887004000,
      "source": {"host": "h1", "root": "/var/lib/pyromq", "running": true, "brokerName": "a"},
      "log": {"begin": 0, "end": 81234, "segmentSize": 1073741824},
      "raft": null,                       or {"id": "n0", "term": 7, "begin": 0}
      "settings": {"mappedFileSizeConsumeQueue": "6000000", ...},
      "files": [{"path": "commitlog/00000000000000000000", "size": 81234, "dataEnd": 81234,
                 "sha256": "..."}, ...]
    }

Files of the log are in `commitlog`, entries of a raft node in `entries`, tables in `config`, and
`queues.json` has the end of each consume queue. The last file of the log has only the bytes up to
the log's end; a restore extends it with zeros. `dataEnd` is the position after a file's last byte
that is not zero.

Pure. Used by the other modules of `backup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from pyromq.store.results import StoreError

MANIFEST_NAME: Final = "backup.json"
LOG_DIRECTORY: Final = "commitlog"
ENTRY_DIRECTORY: Final = "entries"
TABLE_DIRECTORY: Final = "config"
QUEUES_NAME: Final = "queues.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of a backup."""

    #: Relative to the backup, with slashes.
    path: str
    size: int
    data_end: int
    sha256: str

    @property
    def directory(self) -> str:
        """The first part of the path, or nothing."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_segment(self) -> bool:
        """Whether the file belongs to the log."""
        return self.directory in (LOG_DIRECTORY, ENTRY_DIRECTORY)

    @property
    def base(self) -> int:
        """The offset of a segment's first byte."""
        return int(self.name)

    def to_json(self) -> dict[str, Any]:
        """Return the fields by their names in the manifest."""
        return {
            "path": self.path,
            "size": self.size,
            "dataEnd": self.data_end,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Check and return what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        path, sha256 = fields["path"], fields["sha256"]
        parts = path.split("/")
        if len(parts) > 2 or not all(parts) or any(part.startswith(".") for part in parts):
            raise ValueError(f"path {path!r}")
        if len(sha256) != 64:
            raise ValueError(f"sha256 {sha256!r}")
        facts = cls(path, int(fields["size"]), int(fields["dataEnd"]), sha256)
        if facts.is_segment and not (len(facts.name) == 20 and facts.name.isdecimal()):
            raise ValueError(f"path {path!r}")
        return facts


@dataclass(frozen=True, slots=True)
class RaftFacts:
    """The node of a raft group that a backup was made of."""

    node_id: str
    term: int
    #: Where the entries begin: after the segments of `commitlog`, if there are any.
    begin: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is known about a backup."""

    name: str
    version: str
    started: int
    finished: int
    source: dict[str, Any]
    log_begin: int
    log_end: int
    segment_size: int
    raft: RaftFacts | None
    settings: dict[str, str]
    files: tuple[FileFacts, ...]

    @property
    def size(self) -> int:
        """The number of bytes in all files."""
        return sum(file.size for file in self.files)

    @property
    def segments(self) -> tuple[FileFacts, ...]:
        """The files of the log, oldest first."""
        return tuple(file for file in self.files if file.is_segment)

    def encode(self) -> bytes:
        """Return the content of `backup.json`."""
        raft = self.raft
        value = {
            "format": _FORMAT,
            "name": self.name,
            "version": self.version,
            "started": self.started,
            "finished": self.finished,
            "source": self.source,
            "log": {
                "begin": self.log_begin,
                "end": self.log_end,
                "segmentSize": self.segment_size,
            },
            "raft": raft and {"id": raft.node_id, "term": raft.term, "begin": raft.begin},
            "settings": self.settings,
            "files": [file.to_json() for file in self.files],
        }
        return orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Parse `backup.json`. Raises StoreError."""
        try:
            value = orjson.loads(content)
            if value["format"] != _FORMAT:
                raise ValueError(f"format {value['format']}, this version reads {_FORMAT}")
            log, raft = value["log"], value["raft"]
            manifest = cls(
                name=str(value["name"]),
                version=str(value["version"]),
                started=int(value["started"]),
                finished=int(value["finished"]),
                source=dict(value["source"]),
                log_begin=int(log["begin"]),
                log_end=int(log["end"]),
                segment_size=int(log["segmentSize"]),
                raft=raft and RaftFacts(str(raft["id"]), int(raft["term"]), int(raft["begin"])),
                settings={str(key): str(text) for key, text in value["settings"].items()},
                files=tuple(FileFacts.from_json(each) for each in value["files"]),
            )
            manifest._check_segments()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{MANIFEST_NAME} cannot be read: {error}") from error
        return manifest

    def _check_segments(self) -> None:
        """Raise ValueError unless the segments hold the log from its begin to its end."""
        expected = self.log_begin
        for file in self.segments:
            full = file.base + self.segment_size
            if file.base != expected or file.size != min(full, self.log_end) - file.base:
                raise ValueError(f"segment {file.path} of {file.size} bytes does not fit the log")
            expected = full
        if self.segments and not self.log_end <= expected < self.log_end + self.segment_size:
            raise ValueError(f"the segments end at {expected}, the log at {self.log_end}")
