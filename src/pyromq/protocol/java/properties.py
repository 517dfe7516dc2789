"""Parse, write and update Java `.properties` files.

The rules of `java.util.Properties`:

1. A line ends at `\\n`, `\\r` or `\\r\\n`. White space is space, tab and form feed.
2. A line whose first visible character is `#` or `!` is a comment; comments never continue.
3. A line that ends in an odd number of backslashes continues on the next line, whose leading white
   space is dropped.
4. A key ends at the first unescaped `=`, `:` or white space. White space around that separator is
   dropped; white space at the end of a value belongs to the value.
5. `\\t \\n \\r \\f` and `\\uXXXX` are escapes; any other escaped character represents itself.
6. The last line of a key wins.

Java reads the bytes as ISO-8859-1, but people write UTF-8. Valid UTF-8 is read as UTF-8, anything
else as ISO-8859-1; the two agree on ASCII.

Pure. Called by the configuration loaders at start-up, and by the handlers that read or change a
configuration over the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

WHITE_SPACE = " \t\f"


class PropertiesError(ValueError):
    """Text that is not a valid `.properties` file; the message names the line."""


def parse_properties(text: str | bytes) -> dict[str, str]:
    """Parse a file into a table, in the order of the file."""
    if isinstance(text, bytes):
        text = decode_text(text)
    properties: dict[str, str] = {}
    for line_number, _, line in _logical_lines(text):
        key, value = _split(line)
        properties[_unescape(key, line_number)] = _unescape(value, line_number)
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write one line per key, such that `parse_properties` and Java read the same table.

    The result is ASCII, so that every encoding reads it correctly.
    """
    return "".join(
        f"{_escape(key, in_key=True)}={_escape(value, in_key=False)}\n"
        for key, value in properties.items()
    )


def update_properties(data: bytes, changes: Mapping[str, str]) -> bytes:
    """Change the values of some keys and leave the rest of the file as it is.

    A key keeps its line (the last one if it has several); a new key is added at the end. Raises
    PropertiesError if the file cannot be parsed.
    """
    text = decode_text(data)
    split = _KEPT_LINE_END.split(text)
    lines = [line + end for line, end in zip(split[::2], [*split[1::2], ""], strict=True)]
    end = split[1] if len(split) > 1 else "\n"
    places: dict[str, list[range]] = {}
    for first, last, line in _logical_lines(text):
        places.setdefault(_unescape(_split(line)[0], first), []).append(range(first - 1, last))
    added = []
    for key, value in changes.items():
        line = format_properties({key: value}).rstrip("\n") + end
        if key not in places:
            added.append(line)
            continue
        for place in places[key]:
            for number in place:
                lines[number] = ""
        lines[places[key][-1].start] = line
    if added and lines[-1]:
        lines.append(end)
    if added and any(line.endswith("\\") for line in split[::2][-2:]):
        # A backslash at the end of the last line would continue it on the added one.
        lines.append(end)
    updated = "".join([*lines, *added])
    byte_order_mark = data[:3] if data.startswith(b"\xef\xbb\xbf") else b""
    encoding = "utf-8" if _is_utf8(data) else "iso-8859-1"
    return byte_order_mark + updated.encode(encoding)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode_text(data: bytes) -> str:
    """Decode a file as UTF-8 (with or without a byte order mark), else as ISO-8859-1."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


_LINE_END = re.compile(r"\r\n|\r|\n")
_KEPT_LINE_END = re.compile(r"(\r\n|\r|\n)")


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the lines that are not comments, with continuations joined.

    Each as the numbers of its first and last line, and the text.
    """
    joined: list[str] = []
    first_number = number = 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(WHITE_SPACE)
        if not joined:
            if not line or line[0] in "#!":
                continue
            first_number = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined.append(line[:-1])
            continue
        joined.append(line)
        if logical := "".join(joined):
            yield first_number, number, logical
        joined = []
    if logical := "".join(joined):
        yield first_number, number, logical


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line):
        character = line[position]
        if character == "\\":
            position += 2
            continue
        if character in "=:" or character in WHITE_SPACE:
            break
        position += 1
    key, rest = line[:position], line[position:].lstrip(WHITE_SPACE)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(WHITE_SPACE)
    return key, rest


_NAMED_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise PropertiesError(
                f"line {line_number}: \\u must be followed by four hexadecimal digits: {text!r}"
            )
        return _NAMED_ESCAPES.get(match[2], match[2]) if match[2] else ""

    unescaped = _ESCAPE.sub(replace, text)
    # Java's characters are UTF-16 code units: two escapes may form one character.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ESCAPED_CHARACTERS = {
    "\\": "\\\\",
    "\t": "\\t",
    "\n": "\\n",
    "\r": "\\r",
    "\f": "\\f",
    "=": "\\=",
    ":": "\\:",
    "#": "\\#",
    "!": "\\!",
}


def _escape(text: str, *, in_key: bool) -> str:
    escaped = []
    for index, character in enumerate(text):
        if character == " ":
            escaped.append("\\ " if in_key or index == 0 else " ")
        elif character in _ESCAPED_CHARACTERS:
            escaped.append(_ESCAPED_CHARACTERS[character])
        elif " " < character <= "~":
            escaped.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass").hex().upper()
            escaped += [f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)]
    return "".join(escaped)
