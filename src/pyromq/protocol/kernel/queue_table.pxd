# The C types of `queue_table.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport View, i64, u32, u64

cdef struct Queue:
    View topic
    i64 queue_id
    # The run that the following belong to.
    i64 run
    i64 next_offset
    i64 room
    # Its messages in this run, and where the next entry goes.
    i64 count
    i64 entry

@cython.final
cdef class QueueTable:
    # By number: the objects that own the queues, None if removed; their topics; their state.
    cdef list owners
    cdef list topics
    cdef Queue* queues
    cdef i64 capacity
    # Numbers + 1 by hash
    cdef u32* slots
    cdef i64 slot_mask

    cdef add(self, bytes topic, i64 queue_id, object owner)
    cdef remove(self, bytes topic, i64 queue_id)
    cdef i64 find(self, View view, i64 at, i64 end, i64 queue_id) noexcept
    cdef bint prepare(self, i64 number, i64 run)
    cdef grow(self)
    cdef void insert(self, i64 number) noexcept

cdef u64 hash_of(View view, i64 at, i64 end, i64 queue_id) noexcept
