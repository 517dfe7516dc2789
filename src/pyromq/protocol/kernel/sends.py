# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Plain sends: frames in; records, consume-queue entries and responses out, a chunk at a time.

A send is plain if it is a SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE with a JSON or binary
header, for a queue that the caller has added, without anything that the broker must act upon: no
delay, transaction or foreign CLUSTER, no number out of range, no odd JSON. `Sends.run` serves all
plain sends at the head of a chunk and stops at the first frame that is anything else, or for which
there is no room; that frame is for the Python code (`broker.handlers.send`).

A frame counts only when it is complete: position, offsets and ends of the scratch buffers move
last. The results are the bytes that the Python code would have made.

The caller owns the log: it says where the next record goes and how much room there is, and writes
the records before it calls `reset`. A queue is any object with `next_offset` and `room`.
Not thread-safe.
"""

import cython
from cython.cimports.libc.stdlib import calloc, free, realloc
from cython.cimports.pyromq.protocol.kernel.checksum import crc32, fill_crc_tables
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    bytes_of,
    copy,
    faults,
    find8,
    is_at,
    read8,
    read16,
    read32,
    read32_signed,
    read_only,
    view_of,
    write8,
    write16,
    write32,
    write64,
    write_all,
)
from cython.cimports.pyromq.protocol.kernel.text import (
    NONE,
    is_utf8,
    java_hash,
    parse_number,
    plain_end,
    utf8_length,
    write_code_point,
    write_decimal,
)

from pyromq.protocol.message import properties as names
from pyromq.protocol.message import record, sysflag, units
from pyromq.protocol.message.crc import CRC_MASK as _CRC_MASK
from pyromq.protocol.message.message_id import HOST_SIZE_V4 as _HOST_SIZE_V4
from pyromq.protocol.message.message_id import HOST_SIZE_V6 as _HOST_SIZE_V6
from pyromq.protocol.wire import frame, header_binary, send_fields
from pyromq.protocol.wire.codes import RequestCode

fill_crc_tables()

MAGIC = record.MESSAGE_MAGIC
CRC_MASK = _CRC_MASK
HEAD_SIZE = record.HEAD_SIZE_V4
HOST_SIZE_V4 = _HOST_SIZE_V4
MORE_FOR_V6 = _HOST_SIZE_V6 - _HOST_SIZE_V4
INNER_HEAD_SIZE = record.INNER_HEAD_SIZE
INNER_FIXED_SIZE = record.INNER_FIXED_SIZE
INNER_BODY_LENGTH = record.INNER_BODY_LENGTH
INNER_FLAG = record.INNER_BODY_LENGTH - 4
LENGTH_SIZE = record.PROPERTIES_LENGTH.size
ENTRY_SIZE = units.CONSUME_QUEUE_ENTRY_SIZE
MAX_PROPERTIES = names.MAX_PROPERTIES
PREFIX_SIZE = frame.PREFIX_SIZE
TOTAL_SIZE = frame.TOTAL_SIZE
HEADER_LENGTH_MASK = frame.HEADER_LENGTH_MASK
RESPONSE = frame.FLAG_RESPONSE
ONEWAY = frame.FLAG_ONEWAY
SEND = RequestCode.SEND_MESSAGE
SEND_V2 = RequestCode.SEND_MESSAGE_V2
SEND_BATCH = RequestCode.SEND_BATCH_MESSAGE
BORN_HOST_V6 = sysflag.BORN_HOST_V6
SPECIAL_FLAGS = sysflag.TRANSACTION_MASK | sysflag.HOST_MASK
BINARY_OPAQUE = header_binary.OPAQUE_AT
BINARY_FLAG = header_binary.FLAG_AT
BINARY_FIXED_SIZE = header_binary.FIXED_SIZE
BINARY_EXT_LENGTH = header_binary.FIXED_SIZE + 4  # behind an empty remark

# The owners of the bytes of module-level views.
_texts: list = []


def _view(text: str):
    encoded = text.encode()
    _texts.append(encoded)
    return encoded


TAGS = view_of(_view(names.TAGS_START))
WAIT = view_of(_view(names.WAIT_START))
WAIT_TRUE = view_of(_view(names.WAIT_TRUE))
DELAY = view_of(_view(names.DELAY_START))
TRAN_MSG = view_of(_view(names.TRAN_MSG_START))
CLUSTER = view_of(_view(names.CLUSTER_START))
CODE_NAME = view_of(_view("code"))
FLAG_NAME = view_of(_view("flag"))
OPAQUE_NAME = view_of(_view("opaque"))
EXT_FIELDS_NAME = view_of(_view("extFields"))
TRUE = view_of(_view("true"))
FALSE = view_of(_view("false"))
NULL_TEXT = view_of(_view("null"))

for _number in range(256):
    SHORT_NAMES[_number] = FIELD_COUNT
for _number, _name in enumerate(send_fields.SHORT_NAMES):
    SHORT_NAMES[ord(_name)] = _number
for _number, _name in enumerate(send_fields.LONG_NAMES):
    LONG_NAMES[_number] = view_of(_view(_name))

RECORDS_SIZE = 4 << 20
RESPONSES_SIZE = 1 << 20
#: Messages of one call.
MAX_PUTS = 1 << 15


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class Sends:
    """The plain sends of a broker: its queues, settings and scratch buffers."""

    def __init__(
        self,
        store_host: bytes,
        host_flag: int,
        id_prefix: bytes,
        cluster: bytes,
        json: tuple,
        binary: tuple,
        batch_properties: object,
        max_record: int,
        max_body: int,
        max_batch_count: int,
        max_batch_size: int,
        max_frame: int,
    ) -> None:
        self.kept = []
        self.store_host = self.keep(store_host)
        self.host_flag = host_flag
        self.id_prefix = self.keep(id_prefix)
        self.cluster = self.keep(cluster)
        self.json.before_id = self.keep(json[0])
        self.json.before_queue_id = self.keep(json[1])
        self.json.before_offset = self.keep(json[2])
        self.json.before_opaque = self.keep(json[3])
        self.json.end = self.keep(json[4])
        self.binary.before_id = self.keep(binary[0])
        self.binary.before_queue_id = self.keep(binary[1])
        self.binary.before_offset = self.keep(binary[2])
        self.binary.end = self.keep(binary[3])
        self.batch_properties = batch_properties
        self.max_record = max_record
        self.max_body = max_body
        self.max_batch_count = min(max_batch_count, MAX_PUTS)
        self.max_batch_size = max_batch_size
        self.max_frame = max_frame
        buffers = [bytearray(size) for size in (
            RECORDS_SIZE, MAX_PROPERTIES, RESPONSES_SIZE, MAX_PUTS * ENTRY_SIZE
        )]
        self.kept.append(buffers)
        self.records = area_of(buffers[0])
        self.text = area_of(buffers[1])
        self.responses = area_of(buffers[2])
        self.entries = area_of(buffers[3])
        self.records_memory = memoryview(buffers[0])
        self.queue_objects = []
        self.puts = cython.cast(cython.pointer(Put), calloc(MAX_PUTS, cython.sizeof(Put)))
        self.grow()

    def __dealloc__(self):
        free(self.puts)
        free(self.queues)
        free(self.slots)

    # Queues

    def add_queue(self, topic: bytes, queue_id: int, queue: object) -> None:
        """Serve sends to a queue from now on."""
        name = view_of(topic)
        number = self.find_queue(name, 0, name.size, queue_id)
        if number < 0:
            number = len(self.queue_objects)
            if number == self.queue_capacity:
                self.grow()
            self.queue_objects.append(None)
            stored = self.keep(topic)
            self.queues[number].topic = stored.data
            self.queues[number].topic_size = stored.size
            self.queues[number].queue_id = queue_id
            self.queues[number].run = 0
            self.insert(number)
        self.queue_objects[number] = queue

    def remove_queue(self, topic: bytes, queue_id: int) -> None:
        """Leave sends to a queue to the Python code."""
        name = view_of(topic)
        number = self.find_queue(name, 0, name.size, queue_id)
        if number >= 0:
            self.queue_objects[number] = None

    # A chunk

    def reset(self) -> None:
        """Reuse the scratch buffer: the records of earlier calls are in the log."""
        self.records_end = 0

    def run(
        self,
        chunk: bytes,
        start: int,
        position: int,
        limit: int,
        store_timestamp: int,
        born_host: bytes,
    ) -> tuple:
        """Serve the plain sends from `start` on.

        The first record goes to physical offset `position`, no record may end above `limit`.
        Return the end of the last frame served; the records, valid until `reset`; a list of each
        queue with its packed entries and their number; and the responses.
        """
        self.run_number += 1
        self.chunk = view_of(chunk)
        self.born_host = view_of(born_host)
        self.head_size = HEAD_SIZE + self.born_host.size + self.store_host.size - 2 * HOST_SIZE_V4
        self.store_timestamp = store_timestamp
        self.position = position
        self.limit = limit
        self.put_count = 0
        self.response_end = 0
        first_record = self.records_end
        at: cython.longlong = start
        while self.chunk.size - at >= PREFIX_SIZE:
            end = at + TOTAL_SIZE + read32(self.chunk, at)
            if end > self.chunk.size or end - at > self.max_frame or not self.serve(at, end):
                break
            at = end
        if not self.put_count:
            return at, b"", [], b""
        return (
            at,
            self.records_memory[first_record : self.records_end],
            self.collect(),
            bytes_of(self.responses, 0, self.response_end),
        )

    def serve(self, at, end):
        """Serve one whole frame; return False, and change nothing that counts, if not plain."""
        word = read32(self.chunk, at + TOTAL_SIZE)
        body = at + PREFIX_SIZE + (word & HEADER_LENGTH_MASK)
        encoding = word >> 24
        if body > end or encoding > 1:
            return False
        self.header.is_binary = encoding == 1
        self.text_size = 0
        self.has_text = False
        for number in range(FIELD_COUNT):
            self.header.long_fields[number].start = -1
            self.header.short_fields[number].start = -1
        at += PREFIX_SIZE
        if not (self.parse_binary(at, body) if encoding else self.parse_json(at, body)):
            return False
        if self.header.flag & RESPONSE:
            return False
        if self.header.code == SEND_V2:
            return self.read_message(self.header.short_fields, False) and self.send(body, end)
        if self.header.code == SEND_BATCH:
            return self.read_message(self.header.short_fields, True) and self.send_batch(body, end)
        if self.header.code == SEND:
            return self.read_message(self.header.long_fields, False) and self.send(body, end)
        return False

    # JSON headers

    def parse_json(self, at, end):
        """Read a header; return False unless it is plain JSON that orjson would accept."""
        self.header.code = NONE
        self.header.opaque = NONE
        self.header.flag = NONE
        self.header.has_fields = False
        at = after_spaces(self.chunk, at, end)
        if at >= end or read8(self.chunk, at) != 0x7B:  # {
            return False
        at = after_spaces(self.chunk, at + 1, end)
        while at < end and read8(self.chunk, at) == 0x22:
            name = at + 1
            name_end = plain_end(self.chunk, name, end)
            at = after_colon(self.chunk, name_end, end)
            if at < 0:
                return False
            at = self.parse_value(name, name_end, at, end)
            if at < 0:
                return False
            at = after_spaces(self.chunk, at, end)
            if at >= end:
                return False
            if read8(self.chunk, at) == 0x7D:  # }
                if self.header.flag == NONE:
                    self.header.flag = 0
                return after_spaces(self.chunk, at + 1, end) == end and self.header.opaque != NONE
            if read8(self.chunk, at) != 0x2C:  # ,
                return False
            at = after_spaces(self.chunk, at + 1, end)
        return False

    def parse_value(self, name, name_end, at, end):
        """Read one value of a header; return its end, or -1 if it is unusual."""
        first = read8(self.chunk, at)
        if first == 0x22:
            at = plain_end(self.chunk, at + 1, end)
            return at + 1 if at < end and read8(self.chunk, at) == 0x22 else -1
        if first == 0x7B:
            if self.header.has_fields or name_end - name != EXT_FIELDS_NAME.size:
                return -1
            if not is_at(self.chunk, name, name_end, EXT_FIELDS_NAME):
                return -1
            self.header.has_fields = True
            return self.parse_fields(at, end)
        if first == 0x2D or 0x30 <= first <= 0x39:
            return self.parse_integer(name, name_end, at, end)
        # A field that no send needs may be null, as `remark` often is.
        if is_at(self.chunk, at, end, NULL_TEXT) and not (
            is_at(self.chunk, name, name_end, CODE_NAME)
            or is_at(self.chunk, name, name_end, FLAG_NAME)
            or is_at(self.chunk, name, name_end, OPAQUE_NAME)
            or is_at(self.chunk, name, name_end, EXT_FIELDS_NAME)
        ):
            return at + NULL_TEXT.size
        return -1

    def parse_integer(self, name, name_end, at, end):
        """Read a 32-bit integer; return its end, or -1 if it is anything else."""
        start = at
        if read8(self.chunk, at) == 0x2D:
            at += 1
        first = at
        while at < end and 0x30 <= read8(self.chunk, at) <= 0x39:
            at += 1
        value = parse_number(self.chunk, start, at)
        if value < -0x80000000 or value > 0x7FFFFFFF:  # or NONE
            return -1
        if read8(self.chunk, first) == 0x30 and (at - first > 1 or first > start):
            return -1  # a leading zero
        size = name_end - name
        if size == CODE_NAME.size and is_at(self.chunk, name, name_end, CODE_NAME):
            if self.header.code != NONE:
                return -1
            self.header.code = value
        elif size == FLAG_NAME.size and is_at(self.chunk, name, name_end, FLAG_NAME):
            if self.header.flag != NONE:
                return -1
            self.header.flag = value
        elif size == OPAQUE_NAME.size and is_at(self.chunk, name, name_end, OPAQUE_NAME):
            if self.header.opaque != NONE:
                return -1
            self.header.opaque = value
        elif size == EXT_FIELDS_NAME.size and is_at(self.chunk, name, name_end, EXT_FIELDS_NAME):
            return -1
        return at

    def parse_fields(self, at, end):
        """Read the object of extFields; return its end, or -1 if it is unusual."""
        at = after_spaces(self.chunk, at + 1, end)
        while at < end and read8(self.chunk, at) == 0x22:
            name = at + 1
            name_end = plain_end(self.chunk, name, end)
            at = after_colon(self.chunk, name_end, end)
            if at < 0 or read8(self.chunk, at) != 0x22:
                return -1
            at = self.parse_field(name, name_end, at + 1, end)
            if at < 0:
                return -1
            at = after_spaces(self.chunk, at, end)
            if at >= end:
                return -1
            if read8(self.chunk, at) == 0x7D:
                return at + 1
            if read8(self.chunk, at) != 0x2C:
                return -1
            at = after_spaces(self.chunk, at + 1, end)
        return -1

    def parse_field(self, name, name_end, at, end):
        """Read a string that starts at `at`; return the end after its quote, or -1."""
        field = self.find_field(name, name_end)
        if field != cython.NULL and field.start >= 0:
            return -1  # repeated
        start = at
        if (
            field == cython.address(self.header.short_fields[PROPERTIES])
            or field == cython.address(self.header.long_fields[PROPERTIES])
        ):
            if self.has_text:
                return -1
            self.has_text = True
            at = self.unescape(at, end)
        else:
            at = plain_end(self.chunk, at, end)
        if at < 0 or at >= end or read8(self.chunk, at) != 0x22:
            return -1
        if field != cython.NULL:
            field.start = start
            field.end = at
        return at + 1

    def unescape(self, at, end):
        """Write a JSON string as UTF-8 to the text buffer; return where its quote is, or -1."""
        while at < end:
            plain = plain_end(self.chunk, at, end)
            if plain - at > self.text.size - self.text_size - 4:
                return -1
            self.text_size = copy(self.text, self.text_size, self.chunk, at, plain - at)
            at = plain
            if at >= end or read8(self.chunk, at) == 0x22:
                return at
            if read8(self.chunk, at) == 0x5C:
                at = self.unescape_one(at + 1, end)
            else:
                size = utf8_length(self.chunk, at, end)
                self.text_size = copy(self.text, self.text_size, self.chunk, at, size)
                at = at + size if size else -1
            if at < 0:
                return -1
        return -1

    def unescape_one(self, at, end):
        """Write the character of the escape sequence whose letter is at `at`; return its end."""
        if at >= end:
            return -1
        code = read8(self.chunk, at)
        at += 1
        if code == 0x75:  # u
            code = hex_digits(self.chunk, at, end)
            at += 4
            if 0xD800 <= code < 0xDC00:
                if end - at < 6 or read8(self.chunk, at) != 0x5C or read8(self.chunk, at + 1) != 0x75:
                    return -1
                low = hex_digits(self.chunk, at + 2, end)
                at += 6
                if low < 0xDC00 or low > 0xDFFF:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                return -1
        elif code == 0x6E:  # n
            code = 0x0A
        elif code == 0x72:  # r
            code = 0x0D
        elif code == 0x74:  # t
            code = 0x09
        elif code == 0x62:  # b
            code = 0x08
        elif code == 0x66:  # f
            code = 0x0C
        elif code != 0x22 and code != 0x5C and code != 0x2F:
            return -1
        self.text_size = write_code_point(self.text, self.text_size, code)
        return at

    # Binary headers

    def parse_binary(self, at, end):
        """Read a header; return False unless it is complete and all its text is UTF-8."""
        if end - at < BINARY_FIXED_SIZE + 8:
            return False
        self.header.code = read16(self.chunk, at)
        self.header.opaque = read32_signed(self.chunk, at + BINARY_OPAQUE)
        self.header.flag = read32_signed(self.chunk, at + BINARY_FLAG)
        at += BINARY_FIXED_SIZE
        remark = read32(self.chunk, at)
        at += 4
        if remark > end - at - 4 or not is_utf8(self.chunk, at, at + remark):
            return False
        at += remark
        if read32(self.chunk, at) != end - at - 4:
            return False
        return self.parse_binary_fields(at + 4, end)

    def parse_binary_fields(self, at, end):
        while at < end:
            if end - at < 6:
                return False
            name = at + 2
            name_end = name + read16(self.chunk, at)
            if name_end > end - 4:
                return False
            at = name_end + 4
            size = read32(self.chunk, name_end)
            if size > end - at:
                return False
            field = self.find_field(name, name_end)
            if field == cython.NULL:
                if not is_utf8(self.chunk, name, name_end) or not is_utf8(self.chunk, at, at + size):
                    return False
            elif not self.take_binary_field(field, at, at + size):
                return False
            at += size
        return True

    def take_binary_field(self, field, at, end):
        if field.start >= 0 or not is_utf8(self.chunk, at, end):
            return False
        field.start = at
        field.end = end
        if (
            field == cython.address(self.header.short_fields[PROPERTIES])
            or field == cython.address(self.header.long_fields[PROPERTIES])
        ):
            if self.has_text or end - at > self.text.size:
                return False
            self.has_text = True
            self.text_size = copy(self.text, 0, self.chunk, at, end - at)
        return True

    # The message

    def find_field(self, name, name_end):
        """Return the place for the value of a field, or NULL if no send needs it."""
        size = name_end - name
        if size == 1:
            number: cython.longlong = SHORT_NAMES[read8(self.chunk, name)]
            if number < FIELD_COUNT:
                return cython.address(self.header.short_fields[number])
            return cython.NULL
        for number in range(FIELD_COUNT):
            if size == LONG_NAMES[number].size and is_at(self.chunk, name, name_end, LONG_NAMES[number]):
                return cython.address(self.header.long_fields[number])
        return cython.NULL

    def read_message(self, fields, is_batch):
        """Check the fields of a send and find its queue; return False if it is not plain."""
        message = cython.address(self.message)
        batch = fields[BATCH]
        if is_batch:
            if batch.end - batch.start != TRUE.size or not is_at(self.chunk, batch.start, batch.end, TRUE):
                return False
        elif batch.start >= 0 and (
            batch.end - batch.start != FALSE.size
            or not is_at(self.chunk, batch.start, batch.end, FALSE)
        ):
            return False
        message.sys_flag = number_in(self.chunk, fields[SYS_FLAG])
        message.flag = number_in(self.chunk, fields[FLAG])
        message.born_timestamp = number_in(self.chunk, fields[BORN_TIMESTAMP])
        message.reconsume_times = 0
        if fields[RECONSUME_TIMES].start >= 0:
            message.reconsume_times = number_in(self.chunk, fields[RECONSUME_TIMES])
        if (
            not self.has_text
            or fields[PROPERTIES].start < 0
            or message.sys_flag < 0
            or message.sys_flag > 0x7FFFFFFF
            or message.sys_flag & SPECIAL_FLAGS
            or message.flag < -0x80000000
            or message.flag > 0x7FFFFFFF
            or message.born_timestamp == NONE
            or message.reconsume_times < 0
            or message.reconsume_times > 0x7FFFFFFF
        ):
            return False
        message.sys_flag |= self.host_flag
        if self.born_host.size > HOST_SIZE_V4:
            message.sys_flag |= BORN_HOST_V6
        topic, queue_id = fields[TOPIC], fields[QUEUE_ID]
        number = number_in(self.chunk, queue_id)
        if topic.start < 0 or number < 0 or number > 0x7FFFFFFF:
            return False
        if queue_id.end - queue_id.start > 1 and read8(self.chunk, queue_id.start) == 0x30:
            return False  # a leading zero
        message.queue = self.find_queue(self.chunk, topic.start, topic.end, number)
        return message.queue >= 0 and self.prepare_queue(message.queue)

    def find_queue(self, view, at, end, queue_id):
        """Return the number of a queue, or -1 if it was not added."""
        slot: cython.longlong = cython.cast(
            cython.longlong, hash_of(view, at, end, queue_id) & self.slot_mask
        )
        while self.slots[slot]:
            number = cython.cast(cython.longlong, self.slots[slot]) - 1
            queue = cython.address(self.queues[number])
            name: View
            name.data = queue.topic
            name.size = queue.topic_size
            if (
                queue.queue_id == queue_id
                and queue.topic_size == end - at
                and is_at(view, at, end, name)
            ):
                return number
            slot = (slot + 1) & self.slot_mask
        return -1

    def prepare_queue(self, number):
        """Read where a queue ends, once per call; return False if it was removed."""
        queue = cython.address(self.queues[number])
        if queue.run == self.run_number:
            return True
        owner = self.queue_objects[number]
        if owner is None:
            return False
        queue.next_offset = owner.next_offset
        queue.room = owner.room
        queue.count = 0
        queue.run = self.run_number
        return True

    # Single sends

    def send(self, body, end):
        """Put one message and its response; return False if it is not plain or has no room."""
        message = cython.address(self.message)
        queue = cython.address(self.queues[message.queue])
        properties: Properties
        if not self.read_properties(cython.address(properties)):
            return False
        body_size = end - body
        size = (
            self.head_size
            + body_size
            + 1
            + queue.topic_size
            + LENGTH_SIZE
            + properties.record_size
        )
        if size > self.max_record or not self.has_room(1, size):
            return False
        at = self.write_head(
            self.records_end,
            size,
            crc32(self.chunk, body, body_size),
            message.flag,
            queue.next_offset,
            self.position,
            body_size,
        )
        at = copy(self.records, at, self.chunk, body, body_size)
        at = self.write_topic(at)
        self.write_properties(at, cython.address(properties))
        offset = queue.next_offset
        first = self.put_count
        self.add_put(self.position, size, properties.tags_code)
        self.commit(1)
        self.respond(first, 1, offset)
        return True

    def read_properties(self, properties):
        """Inspect the properties in the text buffer; return False if the broker must act on any."""
        text = read_only(self.text)
        size = self.text_size
        properties.size = size
        properties.cut = properties.after_cut = size
        properties.tags_code = 0
        start: cython.longlong = 0
        while start < size:
            end = find8(text, start, size, 2)
            if not self.read_property(text, start, end, properties):
                return False
            start = end + 1
        last = properties.cut if properties.after_cut == size else size
        properties.is_joined = last > 0 and read8(text, last - 1) != 2
        properties.record_size = (
            size
            - (properties.after_cut - properties.cut)
            + properties.is_joined
            + self.cluster.size
        )
        return properties.record_size <= MAX_PROPERTIES

    def read_property(self, text, start, end, properties):
        """Inspect one property; return False if the broker must act on it."""
        at = find8(text, start, end, 1)
        if at - start == TAGS.size - 1 and at + 1 < end and is_at(text, start, end, TAGS):
            properties.tags_code = java_hash(text, at + 1, end)
        # A name may also follow other characters, even a separator inside a value: the Python
        # code searches the whole text for it.
        while at < end:
            after = at + 1
            last = read8(text, at - 1) if at > start else 0
            if last == 0x54 and is_at(text, after - WAIT.size, after, WAIT):
                if (
                    at - start != WAIT.size - 1
                    or start == 0
                    or end - start != WAIT_TRUE.size
                    or not is_at(text, start, end, WAIT_TRUE)
                    or properties.after_cut > properties.cut
                ):
                    return False
                properties.cut = start - 1
                properties.after_cut = end
            elif last == 0x59 and is_at(text, after - DELAY.size, after, DELAY):
                return False
            elif last == 0x47 and is_at(text, after - TRAN_MSG.size, after, TRAN_MSG):
                return False
            elif last == 0x52 and is_at(text, after - CLUSTER.size, after, CLUSTER):
                return False
            at = find8(text, after, end, 1)
        return True

    def write_properties(self, at, properties):
        """Write the length and bytes of a record's properties; return their end."""
        text = read_only(self.text)
        at = write16(self.records, at, properties.record_size)
        at = copy(self.records, at, text, 0, properties.cut)
        at = copy(
            self.records, at, text, properties.after_cut, properties.size - properties.after_cut
        )
        if properties.is_joined:
            at = write8(self.records, at, 2)
        return write_all(self.records, at, self.cluster)

    # Batches

    def send_batch(self, body, end):
        """Put all messages of a batch and its response; return False if any is not plain."""
        message = cython.address(self.message)
        queue = cython.address(self.queues[message.queue])
        count = batch_count(self.chunk, body, end)
        if count < 1 or count > self.max_batch_count or end - body > self.max_body:
            return False
        # The properties of the batch itself follow those of each message.
        try:
            shared_bytes: bytes = self.batch_properties[
                bytes_of(self.text, 0, self.text_size).decode()
            ]
        except Exception:
            return False  # the Python code reports it
        shared = view_of(shared_bytes)
        if tags_code_of(shared, 0, shared.size) != 0:
            return False
        per_message = (
            self.head_size
            + 1
            + queue.topic_size
            + LENGTH_SIZE
            + shared.size
            + 1
            - INNER_FIXED_SIZE
        )
        size = end - body + count * per_message
        if size > self.max_batch_size or not self.has_room(count, size):
            return False
        first, first_record = self.put_count, self.records_end
        offset = queue.next_offset
        physical = self.position
        at = body
        while at < end:
            following = at + read32(self.chunk, at)
            written = self.put_inner(
                at, following, shared, physical, offset + self.put_count - first
            )
            if written == 0:
                self.put_count, self.records_end = first, first_record
                return False
            physical += written
            at = following
        self.records_end = first_record
        self.commit(count)
        self.respond(first, count, offset)
        return True

    def put_inner(self, at, end, shared, physical, offset):
        """Write one message of a batch; return the size of its record, 0 if it is not plain."""
        body_size = read32(self.chunk, at + INNER_BODY_LENGTH)
        body = at + INNER_HEAD_SIZE
        own = body + body_size + LENGTH_SIZE
        tags_code = tags_code_of(self.chunk, own, end)
        is_joined = end > own and shared.size > 0 and read8(self.chunk, end - 1) != 2
        properties_size = end - own + is_joined + shared.size
        if tags_code == NONE or properties_size > MAX_PROPERTIES:
            return 0
        topic_size = self.queues[self.message.queue].topic_size
        size = self.head_size + body_size + 1 + topic_size + LENGTH_SIZE + properties_size
        place = self.write_head(
            self.records_end,
            size,
            crc32(self.chunk, body, body_size),
            read32(self.chunk, at + INNER_FLAG),
            offset,
            physical,
            body_size,
        )
        place = copy(self.records, place, self.chunk, body, body_size)
        place = self.write_topic(place)
        place = write16(self.records, place, properties_size)
        place = copy(self.records, place, self.chunk, own, end - own)
        if is_joined:
            place = write8(self.records, place, 2)
        self.records_end = write_all(self.records, place, shared)
        self.add_put(physical, size, tags_code)
        return size

    # Records

    def write_head(self, at, size, crc, flag, offset, physical, body_size):
        """Write fields 1 to 14 and bodyLength of a record; return their end."""
        message = cython.address(self.message)
        at = write32(self.records, at, size)
        at = write32(self.records, at, MAGIC)
        at = write32(self.records, at, crc & CRC_MASK)
        at = write32(self.records, at, self.queues[message.queue].queue_id)
        at = write32(self.records, at, flag)
        at = write64(self.records, at, offset)
        at = write64(self.records, at, physical)
        at = write32(self.records, at, message.sys_flag)
        at = write64(self.records, at, message.born_timestamp)
        at = write_all(self.records, at, self.born_host)
        at = write64(self.records, at, self.store_timestamp)
        at = write_all(self.records, at, self.store_host)
        at = write32(self.records, at, message.reconsume_times)
        at = write64(self.records, at, 0)  # of a prepared transaction
        return write32(self.records, at, body_size)

    def write_topic(self, at):
        """Write the length and bytes of the topic; return their end."""
        queue = cython.address(self.queues[self.message.queue])
        name: View
        name.data = queue.topic
        name.size = queue.topic_size
        at = write8(self.records, at, name.size)
        return write_all(self.records, at, name)

    def has_room(self, count, size):
        """Whether log, queue and all scratch buffers have room for these messages."""
        queue = cython.address(self.queues[self.message.queue])
        pieces = cython.address(self.json)
        if self.header.is_binary:
            pieces = cython.address(self.binary)
        response_size = (
            PREFIX_SIZE
            + pieces.before_id.size
            + pieces.before_queue_id.size
            + pieces.before_offset.size
            + pieces.before_opaque.size
            + pieces.end.size
            + count * (self.id_prefix.size + 17)
            + 80  # three numbers with their lengths
        )
        return (
            size <= self.limit - self.position
            and size <= self.records.size - self.records_end
            and count <= queue.room - queue.next_offset
            and count <= MAX_PUTS - self.put_count
            and response_size <= self.responses.size - self.response_end
        )

    def add_put(self, physical, size, tags_code):
        """Note a message whose record is written."""
        put = cython.address(self.puts[self.put_count])
        put.queue = self.message.queue
        put.physical_offset = physical
        put.size = size
        put.tags_code = tags_code
        self.put_count += 1

    def commit(self, count):
        """Make the last `count` messages count."""
        queue = cython.address(self.queues[self.message.queue])
        for number in range(self.put_count - count, self.put_count):
            self.position += self.puts[number].size
            self.records_end += self.puts[number].size
        queue.next_offset += count
        queue.count += count

    # Responses

    def respond(self, first, count, offset):
        """Write the response for messages from number `first` on, unless the send is oneway."""
        if self.header.flag & ONEWAY:
            return
        if self.header.is_binary:
            self.respond_binary(first, count, offset)
        else:
            self.respond_json(first, count, offset)

    def respond_json(self, first, count, offset):
        start = self.response_end
        at = write_all(self.responses, start + PREFIX_SIZE, self.json.before_id)
        at = self.write_ids(at, first, count)
        at = write_all(self.responses, at, self.json.before_queue_id)
        at = write_decimal(self.responses, at, self.queues[self.message.queue].queue_id)
        at = write_all(self.responses, at, self.json.before_offset)
        at = write_decimal(self.responses, at, offset)
        at = write_all(self.responses, at, self.json.before_opaque)
        at = write_decimal(self.responses, at, self.header.opaque)
        at = write_all(self.responses, at, self.json.end)
        write32(self.responses, start, at - start - TOTAL_SIZE)
        write32(self.responses, start + TOTAL_SIZE, at - start - PREFIX_SIZE)
        self.response_end = at

    def respond_binary(self, first, count, offset):
        start = self.response_end
        header = start + PREFIX_SIZE
        id_length = write_all(self.responses, header, self.binary.before_id)
        at = self.write_ids(id_length + 4, first, count)
        write32(self.responses, id_length, at - id_length - 4)
        at = write_all(self.responses, at, self.binary.before_queue_id)
        at = write_sized_decimal(self.responses, at, self.queues[self.message.queue].queue_id)
        at = write_all(self.responses, at, self.binary.before_offset)
        at = write_sized_decimal(self.responses, at, offset)
        at = write_all(self.responses, at, self.binary.end)
        write32(self.responses, header + BINARY_OPAQUE, self.header.opaque)
        write32(
            self.responses, header + BINARY_EXT_LENGTH, at - header - BINARY_EXT_LENGTH - 4
        )
        write32(self.responses, start, at - start - TOTAL_SIZE)
        write32(self.responses, start + TOTAL_SIZE, 1 << 24 | at - header)
        self.response_end = at

    def write_ids(self, at, first, count):
        """Write the message ids, joined by commas; return their end."""
        for number in range(first, first + count):
            if number > first:
                at = write8(self.responses, at, 0x2C)
            at = write_all(self.responses, at, self.id_prefix)
            at = write_hex(self.responses, at, self.puts[number].physical_offset)
        return at

    # The end of a call

    def collect(self):
        """Return the touched queues in the order of their first message, with their entries."""
        touched = []
        next_entry: cython.longlong = 0
        for number in range(self.put_count):
            put = cython.address(self.puts[number])
            queue = cython.address(self.queues[put.queue])
            if queue.count > 0:  # its first message: make room for all, and count down to zero
                touched.append((put.queue, next_entry, queue.count))
                queue.entry = next_entry
                next_entry += queue.count * ENTRY_SIZE
                queue.count = 0
            at = write64(self.entries, queue.entry, put.physical_offset)
            at = write32(self.entries, at, put.size)
            queue.entry = write64(self.entries, at, put.tags_code)
        return [
            (
                self.queue_objects[number],
                bytes_of(self.entries, start, start + count * ENTRY_SIZE),
                count,
            )
            for number, start, count in touched
        ]

    # The table of queues

    def grow(self):
        """Double the room for queues, and their hash table."""
        capacity: cython.longlong = self.queue_capacity * 2 or 64
        queues = realloc(self.queues, capacity * cython.sizeof(Queue))
        slots = calloc(capacity * 4, cython.sizeof(u32))
        if queues == cython.NULL or slots == cython.NULL:
            raise MemoryError
        free(self.slots)
        self.queues = cython.cast(cython.pointer(Queue), queues)
        self.slots = cython.cast(cython.pointer(u32), slots)
        self.queue_capacity = capacity
        self.slot_mask = capacity * 4 - 1
        for number in range(len(self.queue_objects)):
            self.insert(number)

    def insert(self, number):
        queue = cython.address(self.queues[number])
        name: View
        name.data = queue.topic
        name.size = queue.topic_size
        slot: cython.longlong = cython.cast(
            cython.longlong, hash_of(name, 0, name.size, queue.queue_id) & self.slot_mask
        )
        while self.slots[slot]:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = number + 1

    def keep(self, data):
        self.kept.append(data)
        return view_of(data)


