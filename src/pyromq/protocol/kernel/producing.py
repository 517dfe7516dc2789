# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""The bytes of a producer: frames of sends, inner messages of batches, and responses to sends.

`SendTemplate` encodes the requests to one queue, `plain_batch` the body of a batch, and
`read_answers` decodes the responses at the head of a chunk. Results are the bytes and values of the
Python code in `client.producer.sending` and `remoting.client`. `read_answers` stops at the first
frame that is not the plain success of a send in flight: an error, a request, a header with spaces,
escapes or repeated fields. That frame and the rest of the chunk are for the Python code.

Not thread-safe: `SendTemplate` and `plain_batch` share a scratch buffer, and hold the GIL.
"""

import json

import cython
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    bytes_of,
    faults,
    find8,
    is_outside,
    read8,
    read32,
    view_of,
    write8,
    write16,
    write32,
    write_all,
)
from cython.cimports.pyromq.protocol.kernel.request_header import (
    is_name,
    name_fields,
    read_header,
)
from cython.cimports.pyromq.protocol.kernel.text import (
    NONE,
    ascii_end,
    parse_number,
    write_decimal,
)

from pyromq.protocol.message import properties as names
from pyromq.protocol.message import record
from pyromq.protocol.wire import frame
from pyromq.protocol.wire.codes import ResponseCode

PREFIX_SIZE = frame.PREFIX_SIZE
TOTAL_SIZE = frame.TOTAL_SIZE
HEADER_LENGTH_MASK = frame.HEADER_LENGTH_MASK
RESPONSE = frame.FLAG_RESPONSE
SUCCESS = ResponseCode.SUCCESS
INNER_FIXED_SIZE = record.INNER_FIXED_SIZE
INNER_BODY_LENGTH = record.INNER_BODY_LENGTH
MAX_PROPERTIES = names.MAX_PROPERTIES

# The owners of the bytes of module-level views.
_texts: list = []


def _view(text: str):
    encoded = text.encode()
    _texts.append(encoded)
    return encoded


FALSE = view_of(_view("false"))
# The properties of a plain message around its key and its tags, and the same in a JSON string.
_WAIT = names.PROPERTY_SEPARATOR + names.WAIT_TRUE
_TAGS = names.PROPERTY_SEPARATOR + names.TAGS_START
KEY_START = view_of(_view(names.UNIQ_KEY_START))
WAIT = view_of(_view(_WAIT))
TAGS = view_of(_view(_TAGS))
JSON_KEY_START = view_of(_view(json.dumps(names.UNIQ_KEY_START).strip('"')))
JSON_WAIT = view_of(_view(json.dumps(_WAIT).strip('"')))
JSON_TAGS = view_of(_view(json.dumps(_TAGS).strip('"')))

# The owners of the bytes of the views in NAMES, in the order of their numbers.
_fields = [
    name.encode()
    for name in (
        "msgId",
        "queueId",
        "queueOffset",
        names.MSG_REGION,
        names.TRACE_ON,
        "transactionId",
    )
]
assert len(_fields) == FIELD_COUNT
name_fields(cython.address(NAMES), _fields)
_remark = b"remark"
NAMES.refused = view_of(_remark)

#: Digits of a unique key's number.
NUMBER_SIZE = 4
#: Digits of a 64-bit number with its sign.
MAX_DIGITS = 20
#: Bytes of a JSON string for each byte of its text.
MAX_ESCAPED = 6
SCRATCH = bytearray(1 << 16)

_new_tuple = tuple.__new__


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class SendTemplate:
    """The requests to one queue, which differ in six values."""

    def __init__(self, pieces: tuple) -> None:
        """Take the constant text before each value, and after the last."""
        if len(pieces) != 7:
            raise ValueError(f"{len(pieces)} pieces, expected 7")
        self.kept = [*pieces]
        self.pieces_size = 0
        for number in range(7):
            piece: bytes = pieces[number]
            self.pieces[number] = view_of(piece)
            self.pieces_size += len(piece)

    def encode(
        self,
        sys_flag: cython.longlong,
        born_timestamp: cython.longlong,
        message_flag: cython.longlong,
        properties: str,
        flag: cython.longlong,
        opaque: cython.longlong,
        body: bytes,
    ) -> bytes:
        """Return a request's whole frame."""
        text = view_of_text(properties)
        content = view_of(body)
        bound = (
            PREFIX_SIZE
            + self.pieces_size
            + 5 * MAX_DIGITS
            + MAX_ESCAPED * text.size
            + 2
            + content.size
        )
        area = scratch_of(bound)
        at = self.begin(area, sys_flag, born_timestamp, message_flag)
        at = write_escaped(area, at, text)
        at = self.finish(area, at, flag, opaque, content)
        return bytes_of(area, 0, at)

    def encode_plain(
        self,
        head: str,
        number: cython.longlong,
        tags: str,
        born_timestamp: cython.longlong,
        opaque: cython.longlong,
        body: bytes,
    ) -> tuple:
        """Return the whole frame of a plain message, and its unique key from head and number."""
        key_head = view_of_text(head)
        text = view_of_text(tags)
        content = view_of(body)
        bound = (
            PREFIX_SIZE
            + self.pieces_size
            + 5 * MAX_DIGITS
            + JSON_KEY_START.size
            + key_head.size
            + NUMBER_SIZE
            + JSON_WAIT.size
            + JSON_TAGS.size
            + MAX_ESCAPED * text.size
            + 2
            + content.size
        )
        area = scratch_of(bound)
        at = self.begin(area, 0, born_timestamp, 0)
        at = write_all(area, at, JSON_KEY_START)
        key_at = at
        at = write_all(area, at, key_head)
        at = write_number(area, at, number)
        key = text_of(area, key_at, at)
        at = write_all(area, at, JSON_WAIT)
        if text.size:
            at = write_all(area, at, JSON_TAGS)
            at = write_escaped(area, at, text)
        at = self.finish(area, at, 0, opaque, content)
        return bytes_of(area, 0, at), key

    def begin(self, area, sys_flag, born_timestamp, message_flag):
        """Write a frame up to the quote before the properties; return its end."""
        at = write_all(area, PREFIX_SIZE, self.pieces[0])
        at = write_decimal(area, at, sys_flag)
        at = write_all(area, at, self.pieces[1])
        at = write_decimal(area, at, born_timestamp)
        at = write_all(area, at, self.pieces[2])
        at = write_decimal(area, at, message_flag)
        at = write_all(area, at, self.pieces[3])
        return write8(area, at, 0x22)

    def finish(self, area, at, flag, opaque, content):
        """Write the rest of a frame after the properties, and its prefix; return its end."""
        at = write8(area, at, 0x22)
        at = write_all(area, at, self.pieces[4])
        at = write_decimal(area, at, flag)
        at = write_all(area, at, self.pieces[5])
        at = write_decimal(area, at, opaque)
        at = write_all(area, at, self.pieces[6])
        write32(area, TOTAL_SIZE, at - PREFIX_SIZE)
        at = write_all(area, at, content)
        write32(area, 0, at - TOTAL_SIZE)
        return at


