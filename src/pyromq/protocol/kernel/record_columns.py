# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Records to columns in Arrow's layout: bytes in; the buffers of each column out.

`ColumnDecoder.decode` returns what `spark.arrow` builds with numpy and Arrow. It gives up, and that
code decodes the whole block, if a record is damaged, has an IPv6 host or a compressed body that is
wanted, or if a text is not UTF-8.

`find_starts` walks from record to record, as `bulk.record_starts` does.

Not thread-safe: each task has its own decoder.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AsString, PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memset
from cython.cimports.pyromq.protocol.kernel.raw import (
    bytes_of,
    copy,
    faults,
    find8,
    get_long,
    is_at,
    put_int,
    put_long,
    read8,
    read32,
    read32_signed,
    read64,
    read_only,
    view_of,
    write8,
    write_word,
)
from cython.cimports.pyromq.protocol.kernel.records import fill_layout, read_record, record_size
from cython.cimports.pyromq.protocol.kernel.text import hex_word, is_utf8, write_decimal

from pyromq.protocol.message import properties as names
from pyromq.protocol.message import record as layout
from pyromq.protocol.message import sysflag
from pyromq.protocol.message.message_id import HOST_SIZE_V4

fill_layout(cython.address(LAYOUT))
COMPRESSED = sysflag.COMPRESSED
HOST_MASK = sysflag.HOST_MASK
STORE_HOST = layout.FIELD_OFFSETS["storeHost"]
#: The longest text of an IPv4 host: four numbers of three digits, and a port of ten.
HOST_TEXT = len("255.255.255.255:4294967295")
#: Hex digits of a host and an offset.
ID_SIZE = 2 * (HOST_SIZE_V4 + 8)
#: Of a block, of all its ids or hosts, and of a record: Arrow's offsets and sizes have 31 bits.
MAX_BYTES = 1 << 30
SEPARATOR = ord(names.PROPERTY_SEPARATOR)


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class ColumnDecoder:
    """Decodes blocks into the same columns; holds the scratch buffers."""

    def __init__(self, columns: list, earliest: int, latest: int) -> None:
        """Take (kind, argument) of each column.

        The argument of `int`, `long`, `time` and `host` is the position of a field in the head, of
        `property` a name with its separator. The others are `body`, `topic`, `properties` and
        `message id`. Times are limited to `earliest` and `latest`, in milliseconds.
        """
        self.columns = list(columns)
        self.with_bodies = False
        self.name_count = 0
        self.room = 0
        self.earliest = earliest
        self.latest = latest
        for kind, argument in self.columns:
            if kind == "body":
                self.with_bodies = True
            elif kind == "property":
                if self.name_count == MAX_NAMES:
                    raise ValueError(f"more than {MAX_NAMES} properties")
                if not argument:
                    raise ValueError("no name of a property")
                self.names[self.name_count] = view_of(argument)
                self.name_count += 1
            elif kind in ("int", "long", "time", "host"):
                if not 0 <= argument <= LAYOUT.head_size - 8:
                    raise ValueError(f"no field at {argument}")
            elif kind not in ("topic", "properties", "message id"):
                raise ValueError(f"no column {kind!r}")

    def __dealloc__(self):
        free(self.records)
        free(self.spans)

    def decode(self, data: object, starts: object) -> list | None:
        """Return the columns of the records at these positions (native 64-bit integers).

        A column is the number of its nulls and its buffers: validity or None, offsets if values
        have different lengths, and values. Returns None if there is anything for the Python code.
        """
        PyObject_GetBuffer(data, cython.address(self.buffer), PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(starts, cython.address(self.starts_buffer), PyBUF_SIMPLE)
            try:
                self.data.data = cython.cast(cython.pointer(u8), self.buffer.buf)
                self.data.size = self.buffer.len
                self.starts.data = cython.cast(cython.pointer(u8), self.starts_buffer.buf)
                self.starts.size = self.starts_buffer.len
                self.rows = self.starts.size // 8
                return self.decode_all()
            finally:
                PyBuffer_Release(cython.address(self.starts_buffer))
        finally:
            PyBuffer_Release(cython.address(self.buffer))

    def decode_all(self):
        """Return all columns, or None."""
        if self.rows == 0 or self.data.size > MAX_BYTES or self.rows > MAX_BYTES // ID_SIZE:
            return None
        self.make_room()
        if not self.read_records():
            return None
        if self.name_count:
            self.find_named()
        columns = []
        name = 0
        for kind, argument in self.columns:
            if kind == "property":
                name += 1
                column = self.named(self.spans + name * self.rows)
            else:
                column = self.column(kind, argument)
            if column is None:
                return None
            columns.append(column)
        return columns

    def make_room(self):
        """Have scratch for all rows."""
        if self.rows <= self.room:
            return True
        free(self.records)
        free(self.spans)
        self.room = 0
        size = cython.cast(cython.size_t, self.rows)
        self.records = cython.cast(cython.pointer(Record), malloc(size * cython.sizeof(Record)))
        spans = size * cython.cast(cython.size_t, 1 + self.name_count)
        self.spans = cython.cast(cython.pointer(Span), malloc(spans * cython.sizeof(Span)))
        if self.records == cython.NULL or self.spans == cython.NULL:
            raise MemoryError
        self.room = self.rows
        return True

    def read_records(self):
        """Read where the parts of all records are; return False if one is for the Python code."""
        end: cython.longlong = 0
        odd = HOST_MASK | COMPRESSED if self.with_bodies else HOST_MASK
        for row in range(self.rows):
            at = get_long(self.starts, row)
            if at < end:
                return False
            size = record_size(self.data, at, self.data.size, cython.address(LAYOUT))
            record = cython.address(self.records[row])
            if size == 0 or not read_record(self.data, at, size, cython.address(LAYOUT), record):
                return False
            if record.sys_flag & odd:
                return False
            end = record.end
        return True

    def column(self, kind, argument):
        """Return a column, or None if a text is not UTF-8."""
        if kind == "int":
            return self.ints(argument)
        if kind == "long":
            return self.longs(argument)
        if kind == "time":
            return self.times(argument)
        if kind == "body":
            self.find_bodies()
            return self.gather(self.spans)
        if kind == "topic":
            self.find_topics()
            return self.texts()
        if kind == "properties":
            self.find_properties()
            return self.texts()
        if kind == "host":
            return self.hosts(argument)
        return self.message_ids()

    # Numbers

    def ints(self, at):
        values = new_bytes(4 * self.rows)
        area = inside(values)
        for row in range(self.rows):
            put_int(area, row, read32_signed(self.data, self.records[row].start + at))
        return 0, None, values

    def longs(self, at):
        values = new_bytes(8 * self.rows)
        area = inside(values)
        for row in range(self.rows):
            put_long(area, row, read64(self.data, self.records[row].start + at))
        return 0, None, values

    def times(self, at):
        """Return milliseconds as microseconds."""
        values = new_bytes(8 * self.rows)
        area = inside(values)
        for row in range(self.rows):
            time = read64(self.data, self.records[row].start + at)
            time = self.earliest if time < self.earliest else time
            time = self.latest if time > self.latest else time
            put_long(area, row, time * 1000)
        return 0, None, values

    # Values of different lengths

    def find_bodies(self):
        for row in range(self.rows):
            self.spans[row].start = self.records[row].body
            self.spans[row].end = self.records[row].topic - 1

    def find_topics(self):
        for row in range(self.rows):
            self.spans[row].start = self.records[row].topic
            self.spans[row].end = self.records[row].topic_end

    def find_properties(self):
        for row in range(self.rows):
            self.spans[row].start = self.records[row].properties
            self.spans[row].end = self.records[row].end

    def find_named(self):
        """Find the last property of each name that has a value, in one walk over all properties."""
        named = self.spans + self.rows
        for row in range(self.rows):
            for number in range(self.name_count):
                span = named + number * self.rows + row
                span.start = -1
                span.end = -1
            at: cython.longlong = self.records[row].properties
            end = self.records[row].end
            while at < end:
                following = find8(self.data, at, end, SEPARATOR)
                first = read8(self.data, at)
                for number in range(self.name_count):
                    name = self.names[number]
                    # Most items differ in their first byte, which costs less than a call.
                    if (
                        following - at > name.size
                        and first == read8(name, 0)
                        and is_at(self.data, at, following, name)
                    ):
                        span = named + number * self.rows + row
                        span.start = at + name.size
                        span.end = following
                at = following + 1

    def texts(self):
        """Return the values at `spans` as a column of text, or None."""
        return self.gather(self.spans) if self.are_texts(self.spans) else None

    def named(self, spans):
        """Return the values of a property, null where there is none; or None."""
        if not self.are_texts(spans):
            return None
        nulls: cython.longlong = 0
        for row in range(self.rows):
            nulls += spans[row].start < 0
        _, _, offsets, values = self.gather(spans)
        return nulls, self.validity(spans) if nulls else None, offsets, values

    def are_texts(self, spans):
        """Whether all values are UTF-8."""
        for row in range(self.rows):  # noqa: SIM110 - a generator does not compile to C
            if not is_utf8(self.data, spans[row].start, spans[row].end):
                return False
        return True

    def validity(self, spans):
        """Return a bit per row, the lowest first: whether it has a value."""
        size = (self.rows + 7) // 8
        bits = new_bytes(size)
        area = inside(bits)
        memset(area.data, 0, cython.cast(cython.size_t, size))
        view = read_only(area)
        for row in range(self.rows):
            if spans[row].start >= 0:
                write8(area, row >> 3, read8(view, row >> 3) | 1 << (row & 7))
        return bits

    def gather(self, spans):
        """Copy the values one after the other; return a column without nulls."""
        ends = new_bytes(4 * (self.rows + 1))
        area = inside(ends)
        at: cython.longlong = 0
        put_int(area, 0, 0)
        for row in range(self.rows):
            at += spans[row].end - spans[row].start
            put_int(area, row + 1, at)
        values = new_bytes(at)
        area = inside(values)
        at = 0
        for row in range(self.rows):
            at = copy(area, at, self.data, spans[row].start, spans[row].end - spans[row].start)
        return 0, None, ends, values

    # Hosts

    def hosts(self, at):
        """Return `host:port`; most records have the host of the record before."""
        ends = new_bytes(4 * (self.rows + 1))
        area = inside(ends)
        scratch = new_bytes(HOST_TEXT * self.rows)
        texts = inside(scratch)
        put_int(area, 0, 0)
        end: cython.longlong = 0
        length: cython.longlong = 0
        before: cython.longlong = 0
        for row in range(self.rows):
            host = self.records[row].start + at
            number = read64(self.data, host)
            if row and number == before:
                end = copy(texts, end, read_only(texts), end - length, length)
            else:
                length = write_host(texts, end, self.data, host) - end
                end += length
                before = number
            put_int(area, row + 1, end)
        return 0, None, ends, bytes_of(texts, 0, end)

    def message_ids(self):
        """Return the hex digits of store host and physical offset."""
        ends = new_bytes(4 * (self.rows + 1))
        area = inside(ends)
        for row in range(self.rows + 1):
            put_int(area, row, ID_SIZE * row)
        ids = new_bytes(ID_SIZE * self.rows)
        area = inside(ids)
        at: cython.longlong = 0
        for row in range(self.rows):
            host = self.records[row].start + STORE_HOST
            offset = self.records[row].start + LAYOUT.physical_offset
            write_word(area, at, hex_word(cython.cast(u32, read32(self.data, host))))
            write_word(area, at + 8, hex_word(cython.cast(u32, read32(self.data, host + 4))))
            write_word(area, at + 16, hex_word(cython.cast(u32, read32(self.data, offset))))
            write_word(area, at + 24, hex_word(cython.cast(u32, read32(self.data, offset + 4))))
            at += ID_SIZE
        return 0, None, ends, ids


def write_host(area, at, data, host):
    """Write an IPv4 address and a port; return the end."""
    for part in range(4):
        at = write_decimal(area, at, read8(data, host + part))
        at = write8(area, at, 0x3A if part == 3 else 0x2E)
    return write_decimal(area, at, read32(data, host + 4))


def new_bytes(size):
    """Return bytes to fill before anybody else sees them."""
    return PyBytes_FromStringAndSize(cython.NULL, size)


def inside(data):
    """Return the memory of new bytes."""
    area: Area
    area.data = cython.cast(cython.pointer(u8), PyBytes_AsString(data))
    area.size = len(data)
    return area


def find_starts(data: object) -> tuple:
    """Return where the records at the head of `data` start, packed, and where the last one ends."""
    buffer: Py_buffer
    view: View
    starts: Area
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        view.data = cython.cast(cython.pointer(u8), buffer.buf)
        view.size = buffer.len
        starts.size = 8 * (view.size // LAYOUT.min_size + 1)
        starts.data = cython.cast(
            cython.pointer(u8), malloc(cython.cast(cython.size_t, starts.size))
        )
        if starts.data == cython.NULL:
            raise MemoryError
        try:
            count: cython.longlong = 0
            position: cython.longlong = 0
            while True:
                size = record_size(view, position, view.size, cython.address(LAYOUT))
                if size == 0 or size > MAX_BYTES:
                    break
                put_long(starts, count, position)
                count += 1
                position += size
            return bytes_of(starts, 0, 8 * count), position
        finally:
            free(starts.data)
    finally:
        PyBuffer_Release(cython.address(buffer))
