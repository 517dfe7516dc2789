"""Parse and write JSON the way Java's fastjson does.

Besides standard JSON, RocketMQ 4.9 puts two forms of keys into bodies:

    {0:"127.0.0.1:10911"}                                   integer keys without quotes
    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}      objects as keys

`parse_json` accepts both and returns plain values whose keys are always strings: "0", or the
compact JSON text of an object key. `dump_json` writes these forms, or standard JSON for readers
that asked for it.

Invariants
1. Parsing is linear in the text. Standard JSON takes one C call. Only text that this call rejects
   is rewritten, once, and parsed again. Rewriting costs about half a microsecond per token, so
   callers that expect string keys only pass `standard_json`, and a hostile peer cannot make a
   server rewrite.
2. Depth is bounded, and an object key may not contain another one, so that quoting a key at most
   doubles its length.

Pure. Called by `body_codec` and by readers of the store's JSON files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from pyromq.protocol.java.wire_types import shorten


class BodyError(ValueError):
    """A body that does not fit its class; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A map key that is an object, as its JSON text."""

    text: str


def parse_json(data: bytes | str, *, standard_json: bool = False) -> Any:
    """Parse standard JSON or fastjson's form; with `standard_json`, standard JSON only.

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
    """Write plain values as JSON. Integer and object keys are written as fastjson does.

    With `standard_json` they become strings.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        # Rare: most bodies have string keys only.
        return orjson.dumps(_with_written_keys(value, standard_json))


#: orjson's own limit; deeper text is rejected while it is rewritten, not after.
_MAX_DEPTH = 1024

#: One relevant token. An unterminated string matches to the end of the text, and quantifiers are
#: possessive: no character is scanned twice.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\],:]|-?[0-9]++', re.DOTALL)


def _quote_keys(text: str) -> str:
    """Put quotes around integer keys and object keys.

    Knows just enough grammar to tell a key from a value. Text that is wrong in another way stays
    wrong, and the parser reports it.
    """
    return _KeyQuoter(text).run()


class _KeyQuoter:
    """One pass over a text that copies it and quotes the keys that need it."""

    __slots__ = ("_brackets", "_copied_to", "_key", "_output", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._output: list[str] = []
        #: The text up to here is in the output.
        self._copied_to = 0
        #: The open brackets.
        self._brackets: list[_Bracket] = []
        #: The object key that is being read.
        self._key: _OpenKey | None = None

    def run(self) -> str:
        """Return the text with quoted keys."""
        for match in _TOKEN.finditer(self._text):
            first = match[0][0]
            if first == '"':
                continue
            if first in "{[":
                self._open(first, match.start())
            elif not self._brackets:
                break
            elif first in "}]":
                self._close(match.end())
            else:
                self._inside(self._brackets[-1], first, match)
        self._output.append(self._text[self._copied_to :])
        return "".join(self._output)

    def _open(self, bracket: str, position: int) -> None:
        if bracket == "{" and self._brackets and self._brackets[-1].expects_key:
            if self._key is not None:
                raise BodyError("body is not JSON: an object key inside an object key")
            self._copy_to(position)
            self._key = _OpenKey(depth=len(self._brackets), output=len(self._output))
        if len(self._brackets) >= _MAX_DEPTH:
            raise BodyError(f"body is not JSON: nested more than {_MAX_DEPTH} deep")
        self._brackets.append(_Bracket(bracket == "{"))

    def _close(self, position: int) -> None:
        self._brackets.pop()
        key = self._key
        if key is not None and key.depth == len(self._brackets):
            self._copy_to(position)
            text = "".join(self._output[key.output :])
            self._output[key.output :] = [orjson.dumps(text).decode()]
            self._key = None

    def _inside(self, bracket: _Bracket, first: str, match: re.Match[str]) -> None:
        if first == ",":
            bracket.expects_key = bracket.is_object
        elif first == ":":
            bracket.expects_key = False
        elif bracket.expects_key:  # an integer
            self._copy_to(match.start())
            self._output.append(f'"{match[0]}"')
            self._copied_to = match.end()

    def _copy_to(self, position: int) -> None:
        self._output.append(self._text[self._copied_to : position])
        self._copied_to = position


class _Bracket:
    """An open bracket; `expects_key` while an object's next token is a key."""

    __slots__ = ("expects_key", "is_object")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.expects_key = is_object


class _OpenKey(NamedTuple):
    """Where an object key started: number of open brackets, and of strings in the output."""

    depth: int
    output: int


def _with_written_keys(value: Any, standard_json: bool) -> Any:
    """Replace each map that has a key other than a string by its JSON text."""
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
    raise TypeError(f"{key!r} is not a JSON key: use a string, an integer or an object")
