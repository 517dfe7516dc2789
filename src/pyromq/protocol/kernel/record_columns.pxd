# The C types of `record_columns.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u32, u64, u8
from pyromq.protocol.kernel.records cimport Layout, Record

cdef enum:
    MAX_NAMES = 8

# A value in the buffer; start is -1 if a row has none.
cdef struct Span:
    i64 start
    i64 end

@cython.final
cdef class ColumnDecoder:
    cdef list columns
    # The properties among them; the list owns their bytes
    cdef View[MAX_NAMES] names
    cdef i64 name_count
    cdef bint with_bodies
    cdef i64 earliest
    cdef i64 latest
    cdef Py_buffer buffer
    cdef Py_buffer starts_buffer
    # Scratch, for `room` rows; spans of one column, then those of each property
    cdef i64 room
    cdef Record* records
    cdef Span* spans
    # This call
    cdef View data
    cdef View starts
    cdef i64 rows

    cdef bint make_room(self) except -1
    cdef bint read_records(self) noexcept nogil
    cdef list decode_all(self)
    cdef tuple column(self, str kind, object argument)
    cdef tuple ints(self, i64 at)
    cdef tuple longs(self, i64 at)
    cdef tuple times(self, i64 at)
    cdef void find_bodies(self) noexcept nogil
    cdef void find_topics(self) noexcept nogil
    cdef void find_properties(self) noexcept nogil
    cdef void find_named(self) noexcept nogil
    cdef tuple texts(self)
    cdef tuple named(self, Span* spans)
    cdef bint are_texts(self, Span* spans) noexcept nogil
    cdef bytes validity(self, Span* spans)
    cdef tuple gather(self, Span* spans)
    cdef tuple hosts(self, i64 at)
    cdef tuple message_ids(self)

cdef bytes new_bytes(i64 size)
cdef Area inside(bytes data) noexcept
cdef i64 write_host(Area area, i64 at, View data, i64 host) noexcept nogil

# Layouts, set at import from the modules that define them.
cdef Layout LAYOUT
cdef i64 COMPRESSED, HOST_MASK, STORE_HOST, MAX_BYTES, HOST_TEXT, ID_SIZE, SEPARATOR
