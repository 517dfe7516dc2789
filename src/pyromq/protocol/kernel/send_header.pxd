# The C types of `send_header.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64

# Where a value is in the chunk; `start` is -1 without one.
cdef struct Text:
    i64 start
    i64 end

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
    cdef View chunk
    cdef bint is_binary
    # NONE without one
    cdef i64 code
    cdef i64 opaque
    cdef i64 flag
    cdef bint has_fields
    # The fields of SEND_MESSAGE, and of the other two requests, which have short names.
    cdef Text long_fields[FIELD_COUNT]
    cdef Text short_fields[FIELD_COUNT]
    # The properties, as UTF-8
    cdef bytearray text_buffer
    cdef Area text
    cdef i64 text_size
    cdef bint has_text

    cdef bint read(self, View chunk, i64 at, i64 end, bint is_binary) noexcept
    cdef bint parse_json(self, i64 at, i64 end) noexcept
    cdef i64 parse_value(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 parse_integer(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 parse_fields(self, i64 at, i64 end) noexcept
    cdef i64 parse_field(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 unescape(self, i64 at, i64 end) noexcept
    cdef i64 unescape_one(self, i64 at, i64 end) noexcept
    cdef bint parse_binary(self, i64 at, i64 end) noexcept
    cdef bint parse_binary_fields(self, i64 at, i64 end) noexcept
    cdef bint take_binary_field(self, Text* field, i64 at, i64 end) noexcept
    cdef Text* find_field(self, i64 name, i64 name_end) noexcept
    cdef bint read_properties(self, Properties* properties) noexcept

cdef bint read_property(View text, i64 start, i64 end, Properties* properties) noexcept

cdef i64 after_spaces(View view, i64 at, i64 end) noexcept
cdef i64 after_colon(View view, i64 at, i64 end) noexcept
cdef i64 hex_digits(View view, i64 at, i64 end) noexcept

# Layouts and names, set at import from the modules that define them.
cdef i64 BINARY_FIXED_SIZE, BINARY_OPAQUE, BINARY_FLAG
cdef View CODE_NAME, FLAG_NAME, OPAQUE_NAME, EXT_FIELDS_NAME, NULL_TEXT
cdef View TAGS, WAIT, WAIT_TRUE, DELAY, TRAN_MSG, CLUSTER
cdef View LONG_NAMES[FIELD_COUNT]
cdef int SHORT_NAMES[256]
# The character of an escape sequence by its letter, 0 if there is none.
cdef int ESCAPES[256]
