"""Split an SQL92 filter expression into tokens.

    word      a keyword in any case, or a name: letters, digits, `_` and `$`, no digit first
    number    `5`, `5L`; `5.5`, `.5`, `5.`, `5E10` with an optional sign after the E
    text      in single quotes; a quote inside is doubled
    operator  = <> > >= < <= ( , ) + -
    between   white space, `-- comment` to the end of the line, `/* comment */`

The longest match wins, as in RocketMQ. Tokens are read on demand: text after the first token that
cannot belong to the expression is never read.

Pure; used by `sql`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple


class SqlError(ValueError):
    """An invalid expression; the message says what is wrong and where."""


class Kind(Enum):
    """The kind of a token."""

    INTEGER = auto()
    FLOAT = auto()
    TEXT = auto()
    NAME = auto()
    KEYWORD = auto()
    OPERATOR = auto()
    END = auto()


class Token(NamedTuple):
    """A token; keywords are in upper case, texts without their quotes."""

    kind: Kind
    value: str
    position: int

    def __str__(self) -> str:
        what = "the end" if self.kind is Kind.END else f"{self.value!r:.40}"
        return f"{what} at character {self.position + 1}"


KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
)

# Letters are ASCII; `re.IGNORECASE` would admit others.
_BLANKS: Final = r"[ \t\n\r\f] | /\*[^*]*\*(?:[^*/][^*]*\*|\*)*/"
_BETWEEN: Final = re.compile(rf"(?: {_BLANKS} | --[^\n\r]*(?:\r\n|[\n\r]) )*", re.VERBOSE)
_BETWEEN_ON_LAST_LINE: Final = re.compile(rf"(?: {_BLANKS} )*", re.VERBOSE)
_TOKEN: Final = re.compile(
    r"""(?P<FLOAT> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
                 | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                 | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<INTEGER> 0 | [1-9][0-9]*[lL]? )
      | (?P<TEXT> '[^']*(?:''[^']*)*' )
      | (?P<NAME> [A-Za-z_$][A-Za-z0-9_$]* )
      | (?P<OPERATOR> <> | >= | <= | [=><(,)+-] )""",
    re.VERBOSE,
)
#: First characters of white space and comments.
_BETWEEN_STARTS: Final = " \t\n\r\f/-"
_KINDS: Final = {kind.name: kind for kind in Kind}


class Tokens:
    """The tokens of an expression, read on demand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        #: After this, `--` does not start a comment; searching for its end each time would be slow.
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._next: Token | None = None

    def peek(self) -> Token:
        """Return the next token without consuming it. Raises SqlError."""
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """Consume the next token. Raises SqlError."""
        token = self._next or self._read()
        self._next = None
        return token

    def take_if(self, *values: str) -> str | None:
        """Consume the next token if it is one of these keywords or operators; else return None."""
        token = self._next
        if token is None:
            token = self._next = self._read()
        if token.value in values and token.kind in (Kind.KEYWORD, Kind.OPERATOR):
            self._next = None
            return token.value
        return None

    def expect(self, value: str) -> None:
        """Consume this keyword or operator. Raises SqlError if another token follows."""
        if self.take_if(value) is None:
            raise SqlError(f"expected {value}, found {self.peek()}")

    def _read(self) -> Token:
        text, start = self._text, self._end
        if text[start : start + 1] in _BETWEEN_STARTS:
            is_last_line = start > self._last_line_end
            between = (_BETWEEN_ON_LAST_LINE if is_last_line else _BETWEEN).match(text, start)
            assert between is not None  # the pattern matches the empty string
            start = between.end()
        if start == len(text):
            self._end = start
            return Token(Kind.END, "", start)
        found = _TOKEN.match(text, start)
        if found is None or found.lastgroup is None:
            raise SqlError(f"unexpected {text[start]!r} at character {start + 1}")
        self._end = found.end()
        kind, value = _KINDS[found.lastgroup], found.group()
        if kind is Kind.TEXT:
            return Token(kind, value[1:-1].replace("''", "'"), start)
        if kind is Kind.NAME and value.upper() in KEYWORDS:
            return Token(Kind.KEYWORD, value.upper(), start)
        return Token(kind, value, start)
