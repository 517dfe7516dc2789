# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Keys of records: a span of the log in; entries and slots of an index file out.

`IndexKeys.read` collects the keys of consecutive records, as many as fit in its scratch buffer.
`link` packs their entries for one index file, `enter` then makes that file's slots point to them.
The caller writes the entries and the header in between (`store.index.file`), so that a reader of
the file never meets a slot without its entry.

A record whose topic or key is not UTF-8, or with more keys than there is room for, is left to the
Python code. The results are the bytes that the Python code would have made.

Not thread-safe. Long spans are processed without the GIL.
"""

import cython
from cython.cimports.cpython.buffer import (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset
from cython.cimports.pyromq.protocol.kernel.raw import (
    bytes_of,
    faults,
    find8,
    is_at,
    prefetch,
    read8,
    read32_signed,
    read64,
    read_only,
    store32,
    view_of,
    write32,
    write64,
)
from cython.cimports.pyromq.protocol.kernel.records import fill_layout, read_record, record_size
from cython.cimports.pyromq.protocol.kernel.text import NONE, continue_java_hash

from pyromq.protocol.message import properties as names
from pyromq.protocol.message import sysflag, units

fill_layout(cython.address(LAYOUT))
TRANSACTION_MASK = sysflag.TRANSACTION_MASK
TRANSACTION_ROLLBACK = sysflag.TRANSACTION_ROLLBACK
ENTRY_SIZE = units.INDEX_ENTRY_SIZE
SLOT_SIZE = units.INDEX_SLOT_SIZE

# The owners of the bytes of UNIQUE and KEYS.
_unique = names.UNIQ_KEY_START.encode()
_keys = f"{names.KEYS}{names.NAME_VALUE_SEPARATOR}".encode()
UNIQUE = view_of(_unique)
KEYS = view_of(_keys)
FIRST_OF_UNIQUE = _unique[0]
FIRST_OF_KEYS = _keys[0]

#: Keys of one call of `read`.
MAX_KEYS = 1 << 14
#: Slots of the table of rows: a power of two.
ROWS_SIZE = 4 * MAX_KEYS
#: Slots of the index file that are loaded ahead.
AHEAD = 12
#: Bytes of the log, and keys, from which on the GIL is released.
MIN_BYTES_WITHOUT_GIL = 1 << 16
MIN_KEYS_WITHOUT_GIL = 1 << 9


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class IndexKeys:
    """The keys of some records, and the scratch buffers for their entries."""

    def __init__(self) -> None:
        self.keys = cython.cast(cython.pointer(Key), malloc(MAX_KEYS * cython.sizeof(Key)))
        self.entries.size = MAX_KEYS * ENTRY_SIZE
        self.entries.data = cython.cast(cython.pointer(u8), malloc(MAX_KEYS * ENTRY_SIZE))
        self.rows = cython.cast(cython.pointer(u32), malloc(ROWS_SIZE * cython.sizeof(u32)))
        if self.keys == cython.NULL or self.entries.data == cython.NULL or self.rows == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.keys)
        free(self.entries.data)
        free(self.rows)

    # Keys of records

    def read(self, log: object, start: int, end_offset: int, prefix: int = 0) -> tuple:
        """Collect the keys of the records from `start` on, without those below `end_offset`.

        `prefix` is the number of bytes before each record that belong to something else.

        Return the end of the last record read; the number of complete records and of their keys;
        whether the last record added no key; and the size of the next record if it is for the
        Python code, else 0. Stops where the bytes are not a whole record, or its keys do not fit.
        """
        PyObject_GetBuffer(log, cython.address(self.log_buffer), PyBUF_SIMPLE)
        try:
            self.log.data = cython.cast(cython.pointer(u8), self.log_buffer.buf)
            self.log.size = self.log_buffer.len
            self.position = start
            self.end_offset = end_offset
            self.prefix = prefix
            self.count = 0
            self.record_count = 0
            self.odd_size = 0
            self.is_last_without = False
            self.topic.size = -1
            self.is_full = False
            if self.log.size - self.position < MIN_BYTES_WITHOUT_GIL:
                self.read_records()
            else:
                with cython.nogil:
                    self.read_records()
        finally:
            PyBuffer_Release(cython.address(self.log_buffer))
        return (
            self.position,
            self.record_count,
            self.count,
            self.is_last_without,
            self.odd_size,
        )

    def read_records(self):
        """Read records until there is one that cannot be read."""
        record: Record
        while True:
            start = self.position + self.prefix
            size = record_size(self.log, start, self.log.size, cython.address(LAYOUT))
            if size == 0:
                return
            if read_record(self.log, start, size, cython.address(LAYOUT), cython.address(record)):
                before = self.count
                if not self.add_record(cython.address(record)):
                    if not self.is_full or before == 0:
                        self.odd_size = size
                    self.count = before
                    return
                self.record_count += 1
                self.is_last_without = self.count == before
            self.position = start + size

    def add_record(self, record):
        """Add the keys of a complete record; return False if it must wait or is for Python."""
        offset = read64(self.log, record.start + LAYOUT.physical_offset)
        if offset < self.end_offset or record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return True
        found: Found
        find_keys(self.log, record.properties, record.end, cython.address(found))
        if found.unique < 0 and found.keys < 0:
            return True
        first = self.count
        if not self.hash_topic(record):
            return False
        if found.unique >= 0 and not self.add_key(record, offset, found.unique, found.unique_end):
            return False
        at = found.keys
        while at >= 0 and at < found.keys_end:
            end = find8(self.log, at, found.keys_end, 0x20)
            if end > at and not self.add_key(record, offset, at, end):
                return False
            at = end + 1
        if self.count > first:
            self.end_offset = offset
        return True

    def hash_topic(self, record):
        """Compute the hash of `topic#`; return False if the topic is not UTF-8."""
        size = record.topic_end - record.topic
        if size == self.topic.size and is_at(self.log, record.topic, record.topic_end, self.topic):
            return True
        hash_code = continue_java_hash(0, self.log, record.topic, record.topic_end)
        if hash_code == NONE:
            return False
        self.topic.data = self.log.data + record.topic
        self.topic.size = size
        self.topic_hash = cython.cast(u32, hash_code) * 31 + 0x23  # '#'
        return True

    def add_key(self, record, offset, at, end):
        """Add one key; return False without room, or if the key is not UTF-8."""
        if self.count == MAX_KEYS:
            self.is_full = True
            return False
        hash_code = continue_java_hash(self.topic_hash, self.log, at, end)
        if hash_code == NONE:
            return False
        signed: cython.longlong = cython.cast(cython.int, cython.cast(u32, hash_code))
        key = cython.address(self.keys[self.count])
        key.hash = cython.cast(u32, (-signed if signed < 0 else signed) & 0x7FFFFFFF)
        key.offset = offset
        key.timestamp = read64(self.log, record.store_timestamp)
        self.count += 1
        return True

    # An index file

    def bounds(self, first: int, count: int) -> tuple:
        """Return offset and store timestamp of the first and the last of some keys."""
        if first < 0 or count < 1 or first > self.count - count:
            raise IndexError(f"keys {first} to {first + count} of {self.count}")
        begin = cython.address(self.keys[cython.cast(cython.longlong, first)])
        end = cython.address(self.keys[cython.cast(cython.longlong, first + count - 1)])
        return begin.offset, begin.timestamp, end.offset, end.timestamp

    def link(
        self,
        file: object,
        slots_at: int,
        slot_count: int,
        number: int,
        begin: int,
        first: int,
        count: int,
    ) -> tuple:
        """Pack entries for `count` keys from `first` on, the first one as entry `number`.

        `begin` is the file's begin timestamp. Return the entries, and how many slots of the file
        they are the first of.
        """
        first_row: cython.longlong = first
        key_count: cython.longlong = count
        first_number: cython.longlong = number
        begin_timestamp: cython.longlong = begin
        self.open_file(file, slots_at, slot_count, first, count, PyBUF_SIMPLE)
        try:
            if key_count < MIN_KEYS_WITHOUT_GIL:
                self.link_all(first_row, key_count, first_number, begin_timestamp)
            else:
                with cython.nogil:
                    self.link_all(first_row, key_count, first_number, begin_timestamp)
        finally:
            PyBuffer_Release(cython.address(self.file_buffer))
        return bytes_of(self.entries, 0, key_count * ENTRY_SIZE), self.new_slots

    def link_all(self, first, count, number, begin):
        """Pack the entries, each with the one before it in its slot."""
        mask: cython.longlong = 15
        while mask < 2 * count:
            mask = 2 * mask + 1
        memset(self.rows, 0, (mask + 1) * cython.sizeof(u32))
        self.new_slots = 0
        for row in range(first, first + count):
            self.keys[row].slot = self.keys[row].hash % cython.cast(u32, self.slot_count)
        at: cython.longlong = 0
        for row in range(first, first + count):
            if row + AHEAD < first + count:
                prefetch(self.file, self.slots_at + self.keys[row + AHEAD].slot * SLOT_SIZE)
            key = cython.address(self.keys[row])
            previous = self.previous_of(row, mask, number)
            at = write32(self.entries, at, key.hash)
            at = write64(self.entries, at, key.offset)
            at = write32(self.entries, at, seconds_between(begin, key.timestamp))
            at = write32(self.entries, at, previous)
            self.new_slots += previous == 0
            if number == 1:
                begin = key.timestamp
            number += 1

    def previous_of(self, row, mask, number):
        """Return the newest entry in the slot of a key, 0 without one, and note this one."""
        slot = self.keys[row].slot
        at: cython.longlong = (cython.cast(cython.longlong, slot) * 0x1E3779B1 >> 20) & mask
        while self.rows[at]:
            before = cython.cast(cython.longlong, self.rows[at]) - 1
            if self.keys[before].slot == slot:
                self.rows[at] = cython.cast(u32, row + 1)
                return number - (row - before)
            at = (at + 1) & mask
        self.rows[at] = cython.cast(u32, row + 1)
        previous = read32_signed(read_only(self.file), self.slots_at + slot * SLOT_SIZE)
        return previous if 0 < previous <= number else 0

    def enter(self, file: object, slots_at: int, number: int, first: int, count: int) -> None:
        """Make the slots of the keys that `link` packed point to their entries."""
        first_row: cython.longlong = first
        key_count: cython.longlong = count
        first_number: cython.longlong = number
        self.open_file(file, slots_at, self.slot_count, first, count, PyBUF_WRITABLE)
        try:
            if key_count < MIN_KEYS_WITHOUT_GIL:
                self.enter_all(first_row, key_count, first_number)
            else:
                with cython.nogil:
                    self.enter_all(first_row, key_count, first_number)
        finally:
            PyBuffer_Release(cython.address(self.file_buffer))

    def enter_all(self, first, count, number):
        """Write the slots; of several keys in one slot the last one, the newest, stays."""
        for row in range(first, first + count):
            store32(self.file, self.slots_at + self.keys[row].slot * SLOT_SIZE, number)
            number += 1

    def open_file(self, file, slots_at, slot_count, first, count, flags):
        """Take hold of an index file's bytes; the caller releases them. Raises ValueError."""
        if first < 0 or count < 1 or first > self.count - count:
            raise IndexError(f"keys {first} to {first + count} of {self.count}")
        PyObject_GetBuffer(file, cython.address(self.file_buffer), flags)
        self.file.data = cython.cast(cython.pointer(u8), self.file_buffer.buf)
        self.file.size = self.file_buffer.len
        self.slots_at = slots_at
        self.slot_count = slot_count
        if slots_at < 0 or not 0 < slot_count <= (self.file.size - slots_at) // SLOT_SIZE:
            PyBuffer_Release(cython.address(self.file_buffer))
            raise ValueError(f"{self.file.size} bytes have no {slot_count} slots")
        return True


def find_keys(view, at, end, found):
    """Find the last UNIQ_KEY and the last KEYS that have a value."""
    found.unique = -1
    found.keys = -1
    while at < end:
        following = find8(view, at, end, 2)
        first = read8(view, at)
        if first == FIRST_OF_UNIQUE:
            if following - at > UNIQUE.size and is_at(view, at, following, UNIQUE):
                found.unique = at + UNIQUE.size
                found.unique_end = following
        elif (
            first == FIRST_OF_KEYS
            and following - at > KEYS.size
            and is_at(view, at, following, KEYS)
        ):
            found.keys = at + KEYS.size
            found.keys_end = following
        at = following + 1


def seconds_between(begin, timestamp):
    """Return the seconds field of an entry: Java's subtraction wraps at 64 bits."""
    if begin <= 0:
        return 0
    milliseconds = timestamp - begin
    if milliseconds < 0:
        return 0
    seconds = milliseconds // 1000
    return seconds if seconds < 0x7FFFFFFF else 0x7FFFFFFF
