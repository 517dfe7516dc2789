# The C types of `pulls.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u8
from pyromq.protocol.kernel.request_header cimport FieldNames, RequestHeader, Text

# The fields of a pull, in the order of `pull_fields.PullFields`: first those that make its plan.
cdef enum:
    KEY_COUNT = 10
    QUEUE_OFFSET = 10
    COMMIT_OFFSET = 11
    FIELD_COUNT = 12

# A run of records that follow one another in the log.
cdef struct Span:
    i64 start
    i64 end

# The records that a pull gets.
cdef struct Selection:
    i64 count
    i64 size
    # Entries up to the last one that was examined
    i64 seen
    i64 span_count
    # Physical offset in the first entry, and where the log segment of the records begins and ends
    i64 first
    i64 begin
    i64 end

# The constant parts of a response header; see `broker.handlers.pull_serving`.
cdef struct JsonPieces:
    View before_broker
    View before_next
    View before_min
    View before_max
    View before_opaque
    View end

cdef struct BinaryPieces:
    View before_opaque
    View before_fields_length
    View before_broker
    View before_next
    View before_min
    View before_max
    View end

@cython.final
cdef class Plan:
    cdef object owner
    cdef tuple queue_key
    cdef i64 max_count
    # Entries to examine at most
    cdef i64 max_examined
    cdef bint commits
    cdef i64 broker_id
    # Accepted tags codes in ascending order, 8 bytes each; None accepts every message.
    cdef bytes codes
    cdef View codes_view
    # Served since the last `take_counts`
    cdef i64 pulls
    cdef i64 messages
    cdef i64 bytes
    # The offset after the last pull
    cdef i64 next_offset

@cython.final
cdef class Pulls:
    # Constants, and the objects that own their bytes
    cdef list kept
    cdef JsonPieces json
    cdef BinaryPieces binary
    cdef i64 max_bytes
    cdef i64 max_cold
    cdef i64 warm_bytes
    cdef i64 warm_entries
    cdef i64 max_span
    # Parts of the store, and what to call
    cdef dict queues
    cdef object log
    cdef object watermarks
    cdef object unsealed
    cdef object is_in_memory
    cdef object commit
    # Plans with served pulls that `take_counts` has not returned
    cdef list counted
    # Plans by their packed fields
    cdef dict plans
    # Scratch
    cdef Area text
    cdef Span* spans
    cdef Py_buffer buffer
    # This frame
    cdef RequestHeader header
    cdef bint is_binary
    cdef i64 log_base
    cdef i64 log_segment_size

    cdef bytes serve(self, View chunk, i64 at, i64 end, object connection)
    cdef Plan find_plan(self, View chunk)
    cdef bytes read(self, Plan plan, object queue, i64 offset, Selection* selection)
    cdef bint examine(self, Plan plan, object queue, i64 offset, i64 behind, i64 written, Selection* selection)
    cdef bint select(self, Plan plan, View entries, i64 written, Selection* selection) noexcept
    cdef bint add_record(self, i64 physical, i64 size, i64 written, Selection* selection) noexcept
    cdef bytes respond(self, Plan plan, object queue, i64 next_offset, object file, Selection* selection)
    cdef i64 write_json(self, i64 broker_id, i64 next_offset, i64 min_offset, i64 max_offset) noexcept
    cdef i64 write_binary(self, i64 broker_id, i64 next_offset, i64 min_offset, i64 max_offset) noexcept
    cdef bint gather(self, Area response, i64 at, View log, i64 base, i64 span_count) noexcept
    cdef View keep(self, bytes data)

cdef object file_at(object segments, i64 position)
cdef bint accepts(View codes, i64 code) noexcept

# Layouts and names, set at import from the modules that define them.
cdef i64 ENTRY_SIZE, ENTRY_RECORD_SIZE, ENTRY_CODE, MAX_EXTENSION_ADDRESS
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, MAX_FRAME, RESPONSE, ONEWAY
cdef i64 PULL, LITE_PULL
cdef i64 MAX_RECORDS, TEXT_SIZE, NUMBERS_SIZE
cdef FieldNames NAMES
