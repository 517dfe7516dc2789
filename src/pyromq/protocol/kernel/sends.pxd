# The C types of `sends.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u32, u64, u8

# Where a value is in the chunk; `start` is -1 without one.
cdef struct Text:
    i64 start
    i64 end

# The header fields of a send, in either version of the request.
cdef enum:
    TOPIC
    QUEUE_ID
    SYS_FLAG
    BORN_TIMESTAMP
    FLAG
    PROPERTIES
    RECONSUME_TIMES
    BATCH
    FIELD_COUNT

cdef struct Header:
    i64 code
    i64 opaque
    i64 flag
    bint has_fields
    bint is_binary
    # Of SEND_MESSAGE, and of the other two, which have short names.
    Text long_fields[FIELD_COUNT]
    Text short_fields[FIELD_COUNT]

# The message of a single send, or what the messages of a batch share.
cdef struct Message:
    i64 queue
    i64 body
    i64 body_size
    i64 sys_flag
    i64 flag
    i64 born_timestamp
    i64 reconsume_times

# Properties in the text buffer, without the span from `cut` to `after_cut`.
cdef struct Properties:
    i64 size
    i64 cut
    i64 after_cut
    # How many bytes a record has, with the cluster, and whether that needs a separator.
    i64 record_size
    bint is_joined
    i64 tags_code

# A message that is in the records, on its way to its queue.
cdef struct Put:
    i64 queue
    i64 physical_offset
    i64 size
    i64 tags_code

cdef struct Queue:
    const u8* topic
    i64 topic_size
    i64 queue_id
    bint is_known
    # The call of `run` that the following belong to.
    i64 run
    i64 next_offset
    i64 room
    # Its messages in this call, and where the next entry goes.
    i64 count
    i64 entry

# The constant parts of a response, in the order of the wire.
cdef struct Pieces:
    View before_id
    View before_queue_id
    View before_offset
    View before_opaque
    View end

@cython.final
cdef class Sends:
    # Constants, and the objects that own their bytes
    cdef list kept
    cdef View store_host
    cdef View id_prefix
    cdef View cluster
    cdef Pieces json
    cdef Pieces binary
    cdef object batch_properties
    cdef i64 host_flag
    cdef i64 max_record
    cdef i64 max_body
    cdef i64 max_batch_count
    cdef i64 max_batch_size
    cdef i64 max_frame
    # The queues by number, and a hash table of number + 1
    cdef list queue_objects
    cdef Queue* queues
    cdef i64 queue_capacity
    cdef u32* slots
    cdef i64 slot_mask
    # Scratch
    cdef object records_memory
    cdef Area records
    cdef Area text
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
    cdef i64 put_count
    cdef i64 response_end
    # This frame
    cdef Header header
    cdef Message message
    cdef i64 text_size
    cdef bint has_text

    cdef bint serve(self, i64 at, i64 end)
    cdef bint parse_json(self, i64 at, i64 end) noexcept
    cdef i64 parse_value(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 parse_integer(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 parse_fields(self, i64 at, i64 end) noexcept
    cdef i64 parse_field(self, i64 name, i64 name_end, i64 at, i64 end) noexcept
    cdef i64 unescape(self, i64 at, i64 end) noexcept
    cdef i64 unescape_one(self, i64 at, i64 end) noexcept
    cdef bint parse_binary(self, i64 at, i64 end) noexcept
    cdef bint parse_binary_fields(self, i64 at, i64 end) noexcept
    cdef bint take_binary_field(self, Text* field, i64 at, i64 end) noexcept
    cdef Text* find_field(self, i64 name, i64 name_end) noexcept
    cdef bint read_message(self, Text* fields, bint is_batch)
    cdef i64 find_queue(self, View view, i64 at, i64 end, i64 queue_id) noexcept
    cdef bint prepare_queue(self, i64 number)
    cdef bint send(self, i64 body, i64 end)
    cdef bint read_properties(self, Properties* properties) noexcept
    cdef bint read_property(self, View text, i64 start, i64 end, Properties* properties) noexcept
    cdef i64 write_properties(self, i64 at, Properties* properties) noexcept
    cdef bint send_batch(self, i64 body, i64 end)
    cdef i64 put_inner(self, i64 at, i64 end, View shared, i64 physical, i64 offset) noexcept
    cdef i64 write_head(self, i64 at, i64 size, i64 crc, i64 flag, i64 offset, i64 physical, i64 body_size) noexcept
    cdef i64 write_topic(self, i64 at) noexcept
    cdef bint has_room(self, i64 count, i64 size) noexcept
    cdef void add_put(self, i64 physical, i64 size, i64 tags_code) noexcept
    cdef void commit(self, i64 count) noexcept
    cdef void respond(self, i64 first, i64 count, i64 offset) noexcept
    cdef void respond_json(self, i64 first, i64 count, i64 offset) noexcept
    cdef void respond_binary(self, i64 first, i64 count, i64 offset) noexcept
    cdef i64 write_ids(self, i64 at, i64 first, i64 count) noexcept
    cdef list collect(self)
    cdef void grow(self)
    cdef void insert(self, i64 number) noexcept
    cdef View keep(self, bytes data)

cdef i64 after_spaces(View view, i64 at, i64 end) noexcept
cdef i64 after_colon(View view, i64 at, i64 end) noexcept
cdef i64 number_in(View view, Text text) noexcept
cdef i64 hex_digits(View view, i64 at, i64 end) noexcept
cdef u64 hash_of(View view, i64 at, i64 end, i64 queue_id) noexcept
cdef i64 batch_count(View view, i64 at, i64 end) noexcept
cdef i64 inner_end(View view, i64 at, i64 end) noexcept
cdef i64 tags_code_of(View view, i64 at, i64 end) noexcept
cdef i64 write_hex(Area area, i64 at, i64 value) noexcept
cdef i64 write_sized_decimal(Area area, i64 at, i64 value) noexcept

# Layouts and names, set at import from the modules that define them.
cdef i64 MAGIC, CRC_MASK, HEAD_SIZE, MORE_FOR_V6, HOST_SIZE_V4
cdef i64 INNER_HEAD_SIZE, INNER_FIXED_SIZE, INNER_FLAG, INNER_BODY_LENGTH
cdef i64 ENTRY_SIZE, MAX_PROPERTIES, LENGTH_SIZE
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, RESPONSE, ONEWAY
cdef i64 SEND, SEND_V2, SEND_BATCH, BORN_HOST_V6, SPECIAL_FLAGS
cdef i64 BINARY_FIXED_SIZE, BINARY_OPAQUE, BINARY_FLAG, BINARY_EXT_LENGTH
cdef View TAGS, WAIT, WAIT_TRUE, DELAY, TRAN_MSG, CLUSTER
cdef View CODE_NAME, FLAG_NAME, OPAQUE_NAME, EXT_FIELDS_NAME, TRUE, FALSE, NULL_TEXT
cdef View LONG_NAMES[FIELD_COUNT]
cdef int SHORT_NAMES[256]
