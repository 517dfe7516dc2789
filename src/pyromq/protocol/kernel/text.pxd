# Texts, inlined into the modules of the kernel: JSON strings, UTF-8, Java's hash, decimal numbers.

from pyromq.protocol.kernel.raw cimport (
    Area, View, i64, u32, u64, copy, find8, first_mark, is_at, read8, read_word, write8, write32,
    write_word,
)

cdef extern from *:
    """
    #define PYROMQ_LOW 0x0101010101010101ULL
    #define PYROMQ_HIGH 0x8080808080808080ULL
    /* High bits mark the bytes of a word that are equal to a value, or below it (at most 0x80).
       The first mark is always right; marks after it may be wrong. */
    #define pyromq_zeros(word) (((word) - PYROMQ_LOW) & ~(word) & PYROMQ_HIGH)
    #define pyromq_equal(word, value) pyromq_zeros((word) ^ (PYROMQ_LOW * (value)))
    #define pyromq_below(word, value) (((word) - PYROMQ_LOW * (value)) & ~(word) & PYROMQ_HIGH)
    """
    u64 HIGH_BITS "PYROMQ_HIGH"
    u64 marks_equal "pyromq_equal" (u64 word, int value) nogil
    u64 marks_below "pyromq_below" (u64 word, int value) nogil

cdef enum:
    QUOTE = 0x22
    BACKSLASH = 0x5C
    FIRST_PRINTABLE = 0x20
    FIRST_NON_ASCII = 0x80

# Not a number, not a hash: outside the range of everything that is parsed here.
cdef extern from *:
    i64 NONE "(-0x7FFFFFFFFFFFFFFFLL - 1)"


# The end of the ASCII characters that stand for themselves in a JSON string.
cdef inline i64 plain_end(View view, i64 at, i64 end) noexcept nogil:
    cdef u64 word, marks
    cdef i64 byte
    while end - at >= 8:
        word = read_word(view, at)
        marks = (
            marks_equal(word, QUOTE)
            | marks_equal(word, BACKSLASH)
            | marks_below(word, FIRST_PRINTABLE)
            | (word & HIGH_BITS)
        )
        if marks:
            return at + first_mark(marks)
        at += 8
    while at < end:
        byte = read8(view, at)
        if byte == QUOTE or byte == BACKSLASH or byte < FIRST_PRINTABLE or byte >= FIRST_NON_ASCII:
            break
        at += 1
    return at

# The end of the ASCII bytes from `at` on.
cdef inline i64 ascii_end(View view, i64 at, i64 end) noexcept nogil:
    cdef u64 marks
    while end - at >= 8:
        marks = read_word(view, at) & HIGH_BITS
        if marks:
            return at + first_mark(marks)
        at += 8
    while at < end and read8(view, at) < FIRST_NON_ASCII:
        at += 1
    return at

# The length of the valid UTF-8 sequence at `at`, which does not start with ASCII; 0 if invalid.
cdef inline i64 utf8_length(View view, i64 at, i64 end) noexcept nogil:
    cdef i64 first = read8(view, at)
    cdef i64 length, second, i
    if first < 0xC2 or first > 0xF4:
        return 0
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if end - at < length:
        return 0
    second = read8(view, at + 1)
    if first == 0xE0 and second < 0xA0 or first == 0xED and second > 0x9F:
        return 0  # overlong, or a surrogate
    if first == 0xF0 and second < 0x90 or first == 0xF4 and second > 0x8F:
        return 0  # overlong, or above U+10FFFF
    for i in range(1, length):
        if read8(view, at + i) & 0xC0 != 0x80:
            return 0
    return length

# Whether all bytes are valid UTF-8.
cdef inline bint is_utf8(View view, i64 at, i64 end) noexcept nogil:
    cdef i64 length
    at = ascii_end(view, at, end)
    while at < end:
        length = utf8_length(view, at, end)
        if length == 0:
            return False
        at = ascii_end(view, at + length, end)
    return True

cdef inline i64 code_point(View view, i64 at, i64 length) noexcept nogil:
    cdef i64 first = read8(view, at)
    if length == 2:
        return (first & 0x1F) << 6 | read8(view, at + 1) & 0x3F
    if length == 3:
        return (first & 0x0F) << 12 | (read8(view, at + 1) & 0x3F) << 6 | read8(view, at + 2) & 0x3F
    return (
        (first & 0x07) << 18
        | (read8(view, at + 1) & 0x3F) << 12
        | (read8(view, at + 2) & 0x3F) << 6
        | read8(view, at + 3) & 0x3F
    )

