"""The extension of a consume queue: facts about a message for which an entry has no room.

Enabled by enableConsumeQueueExt. Every message with an entry has a unit here: its tags code, its
store time and, if filters are evaluated on arrival (`bit_map_of`), the bit map of the consumers
that want it. The entry then holds the unit's address instead of the tags code. The layout is in
`protocol.message.units`.

Invariants
1. A unit is written, and fsynced, before the entry that points at it.
2. Addresses grow along a queue; `end` is the offset after the last unit.
3. Failing to store a unit, for example on a full disk, is not an error: the entry keeps its tags
   code. If an address has no unit, the tags are unknown and filters accept the message.

Belongs to a `ConsumeQueue`. Owned by the loop's thread; the flush thread calls `sync`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyromq.base.descriptors import ShortageError
from pyromq.base.sizes import KIB
from pyromq.protocol.message.record import RecordError, decode_record, store_timestamp_at
from pyromq.protocol.message.units import (
    CONSUME_QUEUE_ENTRY_SIZE,
    ENTRY_TAGS_CODE,
    EXTENSION_BASE,
    EXTENSION_END,
    EXTENSION_END_SIZE,
    EXTENSION_UNIT,
    EXTENSION_UNIT_SIZE,
    MAX_EXTENSION_ADDRESS,
    MAX_EXTENSION_UNIT,
    Entry,
)
from pyromq.store.log.mapped_file import MappedFile
from pyromq.store.log.open_files import OpenFiles
from pyromq.store.log.segments import Segments
from pyromq.store.results import StoreError

logger = logging.getLogger(__name__)

#: Computes a message's bit map from its topic and properties, or returns None.
BitMapOf = Callable[[str, dict[str, str]], bytes | None]

#: Bytes to reserve at a time: the first step, doubled up to the last.
_MIN_RESERVE: Final = 4 * KIB
_MAX_RESERVE: Final = 256 * KIB
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")


class ExtensionUnit(NamedTuple):
    """The facts about one message."""

    tags_code: int
    store_timestamp: int
    #: Empty when no filter was evaluated.
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Return the unit's size in a file."""
        return EXTENSION_UNIT_SIZE + len(self.bit_map)

    def encode(self) -> bytes:
        """Return the unit's bytes in a file."""
        head = EXTENSION_UNIT.pack(
            self.size, self.tags_code, self.store_timestamp, len(self.bit_map)
        )
        return head + self.bit_map


def is_address(tags_code: int) -> bool:
    """Whether an entry's tags code is really the address of a unit."""
    return tags_code <= MAX_EXTENSION_ADDRESS


def decode_unit(read: Callable[[int, int], bytes], address: int) -> ExtensionUnit | None:
    """Decode the unit at an address, or return None if there is none.

    `read` returns bytes from an offset of the extension on, within one file.
    """
    offset = address + EXTENSION_BASE
    head = read(offset, EXTENSION_UNIT_SIZE)
    if len(head) < EXTENSION_UNIT_SIZE:
        return None
    size, tags_code, store_timestamp, bit_map_size = EXTENSION_UNIT.unpack(head)
    if bit_map_size < 0 or size != EXTENSION_UNIT_SIZE + bit_map_size:
        return None
    bit_map = read(offset + EXTENSION_UNIT_SIZE, bit_map_size) if bit_map_size else b""
    if len(bit_map) < bit_map_size:
        return None
    return ExtensionUnit(tags_code, store_timestamp, bit_map)


def refuse_other_size(directory: Path, segment_size: int) -> None:
    """Raise StoreError if all extensions were written with another segment size."""
    sizes = {path.stat().st_size for path in directory.glob("*/*/*") if path.is_file()}
    sizes.discard(0)
    if len(sizes) == 1 and (size := sizes.pop()) != segment_size:
        raise StoreError(
            f"files in {directory} have {size} bytes, not {segment_size}: set "
            "mappedFileSizeConsumeQueueExt to the size that the store was written with"
        )


