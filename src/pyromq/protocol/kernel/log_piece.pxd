# The C types of `log_piece.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u32, u64, u8
from pyromq.protocol.kernel.records cimport Layout, Record

# A record that consumers see, on its way to its queue.
cdef struct Row:
    i64 start
    i64 size
    i64 queue_offset
    i64 tags_code
    i64 queue

cdef struct Queue:
    View topic
    i64 queue_id
    # Its records in this piece, where the next one goes, and the queue offset it should have.
    i64 count
    i64 next_row
    i64 next_offset
    bint is_consecutive

@cython.final
cdef class PieceExaminer:
    cdef Py_buffer buffer
    # Scratch
    cdef i64* starts
    cdef Row* rows
    cdef Queue* queues
    # Numbers of queues + 1 by hash
    cdef u32* slots
    cdef i64* offsets
    cdef Area entries
    # This call
    cdef View data
    cdef i64 base
    cdef bint check_crc
    cdef i64 in_segment
    cdef i64 prefix
    cdef i64 position
    cdef i64 record_count
    cdef i64 row_count
    cdef i64 queue_count
    cdef bint is_bad
    cdef bint is_odd

    cdef void examine_all(self) noexcept nogil
    cdef bint is_valid(self, Record* record) noexcept nogil
    cdef bint has_lost_sector(self, i64 at, i64 end) noexcept nogil
    cdef bint add_row(self, Record* record) noexcept nogil
    cdef i64 find_queue(self, i64 topic, i64 topic_end, i64 queue_id) noexcept nogil
    cdef void group(self) noexcept nogil
    cdef list collect(self)

cdef bytes packed(i64* numbers, i64 count)
cdef u64 hash_of(View view, i64 at, i64 end, i64 queue_id) noexcept nogil

# Layouts and names, set at import from the modules that define them.
cdef Layout LAYOUT
cdef i64 MAX_RECORDS, MAX_QUEUES, SLOTS_SIZE, SECTOR_SIZE
cdef i64 CRC_MASK, TRANSACTION_MASK, TRANSACTION_NOT, TRANSACTION_COMMIT, ENTRY_SIZE
cdef View TAGS
