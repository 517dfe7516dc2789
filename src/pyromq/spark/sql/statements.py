"""SQL text as statements: what ends with a semicolon outside of quotes and comments.

    statements, rest = split_statements("select 1; select ';' -- ;\\n")
    # ["select 1"], " select ';' -- ;\\n"

Pure; used by the SQL shell, which reads lines until a statement is whole.
"""

from __future__ import annotations

import re
from typing import Final

#: What may hold semicolons: quoted texts and names, comments to the end of the line or to */.
_OPAQUE: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'   | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
      | --[^\n]*(?:\n|\Z)      | /\*.*?\*/
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENERS: Final = re.compile(r"'|\"|`|--|/\*|;")
_COMMENT: Final = re.compile(r"\s*(?:--[^\n]*(?:\n|\Z)|/\*.*?\*/)", re.DOTALL)


def split_statements(text: str) -> tuple[list[str], str]:
    """The whole statements in a text, without their semicolons, and what is behind the last."""
    statements: list[str] = []
    start = position = 0
    while (opener := _OPENERS.search(text, position)) is not None:
        if opener[0] == ";":
            statement = text[start : opener.start()].strip()
            if not is_blank(statement):
                statements.append(statement)
            start = position = opener.end()
            continue
        opaque = _OPAQUE.match(text, opener.start())
        if opaque is None:
            break  # a quote or comment that is not closed: more is to come
        position = opaque.end()
    return statements, text[start:]


def is_blank(text: str) -> bool:
    """Whether there is nothing but spaces and comments."""
    position = 0
    while (comment := _COMMENT.match(text, position)) is not None:
        position = comment.end()
    return not text[position:].strip()
