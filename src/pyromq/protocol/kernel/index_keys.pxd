# The C types of `index_keys.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u32, u8
from pyromq.protocol.kernel.records cimport Layout, Record

# A key on its way to an index file.
cdef struct Key:
    i64 offset
    i64 timestamp
    u32 hash
    # Its slot in the file that it goes to.
    u32 slot

cdef struct Found:
    i64 unique
    i64 unique_end
    i64 keys
    i64 keys_end

@cython.final
cdef class IndexKeys:
    cdef Py_buffer log_buffer
    cdef Py_buffer file_buffer
    # Scratch: the keys, their packed entries, and the rows + 1 of the newest key of each slot
    cdef Key* keys
    cdef Area entries
    cdef u32* rows
    # The last call of `read`
    cdef View log
    cdef i64 end_offset
    cdef i64 prefix
    cdef i64 position
    cdef i64 count
    cdef i64 record_count
    cdef i64 odd_size
    cdef bint is_last_without
    cdef bint is_full
    # The topic of the last record with keys, and the hash of `topic#`
    cdef View topic
    cdef u32 topic_hash
    # The index file that gets entries
    cdef Area file
    cdef i64 slots_at
    cdef i64 slot_count
    cdef i64 new_slots

    cdef void read_records(self) noexcept nogil
    cdef bint add_record(self, Record* record) noexcept nogil
    cdef bint hash_topic(self, Record* record) noexcept nogil
    cdef bint add_key(self, Record* record, i64 offset, i64 at, i64 end) noexcept nogil
    cdef bint open_file(self, object file, i64 slots_at, i64 slot_count, i64 first, i64 count, int flags) except -1
    cdef void link_all(self, i64 first, i64 count, i64 number, i64 begin) noexcept nogil
    cdef i64 previous_of(self, i64 row, i64 mask, i64 number) noexcept nogil
    cdef void enter_all(self, i64 first, i64 count, i64 number) noexcept nogil

cdef void find_keys(View view, i64 at, i64 end, Found* found) noexcept nogil
cdef i64 seconds_between(i64 begin, i64 timestamp) noexcept nogil

# Layouts and names, set at import from the modules that define them.
cdef Layout LAYOUT
cdef i64 MAX_KEYS, ROWS_SIZE, AHEAD, MIN_BYTES_WITHOUT_GIL, MIN_KEYS_WITHOUT_GIL
cdef i64 TRANSACTION_MASK, TRANSACTION_ROLLBACK, ENTRY_SIZE, SLOT_SIZE
cdef View UNIQUE, KEYS
cdef i64 FIRST_OF_UNIQUE, FIRST_OF_KEYS
