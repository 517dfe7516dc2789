# The C types of `signatures.py`.

cimport cython

from pyromq.protocol.kernel.raw cimport Area, View, i64, u8
from pyromq.protocol.kernel.request_header cimport FieldNames, RequestHeader, Text
from pyromq.protocol.kernel.send_header cimport SendHeader

# OpenSSL's SHA1_Init and SHA1_Update.
ctypedef int (*InitHash)(void* state) noexcept nogil
ctypedef int (*UpdateHash)(void* state, const void* data, size_t size) noexcept nogil

# The fields of a pull
cdef enum:
    TOPIC
    GROUP
    FIELD_COUNT

cdef enum:
    # At least of OpenSSL's SHA_CTX, which has 96 bytes; its first five words are the hash
    STATE_SIZE = 128
    DIGEST_SIZE = 20
    BLOCK_SIZE = 64
    # As many as `request_header` lists
    MAX_ORDER = 64

# The start of an HMAC with an account's secret, and of its outer hash.
@cython.final
cdef class Account:
    cdef bytes key
    cdef View key_view
    cdef u8 inner[STATE_SIZE]
    cdef u8 outer[STATE_SIZE]

@cython.final
cdef class Signatures:
    cdef InitHash init_hash
    cdef UpdateHash update_hash
    # Milliseconds that a send may be old, or early; 0 for any time
    cdef i64 max_age
    # Accounts by their access keys, and the one of the last frame
    cdef dict accounts
    cdef Account last
    # Packed requests that were allowed, and the one of the last frame
    cdef set allowed
    cdef bytes allowed_request
    cdef Account allowed_account
    cdef i64 allowed_code
    cdef View allowed_topic
    cdef View allowed_group
    cdef readonly bint is_whole
    # Scratch
    cdef list kept
    cdef Area content
    cdef Area text
    # The order of the fields of the last frame, and where two of them are in it; -1 without
    cdef i64 order[MAX_ORDER]
    cdef i64 order_size
    cdef i64 access_key_at
    cdef i64 signature_at
    # A pull
    cdef RequestHeader header

    cdef bint accepts_send(
        self, SendHeader header, Text topic, Text properties, i64 distance, i64 body, i64 end
    )
    cdef bint accepts_pull(self, View chunk, i64 at, i64 end)
    cdef bint accepts(
        self, RequestHeader* header, Text topic, Text group, Text properties, View text, i64 body, i64 end
    )
    cdef bint sort(self, RequestHeader* header) noexcept
    cdef bint is_sorted(self, RequestHeader* header) noexcept
    cdef i64 place_of(self, RequestHeader* header, View name) noexcept
    cdef bint find_account(self, View chunk, Text key)
    cdef bint is_allowed(self, View chunk, i64 code, Text key, Text topic, Text group)
    cdef i64 pack(self, View chunk, i64 at, Text field) noexcept
    cdef i64 gather(self, RequestHeader* header, Text properties, View text) noexcept
    cdef bint is_signed(self, View chunk, Text given, i64 size) noexcept
    cdef i64 pad(self, i64 size, i64 total) noexcept
    cdef void write_digest(self, u8* state) noexcept

cdef i64 compare(View chunk, Text left, Text right) noexcept
cdef bint is_same(View chunk, Text field, View text) noexcept
cdef bint has_name(RequestHeader* header, i64 number, View name) noexcept

# Names and layouts, set at import from the modules that define them.
cdef FieldNames NAMES
cdef View ACCESS_KEY, SIGNATURE
cdef i64 PREFIX_SIZE, TOTAL_SIZE, HEADER_LENGTH_MASK, MAX_FRAME
cdef i64 PULL, LITE_PULL, MAX_VALUES, MAX_BODY
cdef u8 BASE64[64]