cdef inline i64 write_code_point(Area area, i64 at, i64 code) noexcept nogil:
    if code < 0x80:
        return write8(area, at, code)
    if code < 0x800:
        at = write8(area, at, 0xC0 | code >> 6)
    else:
        if code < 0x10000:
            at = write8(area, at, 0xE0 | code >> 12)
        else:
            at = write8(area, at, 0xF0 | code >> 18)
            at = write8(area, at, 0x80 | code >> 12 & 0x3F)
        at = write8(area, at, 0x80 | code >> 6 & 0x3F)
    return write8(area, at, 0x80 | code & 0x3F)

cdef extern from *:
    u32 POWER_8 "0x94446F01u"  # 31 ** 8 modulo 2 ** 32

# Java's hash of eight ASCII bytes, in multiplications that do not wait for each other.
cdef inline u32 hash_of_eight(u64 word) noexcept nogil:
    cdef u32 first = <u32> (word & 0xFF) * 29791 + <u32> (word >> 8 & 0xFF) * 961
    first += <u32> (word >> 16 & 0xFF) * 31 + <u32> (word >> 24 & 0xFF)
    cdef u32 second = <u32> (word >> 32 & 0xFF) * 29791 + <u32> (word >> 40 & 0xFF) * 961
    second += <u32> (word >> 48 & 0xFF) * 31 + <u32> (word >> 56)
    return first * 923521 + second

# Continue Java's hash of a string with UTF-8 bytes; NONE if they are not valid.
cdef inline i64 continue_java_hash(u32 hash, View view, i64 at, i64 end) noexcept nogil:
    cdef i64 byte, length, code
    cdef u64 word
    while at < end:
        while end - at >= 8:
            word = read_word(view, at)
            if word & HIGH_BITS:
                break
            hash = hash * POWER_8 + hash_of_eight(word)
            at += 8
        if at == end:
            break
        byte = read8(view, at)
        if byte < FIRST_NON_ASCII:
            hash = hash * 31 + <u32> byte
            at += 1
            continue
        length = utf8_length(view, at, end)
        if length == 0:
            return NONE
        code = code_point(view, at, length)
        if code >= 0x10000:  # two UTF-16 code units
            code -= 0x10000
            hash = hash * 31 + <u32> (0xD800 + (code >> 10))
            code = 0xDC00 + (code & 0x3FF)
        hash = hash * 31 + <u32> code
        at += length
    return hash

# Java's hash, signed, as a consume-queue entry stores it; NONE if the text is not valid UTF-8.
cdef inline i64 java_hash(View view, i64 at, i64 end) noexcept nogil:
    cdef i64 hash = continue_java_hash(0, view, at, end)
    return hash if hash == NONE else <int> <u32> hash

# The decimal integer that fills `at` to `end`; NONE if it is anything else or has over 18 digits.
cdef inline i64 parse_number(View view, i64 at, i64 end) noexcept nogil:
    cdef bint negative = at < end and read8(view, at) == 0x2D
    cdef i64 value = 0
    cdef i64 digit
    at += negative
    if at >= end or end - at > 18:
        return NONE
    while at < end:
        digit = read8(view, at) - 0x30
        if digit < 0 or digit > 9:
            return NONE
        value = value * 10 + digit
        at += 1
    return -value if negative else value

# Write a number as decimal text; return its end.
cdef inline i64 write_decimal(Area area, i64 at, i64 value) noexcept nogil:
    cdef u64 rest = <u64> value
    cdef u64 power = 10
    cdef i64 digits = 1
    cdef i64 place
    if value < 0:
        at = write8(area, at, 0x2D)
        rest = 0 - rest
    while digits < 20 and rest >= power:
        digits += 1
        power *= 10
    place = at + digits
    while place > at:
        place -= 1
        write8(area, place, <i64> (0x30 + rest % 10))
        rest //= 10
    return at + digits

# Write the length of a number's text and the text; return its end.
cdef inline i64 write_sized_decimal(Area area, i64 at, i64 value) noexcept nogil:
    cdef i64 end = write_decimal(area, at + 4, value)
    write32(area, at, end - at - 4)
    return end

# The hash of the last property that starts with `tags` (its name and separator) and has a value; 0
# without one, NONE if it is not UTF-8.
cdef inline i64 tags_code_of(View view, i64 at, i64 end, View tags) noexcept nogil:
    cdef i64 following
    cdef i64 start = -1
    cdef i64 stop = -1
    while at < end:
        following = find8(view, at, end, 2)
        if following - at > tags.size and is_at(view, at, following, tags):
            start = at + tags.size
            stop = following
        at = following + 1
    return java_hash(view, start, stop) if start >= 0 else 0

# Eight upper-case hexadecimal digits, for `write_word`.
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
    u64 hex_word "pyromq_hex" (u32 value) nogil

# Write sixteen hexadecimal digits; return their end.
cdef inline i64 write_hex(Area area, i64 at, i64 value) noexcept nogil:
    write_word(area, at, hex_word(<u32> (value >> 32)))
    write_word(area, at + 8, hex_word(<u32> value))
    return at + 16
