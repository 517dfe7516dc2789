"""Split SQL text into statements, at semicolons outside of quotes and comments.

    statements, rest = split_statements("select 1; select ';' -- ;\\n")
    # ["select 1"], " select ';' -- ;\\n"

Pure; used by the SQL shell, which reads lines until a statement is complete.
"""

from __future__ import annotations

import re
from typing import Final

#: Text that may contain semicolons: quoted strings and names, comments up to a line end or */.
_OPAQUE: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'   | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
      | --[^\n]*(?:\n|\Z)      | /\*.*?\*/
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENERS: Final = re.compile(r"'|\"|`|--|/\*|;")
_COMMENT: Final = re.compile(r"\s*(?:--[^\n]*(?:\n|\Z)|/\*.*?\*/)", re.DOTALL)


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the complete statements, without their semicolons, and the text after the last."""
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
            break  # an open quote or comment: more input follows
        position = opaque.end()
    return statements, text[start:]


def is_blank(text: str) -> bool:
    """Return whether a text consists of spaces and comments only."""
    position = 0
    while (comment := _COMMENT.match(text, position)) is not None:
        position = comment.end()
    return not text[position:].strip()
