"""Show the contents of store files.

`StoreFile.open` recognises a file by its path in a store (`commitlog/…`,
`consumequeue/<topic>/<queueId>/…`, `consumequeue_ext/<topic>/<queueId>/…`, `index/…`,
`checkpoint`, `config/*.json`), or else by its content. `items` yields the content as plain values
with RocketMQ's names, in the order of the file; `describe` formats one as text.

Never writes, and works while a broker is writing. Any bytes lead to a `DumpError`, or to a last
item of type `end` with the reason. The files of a raft node are shown by `raft.offline.dump`.
Called by `pyromq store dump`, on its own thread.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Self

import orjson

from pyromq.protocol.java.fastjson import BodyError, parse_json
from pyromq.protocol.message.message_id import format_address
from pyromq.protocol.message.record import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    MESSAGE_MAGIC,
    MessageRecord,
    RecordError,
    body_crc,
    decode_record,
)
from pyromq.protocol.message.units import (
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    CONSUME_QUEUE_ENTRY_SIZE,
    EXTENSION_BASE,
    EXTENSION_UNIT,
    EXTENSION_UNIT_SIZE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    MAX_EXTENSION_ADDRESS,
    Entry,
)

#: One record, entry or table of a file: its `type`, and its fields under RocketMQ's names.
Item = dict[str, Any]

#: RocketMQ's default is four entries per slot; the number of slots of most files follows from it.
_ENTRIES_PER_SLOT = 4
_SEGMENT_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")
#: In place of a size, ends the units of an extension file.
_EXTENSION_END = -1
#: Characters of a body that `describe` shows.
_MAX_SHOWN_BODY = 100
#: Bytes of a JSON file, which is read as a whole; far above that of any broker.
_MAX_JSON = 1 << 30


class DumpError(Exception):
    """A file that cannot be shown; the message says which, why, and what to do."""


def map_content(path: Path) -> tuple[mmap.mmap | None, memoryview] | None:
    """Map a file; return the mapping, None if it is empty, and its bytes. Raises DumpError.

    A directory is None.
    """
    try:
        if path.is_dir():
            return None
        with path.open("rb") as file:
            is_empty = not file.seek(0, 2)
            mapping = None if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror}") from error
    return mapping, memoryview(b"" if mapping is None else mapping)


class StoreFileKind(Enum):
    """The kind of a store file."""

    COMMIT_LOG = "commit-log segment"
    CONSUME_QUEUE = "consume-queue segment"
    CONSUME_QUEUE_EXT = "consume-queue extension"
    INDEX = "key index"
    CHECKPOINT = "checkpoint"
    JSON = "JSON table"
    ABORT = "abort mark"


@dataclass(slots=True)
class StoreFile:
    """A store file, mapped read-only."""

    path: Path
    kind: StoreFileKind
    size: int
    #: The offset of a segment's first byte in its log or queue, from its name.
    base: int
    _data: memoryview
    _mapping: mmap.mmap | None

    @classmethod
    def open(cls, path: Path, kind: StoreFileKind | None = None) -> Self:
        """Map a file and detect its kind, unless `kind` is given. Raises DumpError."""
        content = map_content(path)
        if content is None:
            raise DumpError(f"{path} is a directory: name one of the files in it")
        mapping, data = content
        kind = kind or _kind_by_place(path) or _kind_by_content(data)
        base = int(path.name) if _SEGMENT_NAME.fullmatch(path.name) else 0
        if kind is None:
            raise DumpError(f"{path} is not recognised as a store file: name its kind with --kind")
        return cls(path, kind, len(data), base, data, mapping)

    def close(self) -> None:
        """Unmap the file; items do not refer to it."""
        self._data.release()
        if self._mapping is not None:
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def items(self, offset: int | None = None, hash_slots: int | None = None) -> Iterator[Item]:
        """Yield the content of the file from `offset` on.

        `offset` is a physical offset in a log, a queue offset in a queue, an offset in an
        extension, the number of an entry in an index. `hash_slots` is maxHashSlotNum, for an index
        whose settings cannot be guessed.
        """
        match self.kind:
            case StoreFileKind.COMMIT_LOG:
                return self._records(self.base if offset is None else offset)
            case StoreFileKind.CONSUME_QUEUE:
                return self._queue_entries(offset)
            case StoreFileKind.CONSUME_QUEUE_EXT:
                return self._units(self.base if offset is None else offset)
            case StoreFileKind.INDEX:
                return self._index_entries(1 if offset is None else offset, hash_slots)
            case StoreFileKind.CHECKPOINT:
                return self._checkpoint()
            case StoreFileKind.JSON:
                return self._json()
            case StoreFileKind.ABORT:
                return self._abort()

    def _records(self, offset: int) -> Iterator[Item]:
        position = offset - self.base
        if not 0 <= position <= self.size:
            raise DumpError(
                f"{self.path} holds physical offsets {self.base} to {self.base + self.size}, "
                f"not {offset}"
            )
        while position + BLANK_SIZE <= self.size:
            size, magic = BLANK.unpack_from(self._data, position)
            place = self.base + position
            if magic == BLANK_MAGIC:
                yield end_item(place, f"blank record of {size} bytes to the end of the segment")
                return
            if size == magic == 0:
                yield end_item(place, "nothing was written from here on")
                return
            try:
                record = decode_record(self._data, position)
            except RecordError as error:
                yield end_item(place, f"invalid record: {error}")
                return
            yield message_item(record, place)
            position += record.size
        yield end_item(self.base + position, "end of the file")

    def _queue_entries(self, offset: int | None) -> Iterator[Item]:
        first = self.base // CONSUME_QUEUE_ENTRY_SIZE
        count = self.size // CONSUME_QUEUE_ENTRY_SIZE
        start = first if offset is None else offset
        if not first <= start <= first + count:
            raise DumpError(
                f"{self.path} holds queue offsets {first} to {first + count}, not {start}"
            )
        for queue_offset in range(start, first + count):
            position = (queue_offset - first) * CONSUME_QUEUE_ENTRY_SIZE
            entry = Entry.unpack(self._data, position)
            if entry.size <= 0:
                yield end_item(queue_offset, "nothing was written from here on")
                return
            item: Item = {
                "type": "pre-blank entry" if entry.is_pre_blank else "entry",
                "queueOffset": queue_offset,
                "physicalOffset": entry.physical_offset,
                "size": entry.size,
                "tagsCode": entry.tags_code,
            }
            if entry.tags_code <= MAX_EXTENSION_ADDRESS:
                item["extensionOffset"] = entry.tags_code + EXTENSION_BASE
            yield item
        yield end_item(first + count, "end of the file")

    def _units(self, offset: int) -> Iterator[Item]:
        if not self.base <= offset <= self.base + self.size:
            raise DumpError(
                f"{self.path} holds extension offsets {self.base} to {self.base + self.size}, "
                f"not {offset}"
            )
        # Start at the first unit: only the previous unit tells where one starts.
        position = 0
        while position + EXTENSION_UNIT_SIZE <= self.size:
            place = self.base + position
            size, tags_code, store_time, bits = EXTENSION_UNIT.unpack_from(self._data, position)
            if size == _EXTENSION_END:
                break
            if size == 0:
                yield end_item(place, "nothing was written from here on")
                return
            if bits < 0 or size != EXTENSION_UNIT_SIZE + bits or position + size > self.size:
                yield end_item(place, f"invalid unit: size {size}, bit map of {bits} bytes")
                return
            if place >= offset:
                bit_map = self._data[position + EXTENSION_UNIT_SIZE : position + size]
                yield {
                    "type": "unit",
                    "extensionOffset": place,
                    "size": size,
                    "tagsCode": tags_code,
                    "msgStoreTimestamp": store_time,
                    "filterBitMap": bit_map.hex(),
                }
            position += size
        yield end_item(self.base + position, "end of the file")

    def _index_entries(self, first: int, hash_slots: int | None) -> Iterator[Item]:
        if self.size < INDEX_HEADER_SIZE:
            raise DumpError(f"{self.path} has {self.size} bytes, less than an index header")
        header = INDEX_HEADER.unpack_from(self._data, 0)
        begin_time, end_time, begin_offset, end_offset, used_slots, next_entry = header
        slots = self._hash_slots() if hash_slots is None else hash_slots
        entries_start = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE
        room = (self.size - entries_start) // INDEX_ENTRY_SIZE
        if slots <= 0 or room <= 0 or first < 1:
            raise DumpError(
                f"{self.path} has no entries from number {first} on with {slots} slots: numbers "
                "start at 1, and --hash-slots must be the broker's maxHashSlotNum"
            )
        yield {
            "type": "header",
            "beginTimestamp": begin_time,
            "endTimestamp": end_time,
            "beginPhyOffset": begin_offset,
            "endPhyOffset": end_offset,
            "hashSlotCount": used_slots,
            "indexCount": next_entry,
            "maxHashSlotNum": slots,
            "maxIndexNum": room,
        }
        for number in range(first, min(next_entry, room)):
            position = entries_start + number * INDEX_ENTRY_SIZE
            key_hash, physical_offset, seconds, previous = INDEX_ENTRY.unpack_from(
                self._data, position
            )
            yield {
                "type": "entry",
                "number": number,
                "keyHash": key_hash,
                "slot": key_hash % slots,
                "physicalOffset": physical_offset,
                "storeTimestamp": begin_time + seconds * 1000,
                "previous": previous,
            }
        yield end_item(max(first, min(next_entry, room)), "no entry was written from here on")

    def _hash_slots(self) -> int:
        slots, rest = divmod(
            self.size - INDEX_HEADER_SIZE, INDEX_SLOT_SIZE + _ENTRIES_PER_SLOT * INDEX_ENTRY_SIZE
        )
        if rest:
            raise DumpError(
                f"{self.path} does not have the default of four entries per slot: pass the "
                "broker's maxHashSlotNum as --hash-slots"
            )
        return slots

    def _checkpoint(self) -> Iterator[Item]:
        if self.size < CHECKPOINT.size:
            raise DumpError(
                f"{self.path} has {self.size} bytes, less than a checkpoint ({CHECKPOINT.size})"
            )
        names = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
        times = CHECKPOINT.unpack_from(self._data, 0)
        yield {"type": "checkpoint", **dict(zip(names, times, strict=True))}

    def _json(self) -> Iterator[Item]:
        if self.size > _MAX_JSON:
            raise DumpError(f"{self.path} has {self.size} bytes, limit {_MAX_JSON}")
        try:
            value = parse_json(bytes(self._data))
        except BodyError as error:
            raise DumpError(f"{self.path} is not a JSON table: {error}") from None
        yield {"type": "table", "value": value}

    def _abort(self) -> Iterator[Item]:
        yield {
            "type": "abort mark",
            "pid": bytes(self._data[:100]).decode(errors="replace").strip(),
            "meaning": "a broker is running on this store, or its last shutdown was unclean",
        }


def message_item(record: MessageRecord, place: int) -> Item:
    """Return the item of a record at an offset of the log."""
    body, encoding = _text_of(record.body)
    return {
        "type": "message",
        "physicalOffset": place,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": record.message_id,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": format_address(*record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": format_address(*record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "bodyCRCMatches": record.body_crc == body_crc(record.body),
        "physicalOffsetMatches": record.physical_offset == place,
        "properties": record.properties,
        "bodyLength": len(record.body),
        encoding: body,
    }


def describe(item: Item) -> str:
    """Format one item as text: one line, except for tables."""
    match item["type"]:
        case "message":
            return _describe_message(item)
        case "table":
            return orjson.dumps(item["value"], option=orjson.OPT_INDENT_2).decode()
        case "end":
            return f"-- at {item['offset']}: {item['reason']}"
        case kind:
            fields = " ".join(
                f"{name}={_with_time(name, value)}"
                for name, value in item.items()
                if name != "type"
            )
            return f"{kind}: {fields}"


def _describe_message(item: Item) -> str:
    body = str(item.get("body", item.get("bodyHex")))
    shown = body if len(body) <= _MAX_SHOWN_BODY else f"{body[:_MAX_SHOWN_BODY]}…"
    properties = " ".join(f"{name}={value}" for name, value in item["properties"].items())
    problems = [
        problem
        for name, problem in (
            ("bodyCRCMatches", "BODY CRC IS WRONG"),
            ("physicalOffsetMatches", "PHYSICAL OFFSET IS WRONG"),
        )
        if not item[name]
    ]
    return " ".join(
        [
            f"{item['physicalOffset']} +{item['size']}",
            f"{item['topic']}:{item['queueId']} #{item['queueOffset']}",
            format_time(item["storeTimestamp"]),
            f"from {item['bornHost']}",
            f"[{properties!s}]",
            *problems,
            f"{'body' if 'body' in item else 'hex'}({item['bodyLength']}): {shown!r}",
        ]
    )


def _kind_by_place(path: Path) -> StoreFileKind | None:
    folders = path.absolute().parts[:-1]
    if path.name == "checkpoint":
        return StoreFileKind.CHECKPOINT
    if path.name == "abort":
        return StoreFileKind.ABORT
    if path.name.endswith((".json", ".json.bak", ".json.tmp")):
        return StoreFileKind.JSON
    if _SEGMENT_NAME.fullmatch(path.name):
        if folders[-1] == "commitlog":
            return StoreFileKind.COMMIT_LOG
        if len(folders) >= 3 and folders[-3] == "consumequeue":
            return StoreFileKind.CONSUME_QUEUE
        if len(folders) >= 3 and folders[-3] == "consumequeue_ext":
            return StoreFileKind.CONSUME_QUEUE_EXT
    if _INDEX_NAME.fullmatch(path.name) and folders[-1] == "index":
        return StoreFileKind.INDEX
    return None


def _kind_by_content(data: memoryview) -> StoreFileKind | None:
    if len(data) >= BLANK_SIZE and BLANK.unpack_from(data)[1] in (MESSAGE_MAGIC, BLANK_MAGIC):
        return StoreFileKind.COMMIT_LOG
    if bytes(data[:1]) in (b"{", b"["):
        return StoreFileKind.JSON
    if len(data) >= INDEX_HEADER_SIZE and _is_index_header(data):
        return StoreFileKind.INDEX
    if len(data) == CHECKPOINT_FILE_SIZE and not any(data[CHECKPOINT.size :]):
        return StoreFileKind.CHECKPOINT
    if len(data) >= CONSUME_QUEUE_ENTRY_SIZE and len(data) % CONSUME_QUEUE_ENTRY_SIZE == 0:
        return StoreFileKind.CONSUME_QUEUE
    return None


def _is_index_header(data: memoryview) -> bool:
    begin_time, end_time, begin_offset, end_offset, _, next_entry = INDEX_HEADER.unpack_from(data)
    # In a queue segment, these eight-byte fields would straddle entries of twenty bytes.
    return bool(
        0 < begin_time <= end_time < 1 << 43
        and 0 <= begin_offset <= end_offset
        and 1 <= next_entry <= len(data) // INDEX_ENTRY_SIZE
    )


def end_item(offset: int, reason: str) -> Item:
    """Return the last item of a file."""
    return {"type": "end", "offset": offset, "reason": reason}


def _text_of(body: bytes) -> tuple[str, str]:
    """Return a body as text and the name `body`, or as hex digits and the name `bodyHex`."""
    try:
        return body.decode(), "body"
    except UnicodeDecodeError:
        return body.hex(), "bodyHex"


def _with_time(name: str, value: object) -> str:
    if name.endswith("Timestamp") and isinstance(value, int):
        return f"{value} ({format_time(value)})" if value else "0 (never)"
    return str(value)


def format_time(milliseconds: int) -> str:
    """Format a store timestamp in UTC."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
