"""The JSON header encoding (serialize type 0), the one that clients use by default.

    {"code":310,"language":"JAVA","version":407,"opaque":1,"flag":0,
     "remark":"...","extFields":{"name":"value"},"serializeTypeCurrentRPC":"JSON"}

Rules
1. `remark` and `extFields` may be absent or null. Every extField value is a
   string; numbers and booleans that a foreign client left unquoted are accepted
   and turned into the text that Java would have written.
2. A header decodes to the same plain dictionary as `header_binary` gives, so that
   the hot path and `frame` need not know which encoding carried it.

Pure functions; called by `frame` on the loop of whoever reads the socket.
"""

from __future__ import annotations

from typing import Any

import orjson

from pyromq.protocol.wire.codes import LanguageCode

#: What a header decodes to: code, opaque, flag, extFields and, when they were
#: sent, remark, language and version.
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
    """The header as Java writes it: fields without a value are left out."""
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


def text_fields(ext_fields: dict[str, Any]) -> dict[str, str]:
    """The extFields with every value as text; absent (null) values are dropped.

    Raises ValueError for a value that is nested too deep to be written again.
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
        raise ValueError(f"extField {name!r:.40} cannot be text: {error}") from error
