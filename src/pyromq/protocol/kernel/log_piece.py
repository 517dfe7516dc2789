# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""A piece of the log: bytes in; its valid records and their consume-queue entries out.

`PieceExaminer.examine` checks consecutive records as `store.recovery.piece` does, up to the first
invalid one, and groups their entries by queue as `store.recovery.dispatch` does. Entries of the
delay topic hold tags codes; the caller replaces them by delivery times. If a topic or tag is not
UTF-8, there are no entries, and the Python code makes them.

Not thread-safe: each walk has its own object. The GIL is released meanwhile.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset
from cython.cimports.pyromq.protocol.kernel.checksum import crc32, fill_crc_tables
from cython.cimports.pyromq.protocol.kernel.raw import (
    bytes_of,
    faults,
    is_at,
    read8,
    read32_signed,
    read64,
    read_word,
    view_of,
    write32,
    write64,
)
from cython.cimports.pyromq.protocol.kernel.records import fill_layout, read_record, record_size
from cython.cimports.pyromq.protocol.kernel.text import NONE, is_utf8, tags_code_of

from pyromq.protocol.message import properties as names
from pyromq.protocol.message import sysflag, units
from pyromq.protocol.message.crc import CRC_MASK as _CRC_MASK

fill_crc_tables()

fill_layout(cython.address(LAYOUT))
CRC_MASK = _CRC_MASK
TRANSACTION_MASK = sysflag.TRANSACTION_MASK
TRANSACTION_NOT = sysflag.TRANSACTION_NOT
TRANSACTION_COMMIT = sysflag.TRANSACTION_COMMIT
ENTRY_SIZE = units.CONSUME_QUEUE_ENTRY_SIZE

# The owner of the bytes of TAGS.
_tags = names.TAGS_START.encode()
TAGS = view_of(_tags)

