# The C types of `raft_entries.py`.

from pyromq.protocol.kernel.raw cimport Area, View, i64

cdef i64 check_all(View data, i64 index, i64 position, i64* term) noexcept nogil
cdef void write_units(View data, Area units) noexcept nogil

# Layouts, set at import from the modules that define them.
cdef i64 MAGIC, HEADER_SIZE, MAX_SIZE, UNIT_SIZE
