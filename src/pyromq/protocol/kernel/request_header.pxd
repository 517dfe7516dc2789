# Headers of requests, JSON or binary, inlined into the modules of the kernel: code, opaque, flag,
# and where the values of some fields are in the chunk.
#
# `read_header` accepts only headers that the Python code (`frame.split_frames`) would read the same
# way: no field twice, no text that is not UTF-8, no escapes except in the fields `texts`, and nothing
# in JSON but what clients send. A module names its fields in a FieldNames; others are skipped, unless
# `lists_all` is set.

from pyromq.protocol.kernel.raw cimport (
    View, i64, is_at, read8, read16, read32, read32_signed, u8, view_of,
)
from pyromq.protocol.kernel.text cimport NONE, is_utf8, parse_number, plain_end, utf8_length

cdef enum:
    MAX_FIELDS = 16
    # Fields of a header whose module wants to see all of them
    MAX_ALL_FIELDS = 64

# Where a value is in the chunk; `start` is -1 without one.
cdef struct Text:
    i64 start
    i64 end

cdef struct FieldNames:
    i64 count
    View names[MAX_FIELDS]
    # Whether the value may have escapes, which the caller must resolve, and any characters
    bint texts[MAX_FIELDS]
    # Whether names and values of all fields are listed in the order of the header
    bint lists_all
    # Names of the header itself, the text `null`, and the layout of a binary header
    View code
    View flag
    View opaque
    View ext_fields
    View null
    # A name of the header that makes it unusual, if it is not empty
    View refused
    i64 binary_opaque
    i64 binary_flag
    i64 binary_fixed_size
    i64 binary_max_name

cdef struct RequestHeader:
    View chunk
    # NONE without one
    i64 code
    i64 opaque
    i64 flag
    bint has_fields
    Text fields[MAX_FIELDS]
    # All fields, also repeated ones, if `lists_all`
    i64 all_count
    Text all_names[MAX_ALL_FIELDS]
    Text all_values[MAX_ALL_FIELDS]
    # The field after the last one that was found: clients send them in the same order every time.
    i64 successors[MAX_FIELDS + 1]
    i64 last


# Name the fields, in the order of their numbers; the caller keeps the bytes alive.
cdef inline int name_fields(FieldNames* names, list fields) except -1:
    from pyromq.protocol.wire import header_binary

    cdef i64 number
    assert len(fields) <= MAX_FIELDS
    names.count = len(fields)
    for number in range(names.count):
        names.names[number] = view_of(fields[number])
        names.texts[number] = False
    names.lists_all = False
    names.code = literal("code", 4)
    names.flag = literal("flag", 4)
    names.opaque = literal("opaque", 6)
    names.ext_fields = literal("extFields", 9)
    names.null = literal("null", 4)
    names.refused = literal("", 0)
    names.binary_opaque = header_binary.OPAQUE_AT
    names.binary_flag = header_binary.FLAG_AT
    names.binary_fixed_size = header_binary.FIXED_SIZE
    names.binary_max_name = header_binary.MAX_KEY
    return 0

cdef inline View literal(const char* text, i64 size) noexcept nogil:
    cdef View view
    view.data = <const u8*> text
    view.size = size
    return view

# Read the header from `at` to `end`; False if it is for the Python code.
cdef inline bint read_header(
    RequestHeader* header, FieldNames* names, View chunk, i64 at, i64 end, bint is_binary
) noexcept nogil:
    cdef i64 number
    header.chunk = chunk
    header.code = header.opaque = header.flag = NONE
    header.has_fields = False
    header.all_count = 0
    header.last = MAX_FIELDS
    for number in range(names.count):
        header.fields[number].start = -1
    if is_binary:
        return read_binary(header, names, at, end)
    return read_json(header, names, at, end)

