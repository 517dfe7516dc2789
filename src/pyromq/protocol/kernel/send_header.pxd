# The C types of `send_header.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64
from pyromq.protocol.kernel.request_header cimport FieldNames, RequestHeader, Text

# The fields of a send, in the order of `send_fields.SendFields`.
cdef enum:
    TOPIC
    QUEUE_ID
    SYS_FLAG
    BORN_TIMESTAMP
    FLAG
    PROPERTIES
    RECONSUME_TIMES
    BATCH
    FIELD_COUNT

# Properties in the text buffer, without the span from `cut` to `after_cut`.
cdef struct Properties:
    i64 size
    i64 cut
    i64 after_cut
    # Whether a separator must precede what is added to them.
    bint is_joined
    i64 tags_code

@cython.final
cdef class SendHeader:
    cdef RequestHeader request
    cdef bint is_binary
    # The properties, as UTF-8
    cdef bytearray text_buffer
    cdef Area text
    cdef i64 text_size

    cdef void list_fields(self, bint are_listed) noexcept
    cdef bint read(self, View chunk, i64 at, i64 end, bint is_binary) noexcept
    cdef Text* fields(self, bint are_long) noexcept
    cdef bint read_properties(self, Text* field, Properties* properties) noexcept
    cdef bint take_text(self, i64 at, i64 end) noexcept
    cdef i64 unescape_one(self, i64 at, i64 end) noexcept

cdef bint read_property(View text, i64 start, i64 end, Properties* properties) noexcept

cdef i64 hex_digits(View view, i64 at, i64 end) noexcept

# Names, set at import from the modules that define them: long ones first, then short ones.
cdef FieldNames NAMES
cdef View TAGS, WAIT, WAIT_TRUE, DELAY, TRAN_MSG, CLUSTER
# The character of an escape sequence by its letter, 0 if there is none.
cdef int ESCAPES[256]