class ConsumeQueueExt:
    """The units of one queue."""

    __slots__ = ("_bit_map_of", "_read_record", "_synced", "_topic", "damage", "end", "segments")

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        topic: str,
        queue_id: int,
        read_record: Callable[[int, int], bytes],
        bit_map_of: BitMapOf | None = None,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`read_record` returns bytes of the log, given a physical offset and a size."""
        self.segments = Segments(
            directory / topic / str(queue_id), segment_size, open_files=open_files
        )
        #: Offset of the next unit.
        self.end = 0
        #: A description of damaged files, or None.
        self.damage: str | None = None
        self._topic = topic
        self._read_record = read_record
        self._bit_map_of = bit_map_of
        self._synced = 0

    def take_over(self, entries: bytearray) -> None:
        """Write a unit for each of these entries and replace its tags code by the address.

        The records must be in the log already.
        """
        try:
            for start in range(0, len(entries), CONSUME_QUEUE_ENTRY_SIZE):
                entry = Entry.unpack(entries, start)
                unit = None
                if not entry.is_pre_blank:
                    record = self._read_record(entry.physical_offset, entry.size)
                    unit = self._unit_of(record, entry.tags_code)
                address = self.put(unit) if unit is not None else None
                if address is not None:
                    _LONG.pack_into(entries, start + ENTRY_TAGS_CODE.start, address)
        except ShortageError:
            pass  # `descriptors` has logged it
        except OSError as error:
            logger.warning(
                "consume-queue extension %s not written, entries keep their tags codes: %s",
                self.segments.directory,
                error,
            )

    def put(self, unit: ExtensionUnit) -> int | None:
        """Append a unit and return its address, or None if it is too long.

        Raises OSError if the disk is full.
        """
        size = unit.size
        segment_size = self.segments.segment_size
        if size > min(MAX_EXTENSION_UNIT, segment_size - EXTENSION_END_SIZE):
            logger.warning("unit of %d bytes too long for %s", size, self.segments.directory)
            return None
        file = self.segments.find(self.end) or self._create()
        start = self.end - file.base
        if start + size > segment_size - EXTENSION_END_SIZE:
            file.reserve(start + len(EXTENSION_END))
            file.write(start, EXTENSION_END)
            self.end = file.base + segment_size
            file = self.segments.find(self.end) or self._create()
            start = 0
        if start + size > file.reserved:
            file.reserve(start + max(size, min(max(_MIN_RESERVE, start), _MAX_RESERVE)))
        file.write(start, unit.encode())
        self.end += size
        return file.base + start - EXTENSION_BASE

    def get(self, address: int) -> ExtensionUnit | None:
        """Return the unit at an entry's address, or None."""
        return decode_unit(self._read, address) if is_address(address) else None

    def resolve(self, entries: bytes) -> bytes:
        """Return the entries with addresses replaced by tags codes where these are known."""
        resolved = bytearray(entries)
        for place in range(ENTRY_TAGS_CODE.start, len(resolved), CONSUME_QUEUE_ENTRY_SIZE):
            unit = self.get(_LONG.unpack_from(resolved, place)[0])
            if unit is not None:
                _LONG.pack_into(resolved, place, unit.tags_code)
        return bytes(resolved)

    def recover(self, last_address: int | None) -> None:
        """Find the end, given the last address in the queue's entries."""
        self.damage = None
        self.end = self.segments.end_offset
        unit = self.get(last_address) if last_address is not None else None
        if last_address is not None and unit is not None:
            self.end = last_address + EXTENSION_BASE + unit.size
        else:
            self.end = self._end_of_units()
            if last_address is not None:
                self.damage = f"its extension has no unit at {last_address + EXTENSION_BASE}"
        self._synced = min(self._synced, self.end)

    def truncate(self, last_address: int | None) -> None:
        """Drop all units after the one that the last entry points at."""
        self.recover(last_address)
        file = self.segments.find(self.end)
        if file is not None:
            file.empty_from(self.end - file.base)
        self.segments.drop_after(self.end)

    def take_expired(self, first_address: int) -> list[MappedFile]:
        """Detach and return the files before the unit of the queue's oldest message."""
        expired = []
        offset = first_address + EXTENSION_BASE
        files = self.segments.files
        while len(files) > 1 and files[0].base + files[0].size < offset:
            expired.append(self.segments.take_first())
            files = self.segments.files
        return expired

    def sync(self) -> None:
        """Fsync everything that was written."""
        end = self.end
        for file in list(self.segments.files):
            if file.base + file.size <= self._synced:
                continue
            try:
                file.sync()
            except FileNotFoundError:
                if file in self.segments.files:
                    raise
        self._synced = end

    def delete(self) -> None:
        """Remove the files."""
        self.end = self._synced = 0
        self.damage = None
        self.segments.delete()

    def _unit_of(self, record: bytes, tags_code: int) -> ExtensionUnit | None:
        """Return the unit of a record, or None if the record is malformed."""
        try:
            if self._bit_map_of is None:
                return ExtensionUnit(tags_code, store_timestamp_at(record, 0))
            message = decode_record(record)
        except (RecordError, struct.error) as error:
            logger.warning(
                "malformed record gets no unit in %s: %s", self.segments.directory, error
            )
            return None
        try:
            bit_map = self._bit_map_of(self._topic, message.properties) or b""
        except Exception:
            # Without a bit map the message is filtered when it is pulled.
            logger.exception("filters failed on arrival of a message of topic %s", self._topic)
            bit_map = b""
        return ExtensionUnit(tags_code, message.store_timestamp, bit_map)

    def _create(self) -> MappedFile:
        if not self.segments.files:
            # Left over from a queue that was removed while extensions were disabled.
            for path in self.segments.directory.glob("[0-9]" * 20):
                path.unlink()
        return self.segments.create_next()

    def _read(self, offset: int, size: int) -> bytes:
        file = self.segments.find(offset)
        if file is None or offset + size > self.end:
            return b""
        return file.read(offset - file.base, offset - file.base + size)

    def _end_of_units(self) -> int:
        """Return the offset after the last unit, walking the last file from unit to unit."""
        if not self.segments.files:
            return 0
        file = self.segments.files[-1]
        data = file.read(0, file.size)
        position = 0
        while position + EXTENSION_UNIT_SIZE <= len(data):
            (size,) = _SHORT.unpack_from(data, position)
            if size < EXTENSION_UNIT_SIZE or position + size > len(data):
                break
            position += size
        return file.base + position
