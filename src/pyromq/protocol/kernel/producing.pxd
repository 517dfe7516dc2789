# The C types of `producing.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64
from pyromq.protocol.kernel.request_header cimport FieldNames, RequestHeader, Text

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    object PyUnicode_FromStringAndSize(const char* text, Py_ssize_t size)

# The fields of a response to a send.
cdef enum:
    MESSAGE_IDS
    QUEUE_ID
    QUEUE_OFFSET
    REGION_ID
    TRACE_ON
    TRANSACTION_ID
    FIELD_COUNT

@cython.final
cdef class SendTemplate:
    cdef list kept
    # The constant text before each value, and after the last
    cdef View pieces[7]
    cdef i64 pieces_size

    cdef i64 begin(self, Area area, i64 sys_flag, i64 born_timestamp, i64 message_flag) noexcept
    cdef i64 finish(self, Area area, i64 at, i64 flag, i64 opaque, View content) noexcept

cdef Area scratch_of(i64 size)
cdef i64 write_escaped(Area area, i64 at, View text) noexcept
cdef i64 write_number(Area area, i64 at, i64 number) noexcept
cdef str text_of(Area area, i64 start, i64 end)
cdef str text_in(View view, Text text)
cdef View view_of_text(str text)
cdef bint is_plain_success(RequestHeader* answer) noexcept

# Layouts and names, set at import from the modules that define them.
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, RESPONSE, SUCCESS
cdef i64 INNER_FIXED_SIZE, INNER_BODY_LENGTH, MAX_PROPERTIES
cdef FieldNames NAMES
cdef View FALSE
cdef View KEY_START, WAIT, TAGS, JSON_KEY_START, JSON_WAIT, JSON_TAGS
cdef i64 NUMBER_SIZE, MAX_DIGITS, MAX_ESCAPED
cdef bytearray SCRATCH
# The response that was read last; it remembers the order of fields.
cdef RequestHeader ANSWER
