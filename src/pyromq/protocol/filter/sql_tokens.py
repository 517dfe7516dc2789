"""The words of an SQL92 filter expression, one at a time.

    word      keywords in any case; else a name: letters, digits, `_` and `$`, no digit first
    number    `5`, `5L`; `5.5`, `.5`, `5.`, `5E10` with or without a sign behind the E
    text      in single quotes; a quote within is written twice
    operator  = <> > >= < <= ( , ) + -
    between   blanks, `-- comment` up to a line's end, `/* comment */`

The longest word wins, as in RocketMQ. Words are read only when the parser looks at them:
what stands behind the first word that cannot belong to the expression is never seen.

Pure; used by `sql`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple


class SqlError(ValueError):
    """An expression that is none; says what is wrong, and where."""


class Kind(Enum):
    """What a token is."""

    INTEGER = auto()
    FLOAT = auto()
    TEXT = auto()
    NAME = auto()
    KEYWORD = auto()
    OPERATOR = auto()
    END = auto()


class Token(NamedTuple):
    """A word: keywords in capitals, texts without their quotes."""

    kind: Kind
    value: str
    position: int

    def __str__(self) -> str:
        what = "the end" if self.kind is Kind.END else f"{self.value!r:.40}"
        return f"{what} at character {self.position + 1}"


KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
)

# Letters are ASCII ones: `re.IGNORECASE` would let in others.
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
#: What blanks and comments begin with.
_BETWEEN_STARTS: Final = " \t\n\r\f/-"
_KINDS: Final = {kind.name: kind for kind in Kind}


class Tokens:
    """The tokens of an expression, read as they are looked at."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        #: Behind it, `--` begins no comment: looking for its end each time would take long.
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._next: Token | None = None

    def peek(self) -> Token:
        """The next token, which stays. Raises SqlError where there is none."""
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """The next token, which is done with."""
        token = self._next or self._read()
        self._next = None
        return token

    def take_if(self, *values: str) -> str | None:
        """The next keyword or operator if it is one of these; None, and it stays, otherwise."""
        token = self._next
        if token is None:
            token = self._next = self._read()
        if token.value in values and token.kind in (Kind.KEYWORD, Kind.OPERATOR):
            self._next = None
            return token.value
        return None

    def expect(self, value: str) -> None:
        """Take this keyword or operator. Raises SqlError for another."""
        if self.take_if(value) is None:
            raise SqlError(f"{value} expected, found {self.peek()}")

    def _read(self) -> Token:
        text, start = self._text, self._end
        if text[start : start + 1] in _BETWEEN_STARTS:
            is_last_line = start > self._last_line_end
            between = (_BETWEEN_ON_LAST_LINE if is_last_line else _BETWEEN).match(text, start)
            assert between is not None  # it matches nothing, too
            start = between.end()
        if start == len(text):
            self._end = start
            return Token(Kind.END, "", start)
        found = _TOKEN.match(text, start)
        if found is None or found.lastgroup is None:
            raise SqlError(f"{text[start]!r} at character {start + 1} begins no word")
        self._end = found.end()
        kind, value = _KINDS[found.lastgroup], found.group()
        if kind is Kind.TEXT:
            return Token(kind, value[1:-1].replace("''", "'"), start)
        if kind is Kind.NAME and value.upper() in KEYWORDS:
            return Token(Kind.KEYWORD, value.upper(), start)
        return Token(kind, value, start)
