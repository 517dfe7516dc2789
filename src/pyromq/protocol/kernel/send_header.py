# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""The header of a send, JSON or binary: where its fields are in the chunk, and its properties.

`SendHeader.read` accepts only headers that the Python code (`frame.split_frames`) would read the
same way. It leaves the others alone: odd or invalid JSON, repeated fields, escapes anywhere but in
the properties, text that is not UTF-8. The properties are unescaped into a buffer of their own.
"""

import cython
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
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
)
from cython.cimports.pyromq.protocol.kernel.text import (
    NONE,
    is_utf8,
    java_hash,
    parse_number,
    plain_end,
    utf8_length,
    write_code_point,
)

from pyromq.protocol.message import properties as names
from pyromq.protocol.wire import header_binary, send_fields

BINARY_OPAQUE = header_binary.OPAQUE_AT
BINARY_FLAG = header_binary.FLAG_AT
BINARY_FIXED_SIZE = header_binary.FIXED_SIZE

# The owners of the bytes of module-level views.
_texts: list = []


def _kept(text: str) -> bytes:
    encoded = text.encode()
    _texts.append(encoded)
    return encoded


CODE_NAME = view_of(_kept("code"))
FLAG_NAME = view_of(_kept("flag"))
OPAQUE_NAME = view_of(_kept("opaque"))
EXT_FIELDS_NAME = view_of(_kept("extFields"))
NULL_TEXT = view_of(_kept("null"))
TAGS = view_of(_kept(names.TAGS_START))
WAIT = view_of(_kept(names.WAIT_START))
WAIT_TRUE = view_of(_kept(names.WAIT_TRUE))
DELAY = view_of(_kept(names.DELAY_START))
TRAN_MSG = view_of(_kept(names.TRAN_MSG_START))
CLUSTER = view_of(_kept(names.CLUSTER_START))

for _number, _name in enumerate(send_fields.LONG_NAMES):
    LONG_NAMES[_number] = view_of(_kept(_name))
for _number in range(256):
    ESCAPES[_number] = 0
    SHORT_NAMES[_number] = FIELD_COUNT
for _letter, _character in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True):
    ESCAPES[ord(_letter)] = ord(_character)
for _number, _name in enumerate(send_fields.SHORT_NAMES):
    SHORT_NAMES[ord(_name)] = _number


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class SendHeader:
    """The header that was read last."""

    def __init__(self) -> None:
        self.text_buffer = bytearray(names.MAX_PROPERTIES)
        self.text = area_of(self.text_buffer)

    def read(self, chunk, at, end, is_binary):
        """Read the header from `at` to `end`; return False if it is for the Python code."""
        self.chunk = chunk
        self.is_binary = is_binary
        self.code = self.opaque = self.flag = NONE
        self.has_fields = self.has_text = False
        self.text_size = 0
        for number in range(FIELD_COUNT):
            self.long_fields[number].start = -1
            self.short_fields[number].start = -1
        return self.parse_binary(at, end) if is_binary else self.parse_json(at, end)

    # JSON headers

    def parse_json(self, at, end):
        """Read a header; return False unless it is plain JSON that orjson would accept."""
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
                if self.flag == NONE:
                    self.flag = 0
                return after_spaces(self.chunk, at + 1, end) == end and self.opaque != NONE
            if read8(self.chunk, at) != 0x2C:  # ,
                return False
            at = after_spaces(self.chunk, at + 1, end)
        return False

    def parse_value(self, name, name_end, at, end):
        """Read one value of a header; return its end, or -1 if it is unusual."""
        first = read8(self.chunk, at)
        if first == 0x7B:
            if self.has_fields or name_end - name != EXT_FIELDS_NAME.size:
                return -1
            if not is_at(self.chunk, name, name_end, EXT_FIELDS_NAME):
                return -1
            self.has_fields = True
            return self.parse_fields(at, end)
        if first == 0x2D or 0x30 <= first <= 0x39:
            return self.parse_integer(name, name_end, at, end)
        # Only a field that no send needs may be text, or null as `remark` often is: of a repeated
        # field the last one counts.
        if (
            is_at(self.chunk, name, name_end, CODE_NAME)
            or is_at(self.chunk, name, name_end, FLAG_NAME)
            or is_at(self.chunk, name, name_end, OPAQUE_NAME)
            or is_at(self.chunk, name, name_end, EXT_FIELDS_NAME)
        ):
            return -1
        if first == 0x22:
            at = plain_end(self.chunk, at + 1, end)
            return at + 1 if at < end and read8(self.chunk, at) == 0x22 else -1
        return at + NULL_TEXT.size if is_at(self.chunk, at, end, NULL_TEXT) else -1

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
            if self.code != NONE:
                return -1
            self.code = value
        elif size == FLAG_NAME.size and is_at(self.chunk, name, name_end, FLAG_NAME):
            if self.flag != NONE:
                return -1
            self.flag = value
        elif size == OPAQUE_NAME.size and is_at(self.chunk, name, name_end, OPAQUE_NAME):
            if self.opaque != NONE:
                return -1
            self.opaque = value
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
        if field == cython.address(self.short_fields[PROPERTIES]) or field == cython.address(
            self.long_fields[PROPERTIES]
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
                if (
                    end - at < 6
                    or read8(self.chunk, at) != 0x5C
                    or read8(self.chunk, at + 1) != 0x75
                ):
                    return -1
                low = hex_digits(self.chunk, at + 2, end)
                at += 6
                if low < 0xDC00 or low > 0xDFFF:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                return -1
        else:
            code = ESCAPES[code]
            if code == 0:
                return -1
        self.text_size = write_code_point(self.text, self.text_size, code)
        return at

    # Binary headers

    def parse_binary(self, at, end):
        """Read a header; return False unless it is complete and all its text is UTF-8."""
        if end - at < BINARY_FIXED_SIZE + 8:
            return False
        self.code = read16(self.chunk, at)
        self.opaque = read32_signed(self.chunk, at + BINARY_OPAQUE)
        self.flag = read32_signed(self.chunk, at + BINARY_FLAG)
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
                if not is_utf8(self.chunk, name, name_end) or not is_utf8(
                    self.chunk, at, at + size
                ):
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
        if field == cython.address(self.short_fields[PROPERTIES]) or field == cython.address(
            self.long_fields[PROPERTIES]
        ):
            if self.has_text or end - at > self.text.size:
                return False
            self.has_text = True
            self.text_size = copy(self.text, 0, self.chunk, at, end - at)
        return True

    def find_field(self, name, name_end):
        """Return the place for the value of a field, or NULL if no send needs it."""
        size = name_end - name
        if size == 1:
            number: cython.longlong = SHORT_NAMES[read8(self.chunk, name)]
            if number < FIELD_COUNT:
                return cython.address(self.short_fields[number])
            return cython.NULL
        for number in range(FIELD_COUNT):
            if size == LONG_NAMES[number].size and is_at(
                self.chunk, name, name_end, LONG_NAMES[number]
            ):
                return cython.address(self.long_fields[number])
        return cython.NULL

    # Properties

    def read_properties(self, properties):
        """Inspect the properties; return False if there is one that the broker must act on."""
        text = read_only(self.text)
        size = self.text_size
        properties.size = size
        properties.cut = properties.after_cut = size
        properties.tags_code = 0
        start: cython.longlong = 0
        while start < size:
            end = find8(text, start, size, 2)
            if not read_property(text, start, end, properties):
                return False
            start = end + 1
        last = properties.cut if properties.after_cut == size else size
        properties.is_joined = last > 0 and read8(text, last - 1) != 2
        return True


def read_property(text, start, end, properties):
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
