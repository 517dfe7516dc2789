# Reads and writes of bytes, inlined into every module of the kernel.
#
# A View is a span of memory to read, an Area one to write; both know their size. Each access
# checks its range if the C macro PYROMQ_CHECKED is 1: an access outside reads 0 or writes nothing,
# and `faults()` counts it. The macro is 0 in a normal build, where the checks compile to nothing,
# because every caller compares lengths with the span before it uses them. Tests run the checked
# build of the same source on hostile input, and expect no fault.
#
# All integers are big endian, and signed 64-bit once read.

from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_Size
from libc.string cimport memchr, memcmp, memcpy

cdef extern from *:
    """
    #ifndef PYROMQ_CHECKED
    #define PYROMQ_CHECKED 0
    #endif
    static long long pyromq_faults = 0;

    /* A word whose lowest byte is the first in memory. */
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define pyromq_little_endian(word) __builtin_bswap64(word)
    #else
    #define pyromq_little_endian(word) (word)
    #endif
    /* The first byte of a word whose high bit is set. */
    #define pyromq_first_mark(word) (__builtin_ctzll(word) >> 3)
    """
    const bint CHECKED "PYROMQ_CHECKED"
    const unsigned int LOW_HALF "0xFFFFFFFFu"
    long long pyromq_faults
    unsigned long long pyromq_little_endian(unsigned long long) nogil
    int first_mark "pyromq_first_mark" (unsigned long long) nogil

ctypedef long long i64
ctypedef unsigned long long u64
ctypedef unsigned int u32
ctypedef unsigned char u8

cdef struct View:
    const u8* data
    i64 size

cdef struct Area:
    u8* data
    i64 size


cdef inline bint is_outside(i64 size, i64 at, i64 length) noexcept nogil:
    global pyromq_faults
    if CHECKED and (at < 0 or length < 0 or at > size - length):
        pyromq_faults += 1
        return True
    return False

cdef inline i64 faults() noexcept:
    return pyromq_faults


# Spans

cdef inline View view_of(bytes data) noexcept:
    cdef View view
    view.data = <const u8*> <char*> data
    view.size = len(data)
    return view

# The bytes of any contiguous buffer, until the caller calls PyBuffer_Release. A typed memoryview
# would do the same, and double the size and the build time of every module.
cdef inline View view_of_buffer(object data, Py_buffer* buffer) except *:
    cdef View view
    PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE)
    view.data = <const u8*> buffer.buf
    view.size = buffer.len
    return view

cdef inline Area area_of(bytearray data) noexcept:
    cdef Area area
    area.data = <u8*> PyByteArray_AsString(data)
    area.size = PyByteArray_Size(data)
    return area

cdef inline View read_only(Area area) noexcept nogil:
    cdef View view
    view.data = area.data
    view.size = area.size
    return view

cdef inline bytes bytes_of(Area area, i64 start, i64 end):
    if is_outside(area.size, start, end - start):
        return b""
    return (<char*> area.data)[start:end]


# Reads

cdef inline i64 read8(View view, i64 at) noexcept nogil:
    if is_outside(view.size, at, 1):
        return 0
    return view.data[at]

cdef inline i64 read16(View view, i64 at) noexcept nogil:
    if is_outside(view.size, at, 2):
        return 0
    cdef const u8* data = view.data + at
    return (<u32> data[0] << 8) | data[1]

cdef inline i64 read32(View view, i64 at) noexcept nogil:
    if is_outside(view.size, at, 4):
        return 0
    cdef const u8* data = view.data + at
    return (<u32> data[0] << 24) | (<u32> data[1] << 16) | (<u32> data[2] << 8) | data[3]

cdef inline i64 read32_signed(View view, i64 at) noexcept nogil:
    return <int> <u32> read32(view, at)

cdef inline i64 read64(View view, i64 at) noexcept nogil:
    return <i64> ((<u64> read32(view, at) << 32) | <u64> read32(view, at + 4))

# Eight bytes, the first one lowest, to test them all at once.
cdef inline u64 read_word(View view, i64 at) noexcept nogil:
    cdef u64 word = 0
    if not is_outside(view.size, at, 8):
        memcpy(&word, view.data + at, 8)
    return pyromq_little_endian(word)