def after_spaces(view, at, end):
    """Return the position after white space."""
    while at < end:
        byte = read8(view, at)
        if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
            break
        at += 1
    return at


def after_colon(view, at, end):
    """Return where the value begins after the quote of a name at `at`, or -1."""
    if at >= end or read8(view, at) != 0x22:
        return -1
    at = after_spaces(view, at + 1, end)
    if at >= end or read8(view, at) != 0x3A:
        return -1
    at = after_spaces(view, at + 1, end)
    return at if at < end else -1


def number_in(view, text):
    """Return the number that fills a text, or NONE."""
    return parse_number(view, text.start, text.end) if text.start >= 0 else NONE


def hex_digits(view, at, end):
    """Return the value of four hexadecimal digits, or -1."""
    if end - at < 4:
        return -1
    value: cython.longlong = 0
    for place in range(at, at + 4):
        digit = read8(view, place)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit <= 0x46 or 0x61 <= digit <= 0x66:
            digit = (digit & 0xDF) - 0x37
        else:
            return -1
        value = value << 4 | digit
    return value


def hash_of(view, at, end, queue_id):
    """Return FNV-1a of a topic and a queue id."""
    value: cython.uint = 2166136261
    for place in range(at, end):
        value = (value ^ cython.cast(cython.uint, read8(view, place))) * 16777619
    return (value ^ cython.cast(cython.uint, queue_id)) * cython.cast(cython.uint, 16777619)


