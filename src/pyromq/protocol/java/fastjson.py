"""JSON text as Java's fastjson writes and reads it.

Standard JSON, and beyond it two forms of keys that RocketMQ 4.9 puts into bodies:

    {0:"127.0.0.1:10911"}                                   integer keys without quotes
    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}      objects as keys

`parse_json` takes all of them and gives plain values whose keys are always strings:
"0", and the compact JSON text of an object key. `dump_json` writes the same forms, or
standard JSON for readers that asked for it.

Invariants:
1. Parsing is linear in the text, whatever the text. Standard JSON is one C call; only
   text that it refuses is rewritten, once, and parsed again. The rewriting costs about half
   a microsecond per token, so whoever expects string keys only says `standard_json` and a
   hostile peer cannot make a server do it.
2. Depth is bounded, and an object key holds no other object key, so that quoting a key at
   most doubles it.

Pure. Called by `body_codec` and by whoever reads the JSON files of the store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from pyromq.protocol.java.wire_types import shorten


class BodyError(ValueError):
    """A body that is not what its class describes; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A map's key that is itself an object, as its JSON text."""

    text: str


def parse_json(data: bytes | str, *, standard_json: bool = False) -> Any:
    """The value of a JSON text, standard or fastjson's; with `standard_json` only the former.

    Raises `BodyError`.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if standard_json:
            raise BodyError(f"body is not JSON: {error}: {shorten(data)}") from None
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"body is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        return orjson.loads(_quote_keys(text))
    except orjson.JSONDecodeError as error:
        raise BodyError(f"body is not JSON: {error}: {shorten(text)}") from None


def dump_json(value: Any, *, standard_json: bool = False) -> bytes:
    """JSON text of plain values. Integer and object keys take fastjson's form, or with
    `standard_json` become strings.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Most bodies have string keys only, so the walk is the exception.
        return orjson.dumps(_with_written_keys(value, standard_json))


#: orjson's own bound; deeper text is refused while it is rewritten, not after.
_MAX_DEPTH = 1024

#: One token of interest. A string that never ends matches up to the end of the text and
#: quantifiers are possessive: nothing is ever scanned twice.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\],:]|-?[0-9]++', re.DOTALL)


def _quote_keys(text: str) -> str:
    """The text with integer keys and object keys put into quotes.

    Only knows enough grammar to tell a key from a value. Text that is wrong in another way
    comes out as wrong as it was, and the parser that reads it next says so.
    """
    pieces: list[str] = []
    copied = 0
    # For each open bracket: True while an object waits for a key.
    waits_for_key: list[bool] = []
    is_object: list[bool] = []
    key_start = -1  # where the object key that is being read begins, or -1
    key_depth = 0
    key_pieces = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        first = token[0]
        if len(is_object) > _MAX_DEPTH:
            raise BodyError(f"body is not JSON: nested more than {_MAX_DEPTH} deep")
        if first == "{":
            if waits_for_key and waits_for_key[-1]:
                if key_start >= 0:
                    raise BodyError("body is not JSON: an object key inside an object key")
                pieces.append(text[copied : match.start()])
                copied = key_start = match.start()
                key_depth, key_pieces = len(is_object), len(pieces)
            waits_for_key.append(True)
            is_object.append(True)
        elif first == "[":
            waits_for_key.append(False)
            is_object.append(False)
        elif first in "}]":
            if not is_object:
                break
            waits_for_key.pop()
            is_object.pop()
            if key_start >= 0 and len(is_object) == key_depth:
                pieces.append(text[copied : match.end()])
                key = "".join(pieces[key_pieces:])
                del pieces[key_pieces:]
                pieces.append(orjson.dumps(key).decode())
                copied, key_start = match.end(), -1
        elif first == ",":
            if is_object and is_object[-1]:
                waits_for_key[-1] = True
        elif first == ":":
            if waits_for_key:
                waits_for_key[-1] = False
        elif first != '"' and waits_for_key and waits_for_key[-1]:
            pieces += (text[copied : match.start()], '"', token, '"')
            copied = match.end()
    pieces.append(text[copied:])
    return "".join(pieces)


def _with_written_keys(value: Any, standard_json: bool) -> Any:
    """The value with every map that has a key other than a string already written out."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _with_written_keys(item, standard_json) for key, item in value.items()}
        written = (
            _write_key(key, standard_json)
            + b":"
            + orjson.dumps(_with_written_keys(item, standard_json))
            for key, item in value.items()
        )
        return orjson.Fragment(b"{" + b",".join(written) + b"}")
    if isinstance(value, list | tuple):
        return [_with_written_keys(item, standard_json) for item in value]
    return value


def _write_key(key: object, standard_json: bool) -> bytes:
    if isinstance(key, str):
        return orjson.dumps(key)
    if isinstance(key, ObjectKey):
        return orjson.dumps(key.text) if standard_json else key.text.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return b'"%d"' % key if standard_json else b"%d" % key
    raise TypeError(f"a JSON map's key is a string, an integer or an object, not {key!r}")
