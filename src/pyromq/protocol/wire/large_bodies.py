"""Bodies of responses that may exceed a frame: whole tables of a broker.

A frame has at most 16 MiB, and every peer closes the connection at a larger one. RocketMQ sends it
all the same. Here a body that does not fit is refused (`fitting`), and pyromq's own peers can ask
for compression: a table of JSON shrinks to a tenth.

    | extField      | in                     | meaning                          |
    | ------------- | ---------------------- | -------------------------------- |
    | `compression` | the request, `zlib`    | the response may be compressed   |
    | `compression` | the response, `zlib`   | the body is a zlib stream        |

RocketMQ's brokers ignore the field. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from pyromq.protocol.java.fastjson import BodyError
from pyromq.protocol.wire.codes import ResponseCode
from pyromq.protocol.wire.frame import MAX_FRAME, RequestError

#: The field of a request that accepts compression, and of a compressed response.
COMPRESSION: Final = {"compression": "zlib"}

#: Bytes of a body; leaves room in the frame for its header.
MAX_BODY: Final = MAX_FRAME - 64 * 1024
#: Bytes of a decompressed body: more than the largest tables that a broker allows by default.
MAX_DECOMPRESSED: Final = 128 * 1024 * 1024
#: Fast: a table changes with every commit, so no result is used twice.
_LEVEL: Final = 1


def accepts_compression(ext_fields: Mapping[str, str]) -> bool:
    """Return whether the sender of a request reads compressed bodies."""
    return COMPRESSION.items() <= ext_fields.items()


def compressed(body: bytes) -> bytes:
    """Return the compressed body of a response."""
    return zlib.compress(body, _LEVEL)


def fitting(body: bytes, what: str) -> bytes:
    """Return a body that fits into a frame; raise RequestError with `what` it is otherwise."""
    if len(body) <= MAX_BODY:
        return body
    raise RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"{what} not sent: {len(body)} bytes, but a response has at most {MAX_BODY}; remove "
        "unused entries",
    )


def decompressed(ext_fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the body of a response. Raises BodyError."""
    if not accepts_compression(ext_fields):
        return body
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, MAX_DECOMPRESSED)
    except zlib.error as error:
        raise BodyError(f"body cannot be decompressed: {error}") from None
    if not inflater.eof:
        raise BodyError(
            f"body is incomplete, or decompresses to more than {MAX_DECOMPRESSED} bytes"
        )
    return content
