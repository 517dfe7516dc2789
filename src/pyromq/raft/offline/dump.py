"""Show the contents of a raft node's files: entries, index units, and the small text files.

`RaftFile.open` recognises a file by its place in `dledger-<id>`, or else by its content. The items
are those of `store.offline.dump`, which shows all other files of a store: an entry is an item of
its header, followed by that of its message.

Never writes, and works while the node is writing. Called by `pyromq store dump`, on its own thread.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Self

from pyromq.protocol.java.properties import PropertiesError, parse_properties
from pyromq.protocol.message.record import RecordError, decode_record
from pyromq.raft.format import (
    BLANK_SIZE,
    CHECKPOINT_FILE,
    DATA_DIRECTORY,
    HEADER_SIZE,
    INDEX_DIRECTORY,
    INDEX_UNIT_SIZE,
    TERM_FILE,
    TRUNCATION_FILE,
    blank_room,
    decode_header,
    decode_unit,
    is_blank,
)
from pyromq.raft.offline.files import PREFIX
from pyromq.store.offline.dump import DumpError, Item, end_item, map_content, message_item

_SEGMENT_NAME: Final = re.compile(r"[0-9]{20}")
_TEXT_NAMES: Final = (TERM_FILE, CHECKPOINT_FILE, TRUNCATION_FILE)
_MAX_TEXT: Final = 1 << 16


class RaftFileKind(Enum):
    """The kind of a node's file."""

    RAFT_DATA = "raft entries"
    RAFT_INDEX = "raft index"
    RAFT_TEXT = "raft text file"


@dataclass(slots=True)
class RaftFile:
    """A file of a raft node, mapped read-only."""

    path: Path
    kind: RaftFileKind
    size: int
    #: The position of its first byte in the stream of such files, from its name.
    base: int
    _data: memoryview
    _mapping: mmap.mmap | None

    @classmethod
    def open(cls, path: Path, kind: RaftFileKind | None = None) -> Self | None:
        """Map a file; return None if it is not a raft node's. Raises DumpError."""
        base = int(path.name) if _SEGMENT_NAME.fullmatch(path.name) else 0
        content = map_content(path)
        if content is None:
            return None
        mapping, data = content
        kind = kind or _kind_by_place(path) or _kind_by_content(data, base)
        opened = cls(path, kind or RaftFileKind.RAFT_TEXT, len(data), base, data, mapping)
        if kind is None:
            opened.close()
            return None
        return opened

    def close(self) -> None:
        """Unmap the file; items do not refer to it."""
        self._data.release()
        if self._mapping is not None:
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def items(self, offset: int | None = None) -> Iterator[Item]:
        """Yield the content of the file from `offset` on: a position, or an entry's index."""
        match self.kind:
            case RaftFileKind.RAFT_DATA:
                return self._entries(offset)
            case RaftFileKind.RAFT_INDEX:
                return self._units(offset)
            case RaftFileKind.RAFT_TEXT:
                return self._text()

    def _entries(self, offset: int | None) -> Iterator[Item]:
        position = self._first_entry() if offset is None else offset - self.base
        if not 0 <= position <= self.size:
            raise DumpError(
                f"{self.path} holds positions {self.base} to {self.base + self.size}, not {offset}"
            )
        while position + HEADER_SIZE <= self.size:
            place = self.base + position
            if is_blank(self._data, position):
                room = blank_room(self._data, position)
                yield end_item(place, f"blank of {room} bytes to the end of the file")
                return
            if not any(self._data[position : position + BLANK_SIZE]):
                yield end_item(place, "nothing was written from here on")
                return
            entry = decode_header(self._data, position)
            if entry is None or position + entry.size > self.size:
                yield end_item(place, "not the header of an entry")
                return
            yield {
                "type": "entry",
                "index": entry.index,
                "term": entry.term,
                "pos": entry.position,
                "size": entry.size,
                "posMatches": entry.position == place,
            }
            try:
                record = decode_record(self._data[: position + entry.size], position + HEADER_SIZE)
                yield message_item(record, place + HEADER_SIZE)
            except RecordError as error:
                yield {"type": "invalid record", "physicalOffset": place, "reason": str(error)}
            position += entry.size
        yield end_item(self.base + position, "end of the file")

    def _first_entry(self) -> int:
        """Return where the first entry of the file is: a log may begin after zeros."""
        for start in range(0, self.size, _MAX_TEXT):
            piece = bytes(self._data[start : start + _MAX_TEXT])
            zeros = len(piece) - len(piece.lstrip(b"\0"))
            if zeros < len(piece):
                at = start + zeros
                is_end = at + BLANK_SIZE <= self.size and is_blank(self._data, at)
                return at if is_end else max(0, at - 3)
        return 0

    def _units(self, offset: int | None) -> Iterator[Item]:
        first = self.base // INDEX_UNIT_SIZE
        count = self.size // INDEX_UNIT_SIZE
        start = first if offset is None else offset
        if not first <= start <= first + count:
            raise DumpError(f"{self.path} holds entries {first} to {first + count}, not {start}")
        for index in range(start, first + count):
            at = (index - first) * INDEX_UNIT_SIZE
            content = bytes(self._data[at : at + INDEX_UNIT_SIZE])
            unit = decode_unit(content)
            if unit is None:
                if not any(content) and offset is None and index == start:
                    start += 1  # units of entries before the first one that is stored
                    continue
                reason = "not a unit" if any(content) else "nothing was written from here on"
                yield end_item(index, reason)
                return
            yield {
                "type": "unit",
                "index": unit.index,
                "term": unit.term,
                "pos": unit.position,
                "size": unit.size,
            }
        yield end_item(first + count, "end of the file")

    def _text(self) -> Iterator[Item]:
        try:
            table = parse_properties(bytes(self._data[:_MAX_TEXT]))
        except PropertiesError as error:
            raise DumpError(f"{self.path} is not a text file of a node: {error}") from None
        yield {"type": self.path.name.partition(".")[0], **table}


def _kind_by_place(path: Path) -> RaftFileKind | None:
    folders = path.absolute().parts[:-1]
    if folders[-1].startswith(PREFIX) and path.name.partition(".")[0] in _TEXT_NAMES:
        return RaftFileKind.RAFT_TEXT
    if not _SEGMENT_NAME.fullmatch(path.name) or len(folders) < 2:
        return None
    if folders[-2].startswith(PREFIX):
        if folders[-1] == DATA_DIRECTORY:
            return RaftFileKind.RAFT_DATA
        if folders[-1] == INDEX_DIRECTORY:
            return RaftFileKind.RAFT_INDEX
    return None


def _kind_by_content(data: memoryview, base: int) -> RaftFileKind | None:
    """Recognise entries only: an index unit could be many things."""
    if len(data) < HEADER_SIZE:
        return None
    entry = decode_header(data)
    return RaftFileKind.RAFT_DATA if entry is not None and entry.position == base else None
