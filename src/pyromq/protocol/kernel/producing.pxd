# The C types of `producing.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    object PyUnicode_FromStringAndSize(const char* text, Py_ssize_t size)

# Where a value is in the chunk; `start` is -1 without one.
cdef struct Text:
    i64 start
    i64 end

# The fields of a response to a send.
cdef struct Answer:
    i64 code
    i64 flag
    i64 opaque
    bint has_fields
    Text message_ids
    Text queue_id
    Text queue_offset
    Text region_id
    Text trace_on

@cython.final
cdef class SendTemplate:
    cdef list kept
    # The constant text before each value, and after the last
    cdef View pieces[7]
    cdef i64 pieces_size

cdef Area scratch_of(i64 size)
cdef i64 write_escaped(Area area, i64 at, View text) noexcept
cdef i64 write_number(Area area, i64 at, i64 number) noexcept
cdef str text_of(Area area, i64 start, i64 end)
cdef str text_in(View view, Text text)
cdef View view_of_text(str text)
cdef bint parse_answer(View view, i64 at, i64 end, Answer* answer) noexcept
cdef i64 parse_field(View view, i64 name, i64 name_end, i64 at, i64 end, Answer* answer) noexcept
cdef i64 parse_fields(View view, i64 at, i64 end, Answer* answer) noexcept
cdef bint take_field(View view, i64 name, i64 name_end, i64 start, i64 end, Answer* answer) noexcept
cdef i64 take_integer(View view, i64 at, i64 end, i64* value) noexcept
cdef i64 integer_end(View view, i64 at, i64 end) noexcept
cdef i64 string_end(View view, i64 at, i64 end) noexcept
cdef bint is_name(View view, i64 name, i64 name_end, View text) noexcept
cdef bint take_text(Text* text, i64 at, i64 end) noexcept

# Layouts and names, set at import from the modules that define them.
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, RESPONSE, SUCCESS
cdef i64 INNER_FIXED_SIZE, INNER_BODY_LENGTH, MAX_PROPERTIES
cdef View CODE_NAME, FLAG_NAME, OPAQUE_NAME, EXT_FIELDS_NAME, REMARK_NAME
cdef View MESSAGE_ID_NAME, QUEUE_ID_NAME, QUEUE_OFFSET_NAME, REGION_NAME, TRACE_NAME
cdef View TRANSACTION_NAME, FALSE
cdef View KEY_START, WAIT, TAGS, JSON_KEY_START, JSON_WAIT, JSON_TAGS
cdef i64 NUMBER_SIZE, MAX_DIGITS, MAX_ESCAPED
cdef bytearray SCRATCH