# The position of a byte between `at` and `end`, or `end`.
cdef inline i64 find8(View view, i64 at, i64 end, int value) noexcept nogil:
    if at >= end or is_outside(view.size, at, end - at):
        return end
    cdef const u8* found = <const u8*> memchr(view.data + at, value, <size_t> (end - at))
    return end if found == NULL else found - view.data

# Whether the bytes at `at` are those of a text.
cdef inline bint is_at(View view, i64 at, i64 end, View text) noexcept nogil:
    if at < 0 or end - at < text.size or is_outside(view.size, at, text.size):
        return False
    return memcmp(view.data + at, text.data, <size_t> text.size) == 0


# Writes; each returns the position after it.

cdef inline i64 write8(Area area, i64 at, i64 value) noexcept nogil:
    if not is_outside(area.size, at, 1):
        area.data[at] = <u8> (value & 0xFF)
    return at + 1

cdef inline i64 write16(Area area, i64 at, i64 value) noexcept nogil:
    cdef u8* data = area.data + at
    if not is_outside(area.size, at, 2):
        data[0] = <u8> ((value >> 8) & 0xFF)
        data[1] = <u8> (value & 0xFF)
    return at + 2

cdef inline i64 write32(Area area, i64 at, i64 value) noexcept nogil:
    cdef u8* data = area.data + at
    cdef u32 word = <u32> (value & LOW_HALF)
    if not is_outside(area.size, at, 4):
        data[0] = <u8> (word >> 24)
        data[1] = <u8> ((word >> 16) & 0xFF)
        data[2] = <u8> ((word >> 8) & 0xFF)
        data[3] = <u8> (word & 0xFF)
    return at + 4

cdef inline i64 write64(Area area, i64 at, i64 value) noexcept nogil:
    write32(area, at, <i64> (<u64> value >> 32))
    return write32(area, at + 4, value)

cdef inline i64 copy(Area to, i64 at, View source, i64 start, i64 length) noexcept nogil:
    if length > 0 and not is_outside(to.size, at, length) and not is_outside(source.size, start, length):
        memcpy(to.data + at, source.data + start, <size_t> length)
    return at + length

cdef inline i64 write_all(Area to, i64 at, View source) noexcept nogil:
    return copy(to, at, source, 0, source.size)

cdef inline void write_word(Area area, i64 at, u64 word) noexcept nogil:
    word = pyromq_little_endian(word)
    if not is_outside(area.size, at, 8):
        memcpy(area.data + at, &word, 8)

# Memory that other threads read meanwhile

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define pyromq_big_endian32(word) (word)
    #else
    #define pyromq_big_endian32(word) __builtin_bswap32(word)
    #endif
    #define pyromq_store32(place, word) __atomic_store_n((unsigned int *) (place), word, __ATOMIC_RELEASE)
    #define pyromq_prefetch(place) __builtin_prefetch(place)
    """
    u32 pyromq_big_endian32(u32) nogil
    void pyromq_store32(u8* place, u32 word) nogil
    void pyromq_prefetch(const u8* place) nogil

# Write four bytes at an address that is a multiple of four; a reader sees all of them or none.
cdef inline void store32(Area area, i64 at, i64 value) noexcept nogil:
    if not is_outside(area.size, at, 4):
        pyromq_store32(area.data + at, pyromq_big_endian32(<u32> (value & LOW_HALF)))

# Have the processor load a place that is read soon.
cdef inline void prefetch(Area area, i64 at) noexcept nogil:
    if not is_outside(area.size, at, 4):
        pyromq_prefetch(area.data + at)

cdef inline bytes bytes_in(View view, i64 start, i64 end):
    if is_outside(view.size, start, end - start):
        return b""
    return (<const char*> view.data)[start:end]


# Arrays of native integers, by index

cdef inline void put_int(Area area, i64 index, i64 value) noexcept nogil:
    cdef int number = <int> value
    if not is_outside(area.size, 4 * index, 4):
        memcpy(area.data + 4 * index, &number, 4)

cdef inline void put_long(Area area, i64 index, i64 value) noexcept nogil:
    if not is_outside(area.size, 8 * index, 8):
        memcpy(area.data + 8 * index, &value, 8)

cdef inline i64 get_long(View view, i64 index) noexcept nogil:
    cdef i64 value = 0
    if not is_outside(view.size, 8 * index, 8):
        memcpy(&value, view.data + 8 * index, 8)
    return value