#: Records and queues of one call: a piece of 4 MiB has no more than 46,091 records.
MAX_RECORDS = 1 << 16
MAX_QUEUES = 1 << 12
#: A power of two.
SLOTS_SIZE = 4 * MAX_QUEUES
#: A disk writes a sector completely or not at all.
SECTOR_SIZE = 512


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class PieceExaminer:
    """Examines one piece after another; holds the scratch buffers."""

    def __init__(self) -> None:
        size: cython.size_t = cython.cast(cython.size_t, MAX_RECORDS)
        self.starts = cython.cast(cython.pointer(i64), malloc(size * cython.sizeof(i64)))
        self.rows = cython.cast(cython.pointer(Row), malloc(size * cython.sizeof(Row)))
        self.queues = cython.cast(cython.pointer(Queue), malloc(MAX_QUEUES * cython.sizeof(Queue)))
        self.slots = cython.cast(cython.pointer(u32), malloc(SLOTS_SIZE * cython.sizeof(u32)))
        self.offsets = cython.cast(cython.pointer(i64), malloc(size * cython.sizeof(i64)))
        self.entries.size = MAX_RECORDS * ENTRY_SIZE
        self.entries.data = cython.cast(cython.pointer(u8), malloc(MAX_RECORDS * ENTRY_SIZE))
        if (
            self.starts == cython.NULL
            or self.rows == cython.NULL
            or self.queues == cython.NULL
            or self.slots == cython.NULL
            or self.offsets == cython.NULL
            or self.entries.data == cython.NULL
        ):
            raise MemoryError

    def __dealloc__(self):
        free(self.starts)
        free(self.rows)
        free(self.queues)
        free(self.slots)
        free(self.offsets)
        free(self.entries.data)

    def examine(
        self, data: object, base: int, check_crc: bool, in_segment: int, prefix: int = 0
    ) -> tuple:
        """Check the records that start at `data`, whose first byte has physical offset `base`.

        `prefix` is the number of bytes before each record that belong to something else.

        `in_segment` is its position in the segment if properties are checked for sectors that were
        never written, else -1. Return the end of the valid records; whether the record there is
        invalid, and not merely incomplete; where each record starts, as packed native integers; and
        a list of queues, their queue offsets (native) and entries, or None if they are for the
        Python code. A queue is (topic, queue id, number of entries, whether offsets have no gaps).
        """
        PyObject_GetBuffer(data, cython.address(self.buffer), PyBUF_SIMPLE)
        try:
            self.data.data = cython.cast(cython.pointer(u8), self.buffer.buf)
            self.data.size = self.buffer.len
            self.base = base
            self.check_crc = check_crc
            self.in_segment = in_segment
            self.prefix = prefix
            with cython.nogil:
                self.examine_all()
                self.group()
            queues = None if self.is_odd else self.collect()
        finally:
            PyBuffer_Release(cython.address(self.buffer))
        return (
            self.position,
            self.is_bad,
            packed(self.starts, self.record_count),
            queues,
            packed(self.offsets, self.row_count),
            bytes_of(self.entries, 0, self.row_count * ENTRY_SIZE),
        )

    def examine_all(self):
        """Check records until one is invalid or incomplete, or there is no room for more."""
        record: Record
        self.position = 0
        self.record_count = 0
        self.row_count = 0
        self.queue_count = 0
        self.is_bad = False
        self.is_odd = False
        memset(self.slots, 0, SLOTS_SIZE * cython.sizeof(u32))
        while self.record_count < MAX_RECORDS:
            start = self.position + self.prefix
            size = record_size(self.data, start, self.data.size, cython.address(LAYOUT))
            if size == 0:
                return
            if not read_record(
                self.data, start, size, cython.address(LAYOUT), cython.address(record)
            ) or not self.is_valid(cython.address(record)):
                self.is_bad = True
                return
            is_visible = record.sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT)
            if is_visible and not self.add_row(cython.address(record)):
                return
            self.starts[self.record_count] = start
            self.record_count += 1
            self.position = start + size

    def is_valid(self, record):
        """Whether a record is where it should be, and was written completely."""
        physical_offset = read64(self.data, record.start + LAYOUT.physical_offset)
        if physical_offset != self.base + record.start:
            return False
        if self.in_segment >= 0 and self.has_lost_sector(record.properties, record.end):
            return False
        if not self.check_crc:
            return True
        crc = crc32(self.data, record.body, record.topic - 1 - record.body) & CRC_MASK
        return crc == read32_signed(self.data, record.start + LAYOUT.body_crc)

    def has_lost_sector(self, at, end):
        """Whether a sector, or the part of one before `end`, is all zeros."""
        at = (at + self.in_segment + SECTOR_SIZE - 1) // SECTOR_SIZE * SECTOR_SIZE - self.in_segment
        while at < end:
            sector_end = at + SECTOR_SIZE if end - at > SECTOR_SIZE else end
            byte: cython.longlong = at
            while byte < sector_end and read8(self.data, byte) == 0:
                byte += 1
            if byte == sector_end:
                return True
            at += SECTOR_SIZE
        return False

    # Entries

    def add_row(self, record):
        """Add a record to its queue; return False if there is no room for another queue."""
        number = self.find_queue(
            record.topic,
            record.topic_end,
            read32_signed(self.data, record.start + LAYOUT.queue_id),
        )
        if number < 0:
            return False
        tags_code = tags_code_of(self.data, record.properties, record.end, TAGS)
        if tags_code == NONE:
            self.is_odd = True
        queue_offset = read64(self.data, record.start + LAYOUT.queue_offset)
        queue = cython.address(self.queues[number])
        if queue.count and queue_offset != queue.next_offset:
            queue.is_consecutive = False
        queue.next_offset = queue_offset + 1
        queue.count += 1
        row = cython.address(self.rows[self.row_count])
        row.start = record.start
        row.size = record.end - record.start
        row.queue_offset = queue_offset
        row.tags_code = tags_code
        row.queue = number
        self.row_count += 1
        return True

    def find_queue(self, topic, topic_end, queue_id):
        """Return the number of a queue, a new one if needed; -1 if there are too many."""
        mask = SLOTS_SIZE - 1
        slot: cython.longlong = (
            cython.cast(cython.longlong, hash_of(self.data, topic, topic_end, queue_id)) & mask
        )
        while self.slots[slot]:
            number = cython.cast(cython.longlong, self.slots[slot]) - 1
            queue = cython.address(self.queues[number])
            if (
                queue.queue_id == queue_id
                and queue.topic.size == topic_end - topic
                and is_at(self.data, topic, topic_end, queue.topic)
            ):
                return number
            slot = (slot + 1) & mask
        if self.queue_count == MAX_QUEUES:
            return -1
        if not is_utf8(self.data, topic, topic_end):
            self.is_odd = True
        queue = cython.address(self.queues[self.queue_count])
        queue.topic.data = self.data.data + topic
        queue.topic.size = topic_end - topic
        queue.queue_id = queue_id
        queue.count = 0
        queue.is_consecutive = True
        self.queue_count += 1
        self.slots[slot] = cython.cast(u32, self.queue_count)
        return self.queue_count - 1

    def group(self):
        """Pack the entries and queue offsets queue by queue, each in the order of the log."""
        next_row: cython.longlong = 0
        for number in range(self.queue_count):
            self.queues[number].next_row = next_row
            next_row += self.queues[number].count
        for number in range(self.row_count):
            row = cython.address(self.rows[number])
            queue = cython.address(self.queues[row.queue])
            self.offsets[queue.next_row] = row.queue_offset
            at = write64(self.entries, queue.next_row * ENTRY_SIZE, self.base + row.start)
            at = write32(self.entries, at, row.size)
            write64(self.entries, at, row.tags_code)
            queue.next_row += 1

    def collect(self):
        """Return the queues in the order of their first records."""
        queues = []
        for number in range(self.queue_count):
            queue = cython.address(self.queues[number])
            topic = cython.cast(cython.p_char, queue.topic.data)[: queue.topic.size]
            queues.append((topic, queue.queue_id, queue.count, queue.is_consecutive))
        return queues


def packed(numbers, count):
    """Return an array of native integers as bytes."""
    return cython.cast(cython.p_char, numbers)[: count * cython.sizeof(i64)]


def hash_of(view, at, end, queue_id):
    """Hash a queue's name."""
    value: u64 = cython.cast(u64, queue_id) * 31 + cython.cast(u64, end - at)
    while end - at >= 8:
        value = (value ^ read_word(view, at)) * 0x1E3779B1
        value ^= value >> 29
        at += 8
    while at < end:
        value = (value ^ cython.cast(u64, read8(view, at))) * 0x1E3779B1
        value ^= value >> 29
        at += 1
    return value
