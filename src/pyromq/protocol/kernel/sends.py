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
the records before it calls `reset`. A queue has `next_offset` and `room`. Not thread-safe.
"""

import cython
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.pyromq.protocol.kernel.checksum import crc32, fill_crc_tables
from cython.cimports.pyromq.protocol.kernel.entries import write_entry_header
from cython.cimports.pyromq.protocol.kernel.inner_messages import batch_count, fill_inner_layout
from cython.cimports.pyromq.protocol.kernel.queue_table import QueueTable
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    bytes_of,
    copy,
    faults,
    is_at,
    read8,
    read32,
    read_only,
    view_of,
    write8,
    write16,
    write32,
    write64,
    write_all,
)
from cython.cimports.pyromq.protocol.kernel.request_header import number_in
from cython.cimports.pyromq.protocol.kernel.send_header import (
    BATCH,
    BORN_TIMESTAMP,
    FLAG,
    PROPERTIES,
    QUEUE_ID,
    RECONSUME_TIMES,
    SYS_FLAG,
    TOPIC,
    Properties,
    SendHeader,
)
from cython.cimports.pyromq.protocol.kernel.signatures import Signatures
from cython.cimports.pyromq.protocol.kernel.text import (
    NONE,
    tags_code_of,
    write_decimal,
    write_hex,
    write_sized_decimal,
)

from pyromq.protocol.message import crc, entry, message_id, record, sysflag, units
from pyromq.protocol.message import properties as names
from pyromq.protocol.wire import frame
from pyromq.protocol.wire.codes import RequestCode

fill_crc_tables()
fill_inner_layout(cython.address(INNER))

MAGIC = record.MESSAGE_MAGIC
CRC_MASK = crc.CRC_MASK
HEAD_SIZE = record.HEAD_SIZE_V4
HOST_SIZE_V4 = message_id.HOST_SIZE_V4
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
MAX_FRAME = frame.MAX_FRAME
ENTRY_HEADER_SIZE = entry.ENTRY_HEADER_SIZE
MAX_ENTRY_SIZE = entry.MAX_ENTRY_SIZE

# The owners of the bytes of module-level views.
_tags, _true, _false = names.TAGS_START.encode(), b"true", b"false"
TAGS = view_of(_tags)
TRUE = view_of(_true)
FALSE = view_of(_false)

RECORDS_SIZE = 1 << 20
RESPONSES_SIZE = 1 << 18
#: Messages of one call.
MAX_PUTS = 1 << 13
#: At most, of three numbers in a response, with their lengths.
NUMBERS_SIZE = 3 * (20 + 4) + 8
#: Of a physical offset in a message id.
ID_DIGITS = 16


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
        self.binary.before_opaque = self.keep(binary[0])
        self.binary.before_fields_length = self.keep(binary[1])
        self.binary.before_id = self.keep(binary[2])
        self.binary.before_queue_id = self.keep(binary[3])
        self.binary.before_offset = self.keep(binary[4])
        self.binary.end = self.keep(binary[5])
        self.response_size = (
            PREFIX_SIZE + NUMBERS_SIZE + max(sum(map(len, json)), sum(map(len, binary)))
        )
        self.batch_properties = batch_properties
        self.max_record = max_record
        self.max_body = max_body
        self.max_batch_count = min(max_batch_count, MAX_PUTS)
        self.max_batch_size = max_batch_size
        buffers = [
            bytearray(size) for size in (RECORDS_SIZE, RESPONSES_SIZE, MAX_PUTS * ENTRY_SIZE)
        ]
        self.kept.append(buffers)
        self.records = area_of(buffers[0])
        self.responses = area_of(buffers[1])
        self.entries = area_of(buffers[2])
        self.records_memory = memoryview(buffers[0])
        self.table = QueueTable()
        self.header = SendHeader()
        self.puts = cython.cast(cython.pointer(Put), calloc(MAX_PUTS, cython.sizeof(Put)))
        if self.puts == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.puts)

    # Queues

    def add_queue(self, topic: bytes, queue_id: int, queue: object) -> None:
        """Serve sends to a queue from now on."""
        self.table.add(topic, queue_id, queue)

    def remove_queue(self, topic: bytes, queue_id: int) -> None:
        """Leave sends to a queue to the Python code."""
        self.table.remove(topic, queue_id)

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
        entry_index: int = -1,
        entry_term: int = -1,
        guard: Signatures | None = None,
    ) -> tuple:
        """Serve the plain sends from `start` on, and only those that `guard` accepts.

        The first record goes to physical offset `position`, no record may end above `limit`. With
        a term, each record is the body of an entry (`protocol.message.entry`), the first of which
        has this index and goes to `position`.
        Return the end of the last frame served; the records, valid until `reset`; a list of each
        queue with its packed entries and their number; and the responses.
        """
        self.run_number += 1
        self.guard = guard
        self.header.list_fields(guard is not None)
        self.chunk = view_of(chunk)
        self.born_host = view_of(born_host)
        self.head_size = HEAD_SIZE + self.born_host.size + self.store_host.size - 2 * HOST_SIZE_V4
        self.store_timestamp = store_timestamp
        self.position = position
        self.limit = limit
        self.prefix = ENTRY_HEADER_SIZE if entry_term >= 0 else 0
        self.entry_index = entry_index
        self.entry_term = entry_term
        self.put_count = 0
        self.response_end = 0
        first_record = self.records_end
        at: cython.longlong = start
        while self.chunk.size - at >= PREFIX_SIZE:
            end = at + TOTAL_SIZE + read32(self.chunk, at)
            if end > self.chunk.size or end - at > MAX_FRAME or not self.serve(at, end):
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
        if not self.header.read(self.chunk, at + PREFIX_SIZE, body, encoding == 1):
            return False
        code = self.header.request.code
        if self.header.request.flag & RESPONSE or (
            code != SEND and code != SEND_V2 and code != SEND_BATCH
        ):
            return False
        self.fields = self.header.fields(code == SEND)
        if not self.read_message(self.fields):
            return False
        return self.send_batch(body, end) if self.message.is_batch else self.send(body, end)

    # The message

    def read_message(self, fields):
        """Check the fields of a send and find its queue; return False if it is not plain."""
        message = cython.address(self.message)
        batch = fields[BATCH]
        message.is_batch = batch.end - batch.start == TRUE.size and is_at(
            self.chunk, batch.start, batch.end, TRUE
        )
        if not message.is_batch and (
            self.header.request.code == SEND_BATCH
            or (
                batch.start >= 0
                and (
                    batch.end - batch.start != FALSE.size
                    or not is_at(self.chunk, batch.start, batch.end, FALSE)
                )
            )
        ):
            return False
        message.sys_flag = number_in(self.chunk, fields[SYS_FLAG])
        message.flag = number_in(self.chunk, fields[FLAG])
        message.born_timestamp = number_in(self.chunk, fields[BORN_TIMESTAMP])
        message.reconsume_times = 0
        if fields[RECONSUME_TIMES].start >= 0:
            message.reconsume_times = number_in(self.chunk, fields[RECONSUME_TIMES])
        if (
            fields[PROPERTIES].start < 0
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
        message.number = self.table.find(self.chunk, topic.start, topic.end, number)
        if message.number < 0 or not self.table.prepare(message.number, self.run_number):
            return False
        self.queue = cython.address(self.table.queues[message.number])
        return True

    def is_refused(self, body, end):
        """Return whether there is a guard, and it does not accept the frame."""
        return self.guard is not None and not self.guard.accepts_send(
            self.header,
            self.fields[TOPIC],
            self.fields[PROPERTIES],
            self.message.born_timestamp - self.store_timestamp,
            body,
            end,
        )

    # Single sends

    def send(self, body, end):
        """Put one message and its response; return False if it is not plain or has no room."""
        message = cython.address(self.message)
        queue = self.queue
        properties: Properties
        if not self.header.read_properties(
            cython.address(self.fields[PROPERTIES]), cython.address(properties)
        ) or self.is_refused(body, end):
            return False
        properties_size = (
            properties.size
            - (properties.after_cut - properties.cut)
            + properties.is_joined
            + self.cluster.size
        )
        body_size = end - body
        size = self.head_size + body_size + 1 + queue.topic.size + LENGTH_SIZE + properties_size
        if properties_size > MAX_PROPERTIES or size > self.max_record or not self.has_room(1, size):
            return False
        physical = self.position + self.prefix
        at = self.write_entry(self.records_end, self.position, size)
        at = self.write_head(
            at,
            size,
            crc32(self.chunk, body, body_size),
            message.flag,
            queue.next_offset,
            physical,
            body_size,
        )
        at = copy(self.records, at, self.chunk, body, body_size)
        at = self.write_topic(at)
        at = write16(self.records, at, properties_size)
        self.write_properties(at, cython.address(properties))
        self.add_put(physical, size, properties.tags_code)
        self.commit(1)
        self.respond(self.put_count - 1, 1, queue.next_offset - 1)
        return True

    def write_properties(self, at, properties):
        """Write the properties of a single send and the cluster; return their end."""
        text, cut = read_only(self.header.text), properties.after_cut
        at = copy(self.records, at, text, 0, properties.cut)
        at = copy(self.records, at, text, cut, properties.size - cut)
        if properties.is_joined:
            at = write8(self.records, at, 2)
        return write_all(self.records, at, self.cluster)

    # Batches

    def send_batch(self, body, end):
        """Put all messages of a batch and its response; return False if any is not plain."""
        queue = self.queue
        count = batch_count(self.chunk, body, end, cython.address(INNER))
        if count < 1 or count > self.max_batch_count or end - body > self.max_body:
            return False
        if not self.header.take_text(
            self.fields[PROPERTIES].start, self.fields[PROPERTIES].end
        ) or self.is_refused(body, end):
            return False
        # The properties of the batch itself follow those of each message.
        try:
            shared_bytes: bytes = self.batch_properties[
                bytes_of(self.header.text, 0, self.header.text_size).decode()
            ]
        except Exception:
            return False  # the Python code reports it
        shared = view_of(shared_bytes)
        if tags_code_of(shared, 0, shared.size, TAGS) != 0:
            return False
        per_message = (
            self.head_size + 1 + queue.topic.size + LENGTH_SIZE + shared.size + 1 - INNER.fixed_size
        )
        size = end - body + count * per_message
        if size > self.max_batch_size or not self.has_room(count, size):
            return False
        first, first_record = self.put_count, self.records_end
        offset = queue.next_offset
        position = self.position
        at = body
        while at < end:
            following = at + read32(self.chunk, at)
            written = self.put_inner(
                at, following, shared, position, offset + self.put_count - first
            )
            if written == 0:
                self.put_count, self.records_end = first, first_record
                return False
            position += written
            at = following
        self.records_end = first_record
        self.commit(count)
        self.respond(first, count, offset)
        return True

    def put_inner(self, at, end, shared, position, offset):
        """Write one message of a batch; return the bytes written, 0 if it is not plain."""
        body_size = read32(self.chunk, at + INNER.body_length)
        body = at + INNER.head_size
        own = body + body_size + LENGTH_SIZE
        tags_code = tags_code_of(self.chunk, own, end, TAGS)
        is_joined = end > own and shared.size > 0 and read8(self.chunk, end - 1) != 2
        properties_size = end - own + is_joined + shared.size
        if tags_code == NONE or properties_size > MAX_PROPERTIES:
            return 0
        topic_size = self.queue.topic.size
        size = self.head_size + body_size + 1 + topic_size + LENGTH_SIZE + properties_size
        if self.prefix + size > MAX_ENTRY_SIZE:
            return 0
        physical = position + self.prefix
        place = self.write_entry(self.records_end, position, size)
        place = self.write_head(
            place,
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
        return self.prefix + size

    # Records

    def write_entry(self, at, position, size):
        """Write the header of the entry for a record, if there are entries; return its end."""
        if self.prefix == 0:
            return at
        index = self.entry_index + self.put_count
        return write_entry_header(self.records, at, index, self.entry_term, position, size)

    def write_head(self, at, size, body_crc, flag, offset, physical, body_size):
        """Write fields 1 to 14 and bodyLength of a record; return their end."""
        message = cython.address(self.message)
        at = write32(self.records, at, size)
        at = write32(self.records, at, MAGIC)
        at = write32(self.records, at, body_crc & CRC_MASK)
        at = write32(self.records, at, self.queue.queue_id)
        at = write32(self.records, at, flag)
        at = write64(self.records, at, offset)
        at = write64(self.records, at, physical)
        at = write32(self.records, at, message.sys_flag)
        at = write64(self.records, at, message.born_timestamp)
        at = write_all(self.records, at, self.born_host)
        at = write64(self.records, at, self.store_timestamp)
        at = write_all(self.records, at, self.store_host)
        at = write32(self.records, at, message.reconsume_times)
        at = write64(self.records, at, 0)  # preparedTransactionOffset
        return write32(self.records, at, body_size)

    def write_topic(self, at):
        """Write the length and bytes of the topic; return their end."""
        at = write8(self.records, at, self.queue.topic.size)
        return write_all(self.records, at, self.queue.topic)

    def has_room(self, count, size):
        """Whether log, queue and all scratch buffers have room for these messages."""
        response_size = self.response_size + count * (self.id_prefix.size + ID_DIGITS + 1)
        size += count * self.prefix
        return (
            size <= self.limit - self.position
            and size <= self.records.size - self.records_end
            and count <= self.queue.room - self.queue.next_offset
            and count <= MAX_PUTS - self.put_count
            and response_size <= self.responses.size - self.response_end
        )

    def add_put(self, physical, size, tags_code):
        """Note a message whose record is written."""
        put = cython.address(self.puts[self.put_count])
        put.queue = self.message.number
        put.physical_offset = physical
        put.size = size
        put.tags_code = tags_code
        self.put_count += 1

    def commit(self, count):
        """Make the last `count` messages count."""
        queue = self.queue
        for number in range(self.put_count - count, self.put_count):
            self.position += self.prefix + self.puts[number].size
            self.records_end += self.prefix + self.puts[number].size
        queue.next_offset += count
        queue.count += count

    # Responses

    def respond(self, first, count, offset):
        """Write the response for messages from number `first` on, unless the send is oneway."""
        if self.header.request.flag & ONEWAY:
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
        at = write_decimal(self.responses, at, self.queue.queue_id)
        at = write_all(self.responses, at, self.json.before_offset)
        at = write_decimal(self.responses, at, offset)
        at = write_all(self.responses, at, self.json.before_opaque)
        at = write_decimal(self.responses, at, self.header.request.opaque)
        at = write_all(self.responses, at, self.json.end)
        write32(self.responses, start, at - start - TOTAL_SIZE)
        write32(self.responses, start + TOTAL_SIZE, at - start - PREFIX_SIZE)
        self.response_end = at

    def respond_binary(self, first, count, offset):
        start = self.response_end
        at = write_all(self.responses, start + PREFIX_SIZE, self.binary.before_opaque)
        at = write32(self.responses, at, self.header.request.opaque)
        fields_length = write_all(self.responses, at, self.binary.before_fields_length)
        id_length = write_all(self.responses, fields_length + 4, self.binary.before_id)
        at = self.write_ids(id_length + 4, first, count)
        write32(self.responses, id_length, at - id_length - 4)
        at = write_all(self.responses, at, self.binary.before_queue_id)
        at = write_sized_decimal(self.responses, at, self.queue.queue_id)
        at = write_all(self.responses, at, self.binary.before_offset)
        at = write_sized_decimal(self.responses, at, offset)
        at = write_all(self.responses, at, self.binary.end)
        write32(self.responses, fields_length, at - fields_length - 4)
        write32(self.responses, start, at - start - TOTAL_SIZE)
        write32(self.responses, start + TOTAL_SIZE, 1 << 24 | at - start - PREFIX_SIZE)
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
            queue = cython.address(self.table.queues[put.queue])
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
                self.table.owners[number],
                bytes_of(self.entries, start, start + count * ENTRY_SIZE),
                count,
            )
            for number, start, count in touched
        ]

    # Constants

    def keep(self, data):
        self.kept.append(data)
        return view_of(data)
