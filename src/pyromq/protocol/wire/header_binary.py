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

from pyromq.protocol.wire.codes import LanguageCode
from pyromq.protocol.wire.header_json import Header

_FIXED = struct.Struct(">hBhii")
#: Where opaque and flag are in a header, and where the remark begins.
OPAQUE_AT = 5
FLAG_AT = 9
FIXED_SIZE = _FIXED.size
_LENGTH = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
assert FIXED_SIZE == FLAG_AT + 4

_LANGUAGE_NAMES = {language.value: language.name for language in LanguageCode}
MAX_KEY = 0x7FFF


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


def _block(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the content of a length-prefixed block and the position after it."""
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    end = start + length
    if length < 0 or end > len(data):
        raise DecodeError(f"block of {length} bytes at {position} in a header of {len(data)} bytes")
    return data[start:end], end


def _decode_fields(data: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    while position < len(data):
        (length,) = _KEY_LENGTH.unpack_from(data, position)
        start = position + _KEY_LENGTH.size
        end = start + length
        if length < 0 or end > len(data):
            raise DecodeError(f"extField name of {length} bytes at {position} of {len(data)}")
        value, position = _block(data, end)
        fields[data[start:end].decode()] = value.decode()
    return fields
