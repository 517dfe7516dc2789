# The header of an entry in a raft group's log; `protocol.message.entry` has the byte table.

from pyromq.protocol.kernel.raw cimport Area, i64, write32, write64

# Write the header of an entry with a record of `size` bytes; return its end.
cdef inline i64 write_entry_header(
    Area area, i64 at, i64 index, i64 term, i64 position, i64 size
) noexcept nogil:
    at = write32(area, at, 1)  # magic
    at = write32(area, at, 48 + size)
    at = write64(area, at, index)
    at = write64(area, at, term)
    at = write64(area, at, position)
    at = write32(area, at, 0)  # channel
    at = write32(area, at, 0)  # chainCrc
    at = write32(area, at, 0)  # bodyCrc
    return write32(area, at, size)
