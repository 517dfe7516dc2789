"""Encode and decode the JSON header (serialize type 0), the default of clients.

    {"code":310,"language":"JAVA","version":407,"opaque":1,"flag":0,
     "remark":"...","extFields":{"name":"value"},"serializeTypeCurrentRPC":"JSON"}

Rules
1. `remark` and `extFields` may be absent or null. Every extField value is a string. Numbers and
   booleans that a foreign client left unquoted are accepted and converted to the text that Java
   would have written.
2. A header decodes to the same dictionary as with `header_binary`, so that the hot path and `frame`
   need not know the encoding.

Pure functions; called by `frame` on the event loop that reads the socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from pyromq.protocol.wire.codes import LanguageCode

#: A decoded header: code, opaque, flag, extFields and, if sent, remark, language and version.
Header = dict[str, Any]

decode = orjson.loads
DecodeError = orjson.JSONDecodeError


def encode(
    code: int,
    language: LanguageCode,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str],
) -> bytes:
    """Encode a header as Java does, without the fields that have no value."""
    header: Header = {"code": code}
    if ext_fields:
        header["extFields"] = ext_fields
    header["flag"] = flag
    header["language"] = language.name
    header["opaque"] = opaque
    if remark is not None:
        header["remark"] = remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = version
    return orjson.dumps(header)


def with_code(header: bytes, code: int, remark: str = "") -> bytes:
    """Return a header that `encode` made with code 0 and no remark, with another code.

    Any other header is returned unchanged.
    """
    if not header.startswith(b'{"code":0,'):
        return header
    text = b'"remark":%b,' % orjson.dumps(remark) if remark else b""
    return b'{"code":%d,%b' % (code, text) + header[10:]


def pieces(header: bytes, values: Sequence[str]) -> list[bytes]:
    """Cut an encoded header with opaque 0 at these values of fields, in order, and at opaque."""
    cut = []
    for value in values:
        before, _, header = header.partition(value.encode())
        cut.append(before)
    before, opaque, end = header.rpartition(b'"opaque":0')
    return [*cut, before + opaque[:-1], end]


def text_fields(ext_fields: dict[str, Any]) -> dict[str, str]:
    """Convert every value of extFields to text and drop nulls.

    Raises ValueError for a value that is nested too deep.
    """
    return {
        name: value if type(value) is str else _text(name, value)
        for name, value in ext_fields.items()
        if value is not None
    }


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(f"extField {name!r:.40} cannot be converted to text: {error}") from error
