# The messages of a batch request, inlined into the modules of the kernel that read them.
#
# `protocol.message.record` has the byte table. A module passes its positions in an InnerLayout,
# which it fills at import (`fill_inner_layout`).

from pyromq.protocol.kernel.raw cimport View, i64, read16, read32

cdef struct InnerLayout:
    # Without body and properties
    i64 fixed_size
    # Up to the body
    i64 head_size
    i64 body_length


cdef inline int fill_inner_layout(InnerLayout* layout) except -1:
    from pyromq.protocol.message import record

    layout.fixed_size = record.INNER_FIXED_SIZE
    layout.head_size = record.INNER_HEAD_SIZE
    layout.body_length = record.INNER_BODY_LENGTH
    return 0

# The end of the inner message at `at`, or -1 if its lengths contradict each other.
cdef inline i64 inner_end(View view, i64 at, i64 end, const InnerLayout* layout) noexcept nogil:
    cdef i64 size, body_size, own_size
    if end - at < layout.fixed_size:
        return -1
    size = read32(view, at)
    body_size = read32(view, at + layout.body_length)
    if size > end - at or body_size > size - layout.fixed_size:
        return -1
    own_size = read16(view, at + layout.head_size + body_size)
    return at + size if own_size == size - layout.fixed_size - body_size else -1

# The number of messages in a batch, or -1 if one is malformed.
cdef inline i64 batch_count(View view, i64 at, i64 end, const InnerLayout* layout) noexcept nogil:
    cdef i64 count = 0
    while at < end:
        at = inner_end(view, at, end, layout)
        if at < 0:
            return -1
        count += 1
    return count
