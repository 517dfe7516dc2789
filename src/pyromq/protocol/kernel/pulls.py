# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""Plain pulls: frames in, whole responses out.

A pull is plain if it is a PULL_MESSAGE with a plan that the caller has added, from an offset that
its queue has, and if all its records are in memory and in one segment of the log. `Pulls.run`
serves the plain pulls at the head of a chunk and stops at the first frame that is anything else;
that frame is for the Python code (`broker.handlers.pull`), which would have made the same bytes.

A response is allocated once, in its final size, and records that follow one another in the log are
copied at once. Limits and their order are those of `store.queues.reading`.

The files are mapped and belong to the store. A mapping is used through the buffer protocol while
nothing else runs, so it can neither move nor disappear; positions are compared with its size, and
records with the log's `written` mark. An entry that points elsewhere is for the Python code.

The store, as this module sees it
    queues       by topic and id: min_offset, next_offset, extension, segments
    segments     files (equal-sized, without gaps), segment_size
    file         base; lend() returns its mapping, or None
    watermarks   written
    unsealed     touched: whether entries wait for seal()
Not thread-safe.
"""

import cython
from cython.cimports.cpython.buffer import PyBuffer_Release
from cython.cimports.cpython.bytes import PyBytes_AsString, PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    bytes_of,
    copy,
    faults,
    read32,
    read32_signed,
    read64,
    read_only,
    view_of,
    view_of_buffer,
    write32,
    write_all,
)
from cython.cimports.pyromq.protocol.kernel.request_header import (
    name_fields,
    number_in,
    read_header,
)
from cython.cimports.pyromq.protocol.kernel.text import NONE, write_decimal, write_sized_decimal

from pyromq.protocol.message import units
from pyromq.protocol.wire import frame, pull_fields
from pyromq.protocol.wire.codes import RequestCode

ENTRY_SIZE = units.CONSUME_QUEUE_ENTRY_SIZE
ENTRY_RECORD_SIZE = units.ENTRY_SIZE.start
ENTRY_CODE = units.ENTRY_TAGS_CODE.start
assert units.ENTRY_PHYSICAL_OFFSET.start == 0
MAX_EXTENSION_ADDRESS = units.MAX_EXTENSION_ADDRESS
PREFIX_SIZE = frame.PREFIX_SIZE
TOTAL_SIZE = frame.TOTAL_SIZE
HEADER_LENGTH_MASK = frame.HEADER_LENGTH_MASK
MAX_FRAME = frame.MAX_FRAME
RESPONSE = frame.FLAG_RESPONSE
ONEWAY = frame.FLAG_ONEWAY
PULL = RequestCode.PULL_MESSAGE
LITE_PULL = RequestCode.LITE_PULL_MESSAGE

# The owners of the bytes of the views in NAMES.
_names = [name.encode() for name in pull_fields.NAMES]

assert len(_names) == FIELD_COUNT
assert pull_fields.KEY_COUNT == KEY_COUNT
name_fields(cython.address(NAMES), _names)

#: Records of one response.
MAX_RECORDS = 4096
#: Of the fields of a plan, packed; and of the header of a response.
TEXT_SIZE = 4096
#: At most, of the numbers in a response, with their lengths.
NUMBERS_SIZE = 5 * (20 + 4)
#: In place of the length of a field that a pull does not have.
NO_FIELD = b"\xff\xff\xff\xff"


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class Plan:
    """What the pulls of a consumer from a queue have in common."""


class Pulls:
    """The plain pulls of a broker: their plans, and the store's parts."""

    def __init__(
        self,
        json: tuple,
        binary: tuple,
        queues: dict,
        log: object,
        watermarks: object,
        unsealed: object,
        is_in_memory: object,
        commit: object,
        limits: tuple,
    ) -> None:
        """See `PlainPulls` for the arguments, and `store.queues.reading.PullLimits`."""
        self.kept = []
        self.json.before_broker = self.keep(json[0])
        self.json.before_next = self.keep(json[1])
        self.json.before_min = self.keep(json[2])
        self.json.before_max = self.keep(json[3])
        self.json.before_opaque = self.keep(json[4])
        self.json.end = self.keep(json[5])
        self.binary.before_opaque = self.keep(binary[0])
        self.binary.before_fields_length = self.keep(binary[1])
        self.binary.before_broker = self.keep(binary[2])
        self.binary.before_next = self.keep(binary[3])
        self.binary.before_min = self.keep(binary[4])
        self.binary.before_max = self.keep(binary[5])
        self.binary.end = self.keep(binary[6])
        longest = max(sum(map(len, json)), sum(map(len, binary)))
        if longest + NUMBERS_SIZE > TEXT_SIZE:
            raise ValueError(f"a response header of {longest} bytes is too long")
        self.queues = queues
        self.log = log
        self.watermarks = watermarks
        self.unsealed = unsealed
        self.is_in_memory = is_in_memory
        self.commit = commit
        self.counted = []
        self.max_bytes, self.max_cold, self.warm_bytes, self.warm_entries, self.max_span = limits
        self.plans = {}
        text = bytearray(TEXT_SIZE)
        self.kept.append(text)
        self.text = area_of(text)
        self.spans = cython.cast(cython.pointer(Span), calloc(MAX_RECORDS, cython.sizeof(Span)))
        if self.spans == cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.spans)

    # Plans

    def add(
        self,
        fields: tuple,
        owner: object,
        queue_key: tuple,
        max_count: int,
        max_examined: int,
        commits: bool,
        broker_id: int,
        codes: bytes | None,
    ) -> None:
        """Serve pulls with these values of the key's fields, as bytes or None, from now on."""
        packed = b"".join(
            NO_FIELD if field is None else len(field).to_bytes(4, "big") + field for field in fields
        )
        if len(packed) > TEXT_SIZE or not 0 < max_count <= MAX_RECORDS:
            return
        plan = Plan()
        plan.owner = owner
        plan.queue_key = queue_key
        plan.max_count = max_count
        plan.max_examined = max_examined
        plan.commits = commits
        plan.broker_id = broker_id
        plan.codes = codes
        if codes is not None:
            plan.codes_view = view_of(codes)
        self.plans[packed] = plan

    def clear(self) -> None:
        """Leave all pulls to the Python code."""
        self.plans.clear()

    def take_counts(self) -> list:
        """Return what was served since the last call.

        Of each plan: its owner, messages, bytes, pulls, and the offset after the last pull.
        """
        counts = []
        for number in range(len(self.counted)):
            plan: Plan = self.counted[number]
            counts.append((plan.owner, plan.messages, plan.bytes, plan.pulls, plan.next_offset))
            plan.messages = plan.bytes = plan.pulls = 0
        self.counted.clear()
        return counts

    # A chunk

    def run(self, chunk: bytes, start: int, connection: object, responses: list, room: int) -> int:
        """Serve the plain pulls from `start` on; return the end of the last one.

        Stop after the response that fills `room` bytes.
        """
        view = view_of(chunk)
        at: cython.longlong = start
        left: cython.longlong = room
        while left > 0 and view.size - at >= PREFIX_SIZE:
            end = at + TOTAL_SIZE + read32(view, at)
            if end > view.size or end - at > MAX_FRAME:
                break
            response = self.serve(view, at, end, connection)
            if response is None:
                break
            responses.append(response)
            left -= len(response)
            at = end
        return at

    def serve(self, chunk, at, end, connection):
        """Return the response to one whole frame, or None if it is not plain."""
        word = read32(chunk, at + TOTAL_SIZE)
        header_end = at + PREFIX_SIZE + (word & HEADER_LENGTH_MASK)
        encoding = word >> 24
        if header_end > end or encoding > 1:
            return None
        header = cython.address(self.header)
        self.is_binary = encoding == 1
        if not read_header(
            header, cython.address(NAMES), chunk, at + PREFIX_SIZE, header_end, self.is_binary
        ):
            return None
        if (header.code != PULL and header.code != LITE_PULL) or header.flag & (RESPONSE | ONEWAY):
            return None
        plan = self.find_plan(chunk)
        if plan is None:
            return None
        offset = number_in(chunk, header.fields[QUEUE_OFFSET])
        commit_offset = number_in(chunk, header.fields[COMMIT_OFFSET])
        if offset < 0 or commit_offset == NONE:
            return None
        if self.unsealed.touched:
            self.unsealed.seal()
        queue = self.queues.get(plan.queue_key)
        if queue is None or (plan.codes is not None and queue.extension is not None):
            return None
        selection: Selection
        response = self.read(plan, queue, offset, cython.address(selection))
        if response is None:
            return None
        if not plan.pulls:
            self.counted.append(plan)
        plan.pulls += 1
        plan.messages += selection.count
        plan.bytes += selection.size
        plan.next_offset = offset + selection.seen
        if plan.commits:
            self.commit(connection, plan.owner, commit_offset)
        return response

    def find_plan(self, chunk):
        """Return the plan of the header, or None."""
        at: cython.longlong = 0
        for number in range(KEY_COUNT):
            field = self.header.fields[number]
            if field.start < 0:
                if at + 4 > self.text.size:
                    return None
                at = write32(self.text, at, -1)
                continue
            if field.end - field.start > self.text.size - at - 4:
                return None
            at = write32(self.text, at, field.end - field.start)
            at = copy(self.text, at, chunk, field.start, field.end - field.start)
        return self.plans.get(bytes_of(self.text, 0, at))

    # The records

    def read(self, plan, queue, offset, selection):
        """Select and copy the records of a pull; return the response, or None if not plain."""
        behind: cython.longlong = queue.next_offset - offset
        if behind <= 0 or offset < cython.cast(cython.longlong, queue.min_offset):
            return None
        written: cython.longlong = self.watermarks.written
        if not self.examine(plan, queue, offset, behind, written, selection):
            return None
        file = file_at(self.log, selection.begin)
        if file is None:
            return None
        if written - selection.first > self.warm_bytes:
            last = self.spans[selection.span_count - 1].end
            if last - self.spans[0].start > self.max_span or not self.is_in_memory(
                file, self.spans[0].start - selection.begin, last - selection.begin
            ):
                return None
        return self.respond(plan, queue, offset + selection.seen, file, selection)

    def examine(self, plan, queue, offset, behind, written, selection):
        """Select records by the entries from `offset` on; return False if not plain."""
        segments = queue.segments
        file = file_at(segments, offset * ENTRY_SIZE)
        if file is None:
            return False
        start: cython.longlong = offset * ENTRY_SIZE - cython.cast(cython.longlong, file.base)
        rest: cython.longlong = segments.segment_size
        rest = (rest - start) // ENTRY_SIZE
        count = min(plan.max_examined, behind, rest)
        if count <= 0:
            return False
        end = start + count * ENTRY_SIZE
        if behind > self.warm_entries and not self.is_in_memory(file, start, end):
            return False
        log_files: list = self.log.files
        if not log_files:
            return False
        self.log_base = log_files[0].base
        self.log_segment_size = self.log.segment_size
        mapping = file.lend()
        if mapping is None:
            return False
        mapped = view_of_buffer(mapping, cython.address(self.buffer))
        is_plain = False
        if end <= mapped.size:
            entries: View
            entries.data = mapped.data + start
            entries.size = end - start
            is_plain = self.select(plan, entries, written, selection)
        PyBuffer_Release(cython.address(self.buffer))
        return is_plain

    def select(self, plan, entries, written, selection):
        """Select by tag, count and bytes; return False if a record is unusual, or none is left."""
        selection.count = selection.size = selection.seen = selection.span_count = 0
        selection.begin = selection.end = 0
        selection.first = read64(entries, 0)
        if selection.first < 0 or written - selection.first > self.max_cold:
            return False
        at: cython.longlong = 0
        while at < entries.size:
            physical = read64(entries, at)
            size = read32_signed(entries, at + ENTRY_RECORD_SIZE)
            if physical < 0:
                return False
            if selection.count and (
                selection.count >= plan.max_count or selection.size + size > self.max_bytes
            ):
                break
            selection.seen += 1
            is_wanted = plan.codes is None or accepts(
                plan.codes_view, read64(entries, at + ENTRY_CODE)
            )
            if is_wanted and not self.add_record(physical, size, written, selection):
                return False
            at += ENTRY_SIZE
        return selection.count > 0

    def add_record(self, physical, size, written, selection):
        """Add a record; return False unless it follows the last one, in the same segment."""
        if not selection.count:
            if physical < self.log_base:
                return False
            selection.begin = physical - (physical - self.log_base) % self.log_segment_size
            selection.end = min(selection.begin + self.log_segment_size, written)
        spans = self.spans
        last: cython.longlong = selection.begin
        if selection.span_count:
            last = spans[selection.span_count - 1].end
        if size <= 0 or physical < last or physical > selection.end - size:
            return False
        if not selection.span_count or physical > last:
            spans[selection.span_count].start = physical
            selection.span_count += 1
        spans[selection.span_count - 1].end = physical + size
        selection.count += 1
        selection.size += size
        return True

    # The response

    def respond(self, plan, queue, next_offset, file, selection):
        """Return the response with the selected records, or None if their file is not mapped."""
        min_offset: cython.longlong = queue.min_offset
        max_offset: cython.longlong = queue.next_offset
        if self.is_binary:
            length = self.write_binary(plan.broker_id, next_offset, min_offset, max_offset)
        else:
            length = self.write_json(plan.broker_id, next_offset, min_offset, max_offset)
        response = PyBytes_FromStringAndSize(cython.NULL, PREFIX_SIZE + length + selection.size)
        area: Area
        area.data = cython.cast(cython.pointer(u8), PyBytes_AsString(response))
        area.size = PREFIX_SIZE + length + selection.size
        write32(area, 0, area.size - TOTAL_SIZE)
        write32(area, TOTAL_SIZE, self.is_binary << 24 | length)
        at = copy(area, PREFIX_SIZE, read_only(self.text), 0, length)
        mapping = file.lend()
        if mapping is None:
            return None
        # Nothing else runs between `lend` and the end of the copy.
        log = view_of_buffer(mapping, cython.address(self.buffer))
        is_whole = self.gather(area, at, log, selection.begin, selection.span_count)
        PyBuffer_Release(cython.address(self.buffer))
        return response if is_whole else None

    def write_json(self, broker_id, next_offset, min_offset, max_offset):
        """Write the header to the text buffer; return its length."""
        at = write_all(self.text, 0, self.json.before_broker)
        at = write_decimal(self.text, at, broker_id)
        at = write_all(self.text, at, self.json.before_next)
        at = write_decimal(self.text, at, next_offset)
        at = write_all(self.text, at, self.json.before_min)
        at = write_decimal(self.text, at, min_offset)
        at = write_all(self.text, at, self.json.before_max)
        at = write_decimal(self.text, at, max_offset)
        at = write_all(self.text, at, self.json.before_opaque)
        at = write_decimal(self.text, at, self.header.opaque)
        return write_all(self.text, at, self.json.end)

    def write_binary(self, broker_id, next_offset, min_offset, max_offset):
        """Do the same for a binary header."""
        at = write_all(self.text, 0, self.binary.before_opaque)
        at = write32(self.text, at, self.header.opaque)
        fields_length = write_all(self.text, at, self.binary.before_fields_length)
        at = write_all(self.text, fields_length + 4, self.binary.before_broker)
        at = write_sized_decimal(self.text, at, broker_id)
        at = write_all(self.text, at, self.binary.before_next)
        at = write_sized_decimal(self.text, at, next_offset)
        at = write_all(self.text, at, self.binary.before_min)
        at = write_sized_decimal(self.text, at, min_offset)
        at = write_all(self.text, at, self.binary.before_max)
        at = write_sized_decimal(self.text, at, max_offset)
        at = write_all(self.text, at, self.binary.end)
        write32(self.text, fields_length, at - fields_length - 4)
        return at

    def gather(self, response, at, log, base, span_count):
        """Copy the records from a segment that begins at `base`; return False if it is shorter."""
        for number in range(span_count):
            if self.spans[number].start < base or self.spans[number].end - base > log.size:
                return False
        for number in range(span_count):
            start = self.spans[number].start
            at = copy(response, at, log, start - base, self.spans[number].end - start)
        return True

    # Constants

    def keep(self, data):
        self.kept.append(data)
        return view_of(data)


def file_at(segments, position):
    """Return the file that holds the byte at `position`, or None."""
    files: list = segments.files
    if not files:
        return None
    size: cython.longlong = segments.segment_size
    distance: cython.longlong = position - cython.cast(cython.longlong, files[0].base)
    if distance < 0 or distance >= size * len(files):
        return None
    return files[distance // size]


def accepts(codes, code):
    """Return whether a filter accepts a tags code, as `TagFilter.matches` does."""
    if code <= MAX_EXTENSION_ADDRESS:
        return True
    low: cython.longlong = 0
    high = codes.size // 8
    while low < high:
        middle = (low + high) // 2
        if read64(codes, middle * 8) < code:
            low = middle + 1
        else:
            high = middle
    return low < codes.size // 8 and read64(codes, low * 8) == code