cdef inline bint read_json(RequestHeader* header, FieldNames* names, i64 at, i64 end) noexcept nogil:
    cdef View chunk = header.chunk
    cdef i64 name, name_end
    at = skip_spaces(chunk, at, end)
    if at >= end or read8(chunk, at) != 0x7B:  # {
        return False
    at = skip_spaces(chunk, at + 1, end)
    while at < end and read8(chunk, at) == 0x22:
        name = at + 1
        name_end = plain_end(chunk, name, end)
        at = value_start(chunk, name_end, end)
        if at < 0:
            return False
        at = read_json_value(header, names, name, name_end, at, end)
        if at < 0:
            return False
        at = skip_spaces(chunk, at, end)
        if at >= end:
            return False
        if read8(chunk, at) == 0x7D:  # }
            if header.flag == NONE:
                header.flag = 0
            return skip_spaces(chunk, at + 1, end) == end and header.opaque != NONE
        if read8(chunk, at) != 0x2C:  # ,
            return False
        at = skip_spaces(chunk, at + 1, end)
    return False

# Read one value of a header; its end, or -1 if it is unusual.
cdef inline i64 read_json_value(
    RequestHeader* header, FieldNames* names, i64 name, i64 name_end, i64 at, i64 end
) noexcept nogil:
    cdef View chunk = header.chunk
    cdef i64 first = read8(chunk, at)
    cdef bint is_number = first == 0x2D or 0x30 <= first <= 0x39
    if is_name(chunk, name, name_end, names.ext_fields):
        if first != 0x7B or header.has_fields:
            return -1
        header.has_fields = True
        return read_json_fields(header, names, at, end)
    if is_name(chunk, name, name_end, names.code):
        return read_integer(chunk, at, end, &header.code) if is_number else -1
    if is_name(chunk, name, name_end, names.flag):
        return read_integer(chunk, at, end, &header.flag) if is_number else -1
    if is_name(chunk, name, name_end, names.opaque):
        return read_integer(chunk, at, end, &header.opaque) if is_number else -1
    if names.refused.size and is_name(chunk, name, name_end, names.refused):
        return -1
    if is_number:
        return read_integer(chunk, at, end, NULL)
    if first == 0x22:
        return string_end(chunk, at + 1, end)
    return at + names.null.size if is_at(chunk, at, end, names.null) else -1

# Read a 32-bit integer into an empty place; its end, or -1 if it is anything else.
cdef inline i64 read_integer(View chunk, i64 at, i64 end, i64* place) noexcept nogil:
    cdef i64 start = at
    cdef i64 first, value
    if read8(chunk, at) == 0x2D:
        at += 1
    first = at
    while at < end and 0x30 <= read8(chunk, at) <= 0x39:
        at += 1
    value = parse_number(chunk, start, at)
    if value < -0x7FFFFFFF - 1 or value > 0x7FFFFFFF:  # or NONE
        return -1
    if read8(chunk, first) == 0x30 and (at - first > 1 or first > start):
        return -1  # a leading zero
    if place != NULL:
        if place[0] != NONE:
            return -1  # repeated
        place[0] = value
    return at

cdef inline i64 read_json_fields(
    RequestHeader* header, FieldNames* names, i64 at, i64 end
) noexcept nogil:
    cdef View chunk = header.chunk
    cdef i64 name, name_end, start, number
    at = skip_spaces(chunk, at + 1, end)
    while at < end and read8(chunk, at) == 0x22:
        name = at + 1
        name_end = plain_end(chunk, name, end)
        at = value_start(chunk, name_end, end)
        if at < 0 or read8(chunk, at) != 0x22:
            return -1
        start = at + 1
        number = find_field(header, names, name, name_end)
        if number >= 0 and names.texts[number]:
            at = text_end(chunk, start, end)
        else:
            at = string_end(chunk, start, end)
        if at < 0 or not take_field(header, number, start, at - 1):
            return -1
        if names.lists_all and not list_field(header, name, name_end, start, at - 1):
            return -1
        at = skip_spaces(chunk, at, end)
        if at >= end:
            return -1
        if read8(chunk, at) == 0x7D:
            return at + 1
        if read8(chunk, at) != 0x2C:
            return -1
        at = skip_spaces(chunk, at + 1, end)
    return -1

