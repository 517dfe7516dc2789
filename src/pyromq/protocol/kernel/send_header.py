# cython: language_level=3, infer_types=True, cdivision=True, boundscheck=False, wraparound=False
"""The header of a send, JSON or binary: where its fields are in the chunk, and its properties.

`request_header` reads the header itself. The properties, which may have escapes and any characters,
are brought to a buffer of their own as UTF-8.
"""

import cython
from cython.cimports.pyromq.protocol.kernel.raw import (
    area_of,
    copy,
    faults,
    find8,
    is_at,
    read8,
    read_only,
    view_of,
)
from cython.cimports.pyromq.protocol.kernel.request_header import name_fields, read_header
from cython.cimports.pyromq.protocol.kernel.text import (
    java_hash,
    plain_end,
    utf8_length,
    write_code_point,
)

from pyromq.protocol.message import properties as names
from pyromq.protocol.wire import send_fields

# The owners of the bytes of module-level views.
_texts: list = []


def _kept(text: str) -> bytes:
    encoded = text.encode()
    _texts.append(encoded)
    return encoded


_fields = [name.encode() for name in (*send_fields.LONG_NAMES, *send_fields.SHORT_NAMES)]
name_fields(cython.address(NAMES), _fields)
NAMES.texts[PROPERTIES] = NAMES.texts[FIELD_COUNT + PROPERTIES] = True
TAGS = view_of(_kept(names.TAGS_START))
WAIT = view_of(_kept(names.WAIT_START))
WAIT_TRUE = view_of(_kept(names.WAIT_TRUE))
DELAY = view_of(_kept(names.DELAY_START))
TRAN_MSG = view_of(_kept(names.TRAN_MSG_START))
CLUSTER = view_of(_kept(names.CLUSTER_START))

for _number in range(256):
    ESCAPES[_number] = 0
for _letter, _character in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True):
    ESCAPES[ord(_letter)] = ord(_character)


def fault_count() -> int:
    """Return how many accesses outside a buffer the checked build has caught; else 0."""
    return faults()


class SendHeader:
    """The header that was read last."""

    def __init__(self) -> None:
        self.text_buffer = bytearray(names.MAX_PROPERTIES)
        self.text = area_of(self.text_buffer)

    def list_fields(self, are_listed):
        """List all fields of the following headers, for their signatures, or do not."""
        NAMES.lists_all = are_listed

    def read(self, chunk, at, end, is_binary):
        """Read the header from `at` to `end`; return False if it is for the Python code."""
        self.is_binary = is_binary
        self.text_size = 0
        return read_header(
            cython.address(self.request), cython.address(NAMES), chunk, at, end, is_binary
        )

    def fields(self, are_long):
        """Return the fields of SEND_MESSAGE, or those of the other two, with short names."""
        return cython.address(self.request.fields[0 if are_long else FIELD_COUNT])

    # Properties

    def read_properties(self, field, properties):
        """Bring the properties to the text buffer and inspect them.

        Return False if they are not valid, or if the broker must act on one.
        """
        if not self.take_text(field.start, field.end):
            return False
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

    def take_text(self, at, end):
        """Copy a value to the text buffer as UTF-8; return False if it is not valid or too long."""
        chunk = self.request.chunk
        self.text_size = 0
        if at < 0 or end - at > self.text.size:
            return False
        if self.is_binary:
            self.text_size = copy(self.text, 0, chunk, at, end - at)
            return True
        while at < end:
            plain = plain_end(chunk, at, end)
            self.text_size = copy(self.text, self.text_size, chunk, at, plain - at)
            at = plain
            if at < end and read8(chunk, at) == 0x5C:
                at = self.unescape_one(at + 1, end)
                if at < 0:
                    return False
            elif at < end:
                size = utf8_length(chunk, at, end)
                self.text_size = copy(self.text, self.text_size, chunk, at, size)
                at += size
        return True

    def unescape_one(self, at, end):
        """Write the character of the escape sequence whose letter is at `at`; return its end."""
        chunk = self.request.chunk
        code = read8(chunk, at) if at < end else 0
        at += 1
        if code == 0x75:  # u
            code = hex_digits(chunk, at, end)
            at += 4
            if 0xD800 <= code < 0xDC00:
                if end - at < 6 or read8(chunk, at) != 0x5C or read8(chunk, at + 1) != 0x75:
                    return -1
                low = hex_digits(chunk, at + 2, end)
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