def plain_batch(bodies: list, tags: list, head: str, numbers: list) -> tuple:
    """Encode plain messages for a batch; return them and their keys, from `head` and `numbers`."""
    count = len(bodies)
    if len(tags) != count or len(numbers) != count:
        raise ValueError(f"{count} bodies, {len(tags)} tags and {len(numbers)} numbers")
    key_head = view_of_text(head)
    size: cython.longlong = 0
    for index in range(count):
        size += view_of(bodies[index]).size + view_of_text(tags[index]).size
    size += count * (
        INNER_FIXED_SIZE + KEY_START.size + key_head.size + NUMBER_SIZE + WAIT.size + TAGS.size
    )
    area = scratch_of(size)
    keys: list = []
    at: cython.longlong = 0
    for index in range(count):
        body = view_of(bodies[index])
        text = view_of_text(tags[index])
        # The broker computes magic and CRC, and the flag is 0.
        start = at
        for position in range(at, at + INNER_BODY_LENGTH, 4):
            write32(area, position, 0)
        at = write32(area, at + INNER_BODY_LENGTH, body.size)
        at = write_all(area, at, body)
        length_at = at
        at = write_all(area, at + 2, KEY_START)
        key_at = at
        at = write_all(area, at, key_head)
        at = write_number(area, at, numbers[index])
        keys.append(text_of(area, key_at, at))
        at = write_all(area, at, WAIT)
        if text.size:
            at = write_all(area, at, TAGS)
            at = write_all(area, at, text)
        if at - length_at - 2 > MAX_PROPERTIES:
            raise ValueError(f"properties of {at - length_at - 2} bytes")
        write16(area, length_at, at - length_at - 2)
        write32(area, start, at - start)
    return bytes_of(area, 0, at), keys


