# The C types of `sends.py`.

cimport cython

from pyromq.protocol.kernel.inner_messages cimport InnerLayout
from pyromq.protocol.kernel.queue_table cimport Queue, QueueTable
from pyromq.protocol.kernel.raw cimport Area, View, i64, u32
from pyromq.protocol.kernel.request_header cimport Text
from pyromq.protocol.kernel.send_header cimport Properties, SendHeader
from pyromq.protocol.kernel.signatures cimport Signatures

# The message of a single send, or what the messages of a batch share.
cdef struct Message:
    # Of its queue
    i64 number
    i64 sys_flag
    i64 flag
    i64 born_timestamp
    i64 reconsume_times
    bint is_batch

# A message that is in the records, on its way to its queue.
cdef struct Put:
    i64 queue
    i64 physical_offset
    i64 size
    i64 tags_code

# The constant parts of a response header; see `broker.handlers.send_responses`.
cdef struct JsonPieces:
    View before_id
    View before_queue_id
    View before_offset
    View before_opaque
    View end

cdef struct BinaryPieces:
    View before_opaque
    View before_fields_length
    View before_id
    View before_queue_id
    View before_offset
    View end

@cython.final
cdef class Sends:
    # Constants, and the objects that own their bytes
    cdef list kept
    cdef View store_host
    cdef View id_prefix
    cdef View cluster
    cdef JsonPieces json
    cdef BinaryPieces binary
    # Of a response without ids
    cdef i64 response_size
    cdef object batch_properties
    cdef i64 host_flag
    cdef i64 max_record
    cdef i64 max_body
    cdef i64 max_batch_count
    cdef i64 max_batch_size
    cdef QueueTable table
    # Checks each frame, unless it is None
    cdef Signatures guard
    # Scratch
    cdef object records_memory
    cdef Area records
    cdef Area responses
    cdef Area entries
    cdef Put* puts
    cdef i64 records_end
    # This call
    cdef i64 run_number
    cdef View chunk
    cdef View born_host
    cdef i64 head_size
    cdef i64 store_timestamp
    cdef i64 position
    cdef i64 limit
    # Entries of a raft group's log: bytes before each record, and numbers of the first one
    cdef i64 prefix
    cdef i64 entry_index
    cdef i64 entry_term
    cdef i64 put_count
    cdef i64 response_end
    # This frame
    cdef SendHeader header
    cdef Text* fields
    cdef Message message
    cdef Queue* queue

    cdef bint serve(self, i64 at, i64 end)
    cdef bint read_message(self, Text* fields)
    cdef bint is_refused(self, i64 body, i64 end)
    cdef bint send(self, i64 body, i64 end)
    cdef i64 write_properties(self, i64 at, Properties* properties) noexcept
    cdef bint send_batch(self, i64 body, i64 end)
    cdef i64 put_inner(self, i64 at, i64 end, View shared, i64 position, i64 offset) noexcept
    cdef i64 write_head(self, i64 at, i64 size, i64 crc, i64 flag, i64 offset, i64 physical, i64 body_size) noexcept
    cdef i64 write_topic(self, i64 at) noexcept
    cdef i64 write_entry(self, i64 at, i64 position, i64 size) noexcept
    cdef bint has_room(self, i64 count, i64 size) noexcept
    cdef void add_put(self, i64 physical, i64 size, i64 tags_code) noexcept
    cdef void commit(self, i64 count) noexcept
    cdef void respond(self, i64 first, i64 count, i64 offset) noexcept
    cdef void respond_json(self, i64 first, i64 count, i64 offset) noexcept
    cdef void respond_binary(self, i64 first, i64 count, i64 offset) noexcept
    cdef i64 write_ids(self, i64 at, i64 first, i64 count) noexcept
    cdef list collect(self)
    cdef View keep(self, bytes data)


# Layouts and names, set at import from the modules that define them.
cdef i64 MAGIC, CRC_MASK, HEAD_SIZE, HOST_SIZE_V4
cdef InnerLayout INNER
cdef i64 INNER_FLAG
cdef i64 ENTRY_SIZE, MAX_PROPERTIES, LENGTH_SIZE
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, RESPONSE, ONEWAY
cdef i64 SEND, SEND_V2, SEND_BATCH, BORN_HOST_V6, SPECIAL_FLAGS
cdef i64 MAX_FRAME
cdef i64 ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE
cdef View TAGS, TRUE, FALSE
cdef i64 ID_DIGITS
