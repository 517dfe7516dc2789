"""Encode and decode the ROCKETMQ binary header (serialize type 1).

    code i16 | language u8 | version i16 | opaque i32 | flag i32
    remarkLength i32 | remark
    extLength i32 | { keyLength i16 | key | valueLength i32 | value } ...

Rules
1. All integers big endian, all text UTF-8.
2. A negative length, or one that exceeds its enclosing block, invalidates the whole header.
3. A header decodes to the same dictionary as with `header_json`.

Pure functions; called by `frame`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.header_json import Header

_FIXED = struct.Struct(">hBhii")
#: Where opaque and flag are in a header, and where the remark begins.
OPAQUE_AT = struct.calcsize(">hBh")
FLAG_AT = struct.calcsize(">hBhi")
FIXED_SIZE = _FIXED.size
_CODE = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
#: The beginning of an extField whose name is one letter: keyLength, key, valueLength.
_SHORT = struct.Struct(">hBi")
_KEY_LENGTH_SIZE, _LENGTH_SIZE, _SHORT_SIZE = _KEY_LENGTH.size, _LENGTH.size, _SHORT.size
assert FIXED_SIZE == FLAG_AT + _LENGTH_SIZE
assert _SHORT_SIZE == _KEY_LENGTH_SIZE + 1 + _LENGTH_SIZE
#: Encodes opaque, or the length of a value, in a header that is joined from `pieces`.
pack_int = _LENGTH.pack
_unpack_length, _unpack_key = _LENGTH.unpack_from, _KEY_LENGTH.unpack_from
_unpack_short = _SHORT.unpack_from

_LANGUAGE_NAMES = {language.value: language.name for language in LanguageCode}
MAX_KEY = 0x7FFF
_ASCII_END = 0x80


class DecodeError(ValueError):
    """Bytes that are not a binary header."""


def decode(data: bytes) -> Header:
    """Decode a header into the dictionary of its JSON form. Raises DecodeError."""
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, position = _block(data, _FIXED.size)
        fields, position = _block(data, position)
        header: Header = {
            "code": code,
            "language": _LANGUAGE_NAMES.get(language, LanguageCode.OTHER.name),
            "version": version,
            "opaque": opaque,
            "flag": flag,
            "extFields": _decode_fields(fields),
        }
        if remark:
            header["remark"] = remark.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"binary header of {len(data)} bytes: {error}") from error
    return header


def with_code(header: bytes, code: int, remark: str = "") -> bytes:
    """Return an encoded header of code 0 and no remark with another code; any other unchanged."""
    if not header.startswith(b"\0\0"):
        return header
    if not remark:
        return _CODE.pack(code) + header[2:]
    text = remark.encode()
    at = FIXED_SIZE
    rest = header[at + _LENGTH_SIZE :]
    return b"".join((_CODE.pack(code), header[2:at], _LENGTH.pack(len(text)), text, rest))


def encode(
    code: int,
    language: LanguageCode,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str],
) -> bytes:
    """Encode a header. Raises ValueError for values that do not fit the encoding."""
    remark_bytes = (remark or "").encode()
    parts = []
    for name, value in ext_fields.items():
        key, text = name.encode(), value.encode()
        if len(key) > MAX_KEY:
            raise ValueError(f"extField name of {len(key)} bytes, limit {MAX_KEY}")
        parts += [_KEY_LENGTH.pack(len(key)), key, _LENGTH.pack(len(text)), text]
    fields = b"".join(parts)
    try:
        fixed = _FIXED.pack(code, language, version, opaque, flag)
    except struct.error as error:
        raise ValueError(f"code, version, opaque or flag out of range: {error}") from error
    return b"".join(
        (fixed, _LENGTH.pack(len(remark_bytes)), remark_bytes, _LENGTH.pack(len(fields)), fields)
    )


def pieces(header: bytes, values: Sequence[str]) -> list[bytes]:
    """Cut an encoded header at opaque, the length of its fields, and these values.

    The values are those of fields, in order. A value is cut out together with its length.
    """
    after_opaque = OPAQUE_AT + _LENGTH_SIZE
    _, fields_length_at = _block(header, _FIXED.size)
    cut = [header[:OPAQUE_AT], header[after_opaque:fields_length_at]]
    rest = header[fields_length_at + _LENGTH_SIZE :]
    for value in values:
        text = value.encode()
        before, _, rest = rest.partition(_LENGTH.pack(len(text)) + text)
        cut.append(before)
    return [*cut, rest]


def _block(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the content of a length-prefixed block and the position after it."""
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH_SIZE
    end = start + length
    if length < 0 or end > len(data):
        raise _bad_block(length, position, len(data))
    return data[start:end], end


def _decode_fields(data: bytes) -> dict[str, str]:
    # Positions in Latin-1 text are those in the bytes, and its ASCII parts are the same in UTF-8.
    text = data.decode("latin-1")
    size = len(data)
    fields: dict[str, str] = {}
    position = 0
    unpack_short, unpack_key, unpack_length = _unpack_short, _unpack_key, _unpack_length
    # All names of SEND_MESSAGE_V2 have one letter. Reading both lengths in one call saves 30 %.
    while position + _SHORT_SIZE <= size:
        name_length, name, length = unpack_short(data, position)
        start = position + _SHORT_SIZE
        end = start + length
        if name_length != 1 or name >= _ASCII_END or length < 0 or end > size:
            break
        value = text[start:end]
        fields[chr(name)] = value if value.isascii() else data[start:end].decode()
        position = end
    while position < size:
        (name_length,) = unpack_key(data, position)
        name_start = position + _KEY_LENGTH_SIZE
        name_end = name_start + name_length
        if name_length < 0 or name_end > size:
            raise DecodeError(f"extField name of {name_length} bytes at {position} of {size}")
        (length,) = unpack_length(data, name_end)
        start = name_end + _LENGTH_SIZE
        end = start + length
        if length < 0 or end > size:
            raise _bad_block(length, name_end, size)
        name, value = text[name_start:name_end], text[start:end]
        if not (name.isascii() and value.isascii()):
            name, value = data[name_start:name_end].decode(), data[start:end].decode()
        fields[name] = value
        position = end
    return fields


def _bad_block(length: int, position: int, size: int) -> DecodeError:
    return DecodeError(f"block of {length} bytes at {position} in a header of {size} bytes")