cdef inline bint read_binary(
    RequestHeader* header, FieldNames* names, i64 at, i64 end
) noexcept nogil:
    cdef View chunk = header.chunk
    cdef i64 name, name_end, size
    if end - at < names.binary_fixed_size + 8:
        return False
    header.code = read16(chunk, at)
    header.opaque = read32_signed(chunk, at + names.binary_opaque)
    header.flag = read32_signed(chunk, at + names.binary_flag)
    at += names.binary_fixed_size
    size = read32(chunk, at)
    at += 4
    if size > end - at - 4 or not is_utf8(chunk, at, at + size):
        return False
    at += size
    if read32(chunk, at) != end - at - 4:
        return False
    at += 4
    while at < end:
        if end - at < 6:
            return False
        name = at + 2
        name_end = name + read16(chunk, at)
        if name_end > end - 4 or name_end - name > names.binary_max_name:
            return False
        size = read32(chunk, name_end)
        at = name_end + 4
        if size > end - at or not is_utf8(chunk, name, name_end) or not is_utf8(chunk, at, at + size):
            return False
        if not take_field(
            header, find_field(header, names, name, name_end), at, at + size
        ):
            return False
        if names.lists_all and not list_field(header, name, name_end, at, at + size):
            return False
        at += size
    return True

# The number that fills a text, or NONE.
cdef inline i64 number_in(View view, Text text) noexcept nogil:
    return parse_number(view, text.start, text.end) if text.start >= 0 else NONE

# The number of a field, or -1 if nobody named it.
cdef inline i64 find_field(
    RequestHeader* header, FieldNames* names, i64 name, i64 name_end
) noexcept nogil:
    cdef i64 number = header.successors[header.last]
    if is_name(header.chunk, name, name_end, names.names[number]):
        return number
    for number in range(names.count):
        if is_name(header.chunk, name, name_end, names.names[number]):
            header.successors[header.last] = number
            return number
    return -1

# Note where a field's value is; False if the field is repeated.
cdef inline bint take_field(RequestHeader* header, i64 number, i64 start, i64 end) noexcept nogil:
    if number < 0:
        return True
    if header.fields[number].start >= 0:
        return False
    header.fields[number].start = start
    header.fields[number].end = end
    header.last = number
    return True

# Note where the name and the value of a field are; False if there are too many.
cdef inline bint list_field(
    RequestHeader* header, i64 name, i64 name_end, i64 start, i64 end
) noexcept nogil:
    cdef i64 number = header.all_count
    if number == MAX_ALL_FIELDS:
        return False
    header.all_names[number].start = name
    header.all_names[number].end = name_end
    header.all_values[number].start = start
    header.all_values[number].end = end
    header.all_count = number + 1
    return True

cdef inline bint is_name(View chunk, i64 at, i64 end, View name) noexcept nogil:
    # Most names have one letter; a call of memcmp costs more than the rest.
    return (
        end - at == name.size
        and read8(chunk, at) == read8(name, 0)
        and (name.size == 1 or is_at(chunk, at, end, name))
    )

# The end after the quote of a string without escapes, or -1.
cdef inline i64 string_end(View chunk, i64 at, i64 end) noexcept nogil:
    at = plain_end(chunk, at, end)
    return at + 1 if at < end and read8(chunk, at) == 0x22 else -1

# The end after the quote of a string with escapes and any characters, or -1. The caller checks the
# escapes when it resolves them.
cdef inline i64 text_end(View chunk, i64 at, i64 end) noexcept nogil:
    cdef i64 byte, size
    while True:
        at = plain_end(chunk, at, end)
        if at >= end:
            return -1
        byte = read8(chunk, at)
        if byte == 0x22:
            return at + 1
        if byte == 0x5C:
            at += 2
            continue
        size = utf8_length(chunk, at, end) if byte >= 0x80 else 0
        if size == 0:
            return -1
        at += size

cdef inline i64 skip_spaces(View chunk, i64 at, i64 end) noexcept nogil:
    cdef i64 byte
    while at < end:
        byte = read8(chunk, at)
        if byte > 0x20 or byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
            break
        at += 1
    return at

# Where the value begins after the quote of a name at `at`, or -1.
cdef inline i64 value_start(View chunk, i64 at, i64 end) noexcept nogil:
    if at >= end or read8(chunk, at) != 0x22:
        return -1
    at = skip_spaces(chunk, at + 1, end)
    if at >= end or read8(chunk, at) != 0x3A:
        return -1
    at = skip_spaces(chunk, at + 1, end)
    return at if at < end else -1
