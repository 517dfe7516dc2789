# The C types of `record_columns.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u32, u64, u8
from pyromq.protocol.kernel.records cimport Layout, Record

cdef extern from *:
    """
    /* The hex digits of 32 bits, the first one lowest: spread the nibbles, then add '0' to each,
       and 7 more to those above 9. */
    static inline unsigned long long pyromq_hex(unsigned int value) {
        unsigned long long word = value;
        word = (word >> 16 | word << 32) & 0x0000FFFF0000FFFFULL;
        word = (word >> 8 | word << 16) & 0x00FF00FF00FF00FFULL;
        word = (word >> 4 | word << 8) & 0x0F0F0F0F0F0F0F0FULL;
        unsigned long long letters = (word + 0x0606060606060606ULL) >> 4 & 0x0101010101010101ULL;
        return word + 0x3030303030303030ULL + letters * 7;
    }
    """
    u64 hex_digits "pyromq_hex" (u32 value) nogil

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
