# The C types of `received.py`.

from pyromq.protocol.kernel.raw cimport View, i64
from pyromq.protocol.kernel.records cimport Layout, Record as Place

cdef class Record:
    cdef public object topic
    cdef public object queue
    cdef public i64 queue_offset
    cdef public i64 body_size
    # Bytes until the first access, then a dictionary
    cdef public object _all_properties
    cdef public object _properties
    # None while it is not set
    cdef object readable_body
    cdef object unreadable_body
    cdef bytes head
    # Failed deliveries since the record was decoded
    cdef i64 more_failures

    cdef i64 after_born_host(self, i64 at) noexcept
    cdef i64 after_store_host(self, i64 at) noexcept

# Layouts, set at import from the modules that define them.
cdef Layout LAYOUT
cdef i64 HEAD_SIZE, MORE_FOR_V6, HOST_SIZE_V4
cdef i64 COMPRESSED, BORN_HOST_V6, STORE_HOST_V6
cdef i64 FLAG, QUEUE_OFFSET, PHYSICAL_OFFSET, SYS_FLAG, BORN_TIMESTAMP, BORN_HOST
cdef i64 STORE_TIMESTAMP, STORE_HOST, RECONSUME_TIMES, PREPARED_TRANSACTION_OFFSET
cdef bytes EMPTY_HEAD