def read_answers(
    chunk: bytes, sends: object, max_frame: cython.longlong, answer_type: object
) -> tuple:
    """Decode the plain responses at the head of a chunk to sends in flight, by opaque.

    Return a list of opaques and answers, and the end of the last response.
    """
    view = view_of(chunk)
    answers: list = []
    at: cython.longlong = 0
    answer = cython.address(ANSWER)
    while view.size - at >= PREFIX_SIZE:
        end = at + TOTAL_SIZE + read32(view, at)
        # Its encoding, in the highest byte, must be JSON's 0, and it must have no body.
        if (
            end > view.size
            or end - at > max_frame
            or read32(view, at + TOTAL_SIZE) != end - at - PREFIX_SIZE
            or not read_header(answer, cython.address(NAMES), view, at + PREFIX_SIZE, end, False)
            or not is_plain_success(answer)
        ):
            break
        opaque: object = answer.opaque
        if opaque not in sends:
            break
        fields = answer.fields
        queue_id = parse_number(view, fields[QUEUE_ID].start, fields[QUEUE_ID].end)
        queue_offset = parse_number(view, fields[QUEUE_OFFSET].start, fields[QUEUE_OFFSET].end)
        if queue_id == NONE or queue_offset == NONE:
            break
        values = (
            text_in(view, fields[MESSAGE_IDS]),
            queue_id,
            queue_offset,
            "" if fields[REGION_ID].start < 0 else text_in(view, fields[REGION_ID]),
            fields[TRACE_ON].start < 0
            or not is_name(view, fields[TRACE_ON].start, fields[TRACE_ON].end, FALSE),
        )
        answers.append((opaque, _new_tuple(answer_type, values)))
        at = end
    return answers, at


def send_results(
    answer: object, keys: list, queue: object, status: object, result_type: object
) -> list | None:
    """Return a result for each message of a batch; None unless each of them has an ASCII id."""
    ids: str = answer[0]
    offset: cython.longlong = answer[2]
    region, trace = answer[3], answer[4]
    text = view_of_text(ids)
    count = len(keys)
    results: list = []
    at: cython.longlong = 0
    if ascii_end(text, 0, text.size) != text.size:
        return None
    for index in range(count):
        if at > text.size:
            return None
        place: Text
        place.start = at
        place.end = find8(text, at, text.size, 0x2C)
        at = place.end + 1
        values = (
            keys[index],
            text_in(text, place),
            queue,
            offset + index,
            status,
            None,
            region,
            trace,
        )
        results.append(_new_tuple(result_type, values))
    return results if at == text.size + 1 else None


def scratch_of(size):
    """Return the scratch buffer, enlarged if it is too small."""
    global SCRATCH
    if len(SCRATCH) < size:
        SCRATCH = bytearray(size)
    return area_of(SCRATCH)


def view_of_text(text):
    """Return the UTF-8 bytes of a string, which live as long as it does."""
    view: View
    size: cython.Py_ssize_t = 0
    view.data = cython.cast(
        cython.pointer(cython.const[cython.uchar]),
        PyUnicode_AsUTF8AndSize(text, cython.address(size)),
    )
    view.size = size
    return view


def write_escaped(area, at, text):
    """Write a text as part of a JSON string; return its end."""
    position: cython.longlong = 0
    while position < text.size:
        byte = read8(text, position)
        position += 1
        if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
            at = write8(area, at, byte)
            continue
        at = write8(area, at, 0x5C)
        if byte == 0x22 or byte == 0x5C:
            at = write8(area, at, byte)
        elif byte == 0x08:
            at = write8(area, at, 0x62)
        elif byte == 0x09:
            at = write8(area, at, 0x74)
        elif byte == 0x0A:
            at = write8(area, at, 0x6E)
        elif byte == 0x0C:
            at = write8(area, at, 0x66)
        elif byte == 0x0D:
            at = write8(area, at, 0x72)
        else:
            at = write8(area, at, 0x75)
            at = write8(area, at, 0x30)
            at = write8(area, at, 0x30)
            at = write8(area, at, 0x30 + (byte >> 4))
            low = byte & 0xF
            at = write8(area, at, low + (0x30 if low < 10 else 0x57))
    return at


def write_number(area, at, number):
    """Write the end of a unique key: the low 16 bits as four hexadecimal digits."""
    for shift in range(12, -4, -4):
        digit = number >> shift & 0xF
        at = write8(area, at, digit + (0x30 if digit < 10 else 0x37))
    return at


def text_of(area, start, end):
    """Return ASCII bytes as a string."""
    if is_outside(area.size, start, end - start):
        return ""
    return PyUnicode_FromStringAndSize(
        cython.cast(cython.pointer(cython.const[cython.char]), area.data) + start, end - start
    )


def text_in(view, text):
    """Return a value, which is ASCII, as a string."""
    if is_outside(view.size, text.start, text.end - text.start):
        return ""
    return PyUnicode_FromStringAndSize(
        cython.cast(cython.pointer(cython.const[cython.char]), view.data) + text.start,
        text.end - text.start,
    )


def is_plain_success(answer):
    """Return whether a header is that of a plain response to a send."""
    return (
        answer.code == SUCCESS
        and answer.flag & RESPONSE
        and answer.fields[MESSAGE_IDS].start >= 0
        and answer.fields[QUEUE_ID].start >= 0
        and answer.fields[QUEUE_OFFSET].start >= 0
        and answer.fields[TRANSACTION_ID].start < 0
    )