def batch_count(view, at, end):
    """Return the number of messages in a batch, or -1 if one is malformed."""
    count: cython.longlong = 0
    while at < end:
        at = inner_end(view, at, end)
        if at < 0:
            return -1
        count += 1
    return count


def inner_end(view, at, end):
    """Return the end of the inner message at `at`, or -1 if its lengths contradict each other."""
    if end - at < INNER_FIXED_SIZE:
        return -1
    size = read32(view, at)
    body_size = read32(view, at + INNER_BODY_LENGTH)
    if size > end - at or body_size > size - INNER_FIXED_SIZE:
        return -1
    own_size = read16(view, at + INNER_HEAD_SIZE + body_size)
    return at + size if own_size == size - INNER_FIXED_SIZE - body_size else -1


def tags_code_of(view, at, end):
    """Return the hash of the last TAGS among properties, 0 without; NONE if it is not UTF-8."""
    code: cython.longlong = 0
    while at < end:
        following = find8(view, at, end, 2)
        if following - at > TAGS.size and is_at(view, at, following, TAGS):
            code = java_hash(view, at + TAGS.size, following)
            if code == NONE:
                return NONE
        at = following + 1
    return code


def write_hex(area, at, value):
    """Write 16 hexadecimal digits; return their end."""
    for shift in range(60, -4, -4):
        digit = value >> shift & 15
        at = write8(area, at, digit + (0x30 if digit < 10 else 0x37))
    return at


def write_sized_decimal(area, at, value):
    """Write the length of a number's text and the text; return its end."""
    end = write_decimal(area, at + 4, value)
    write32(area, at, end - at - 4)
    return end
