"""Parse SQL conditions that the source applies itself, to read less: the option `where`.

    narrowed = options_for("queueId = 1 AND queueOffset >= 500 AND body IS NOT NULL")
    narrowed.options      # {"where": "queueId = 1 AND queueOffset >= 500"}
    narrowed.condition    # "body IS NOT NULL"
    spark.read.format("rocketmq").options(**narrowed.options)...load().filter(narrowed.condition)

A condition is split at its ANDs. Comparisons of topic, brokerName, queueId, queueOffset,
storeTimestamp or tags with constants become Spark filters, which `filters` turns into queues and
ranges. Everything else remains text for Spark.

Invariant: a condition has the same meaning here as in Spark, or it is left to Spark as written.
That includes everything outside the grammar below: OR, NOT, functions, casts, escapes, comments,
times without a zone.

Pure; used by the driver, and by users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pyromq.spark.reading.filters import is_exact

#: The condition that every row passes.
EVERYTHING: Final = "true"

_COLUMNS: Final[dict[str, type]] = {
    "topic": str,
    "brokerName": str,
    "queueId": int,
    "queueOffset": int,
    "storeTimestamp": datetime,
    "tags": str,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _COLUMNS}
_COMPARISONS: Final[dict[str, type[Filter]]] = {
    "=": EqualTo,
    "==": EqualTo,
    "<=>": EqualTo,  # never NULL on either side, or no row passes
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "<": LessThan,
    "<=": LessThanOrEqual,
}
_MIRRORED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_TOKEN: Final = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*") | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<number>\d[\w.]*) | (?P<word>[^\W\d]\w*) | (?P<sign><=>|<=|>=|<>|!=|==|[^\w\s'"`])
    """,
    re.VERBOSE | re.DOTALL,
)
#: Spark's integers have at most 19 digits; L makes a long.
_WHOLE: Final = re.compile(r"([0-9]{1,19})[Ll]?")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?) ?(Z|UTC|[+-]\d\d:\d\d)?"
)


class ConditionError(ValueError):
    """A condition that the source cannot apply: which part, and what is possible."""


class Narrowed(NamedTuple):
    """A condition in two parts, equivalent to the whole when both are applied."""

    #: For the reader: the part that the source applies.
    options: dict[str, str]
    #: For `filter`: the rest, or EVERYTHING.
    condition: str


class _Part(NamedTuple):
    """One of the conditions joined by AND."""

    text: str
    #: Equivalent filters; empty if not understood.
    filters: tuple[Filter, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


def options_for(
    condition: str, *, time_zone: str | None = None, qualified: bool = False
) -> Narrowed:
    """Split a condition into the option `where` and the rest, which Spark must evaluate.

    `time_zone` applies to times without one ("Europe/Berlin", the session's
    `spark.sql.session.timeZone`); if it is missing, or unknown to Python, such times are left to
    Spark. `qualified` allows a table name before a column, as in Spark's plans; in a user's
    condition `properties.queueId` is an item of a map.
    """
    parts = _parts(condition, _zone(time_zone), qualified)
    own = [part.text for part in parts if part.filters]
    left = [part.text for part in parts if not part.filters]
    return Narrowed({"where": " AND ".join(own)} if own else {}, " AND ".join(left) or EVERYTHING)


def stored_condition(
    since: int | None = None, until: int | None = None, tags: Sequence[str] = ()
) -> str:
    """Return the condition for messages stored from `since` to before `until` (ms), with a tag."""
    parts = [
        f"storeTimestamp {sign} {_constant(_EPOCH + timedelta(milliseconds=time))}"
        for sign, time in ((">=", since), ("<", until))
        if time is not None
    ]
    if tags and not any("'" in tag or "\\" in tag for tag in tags):
        parts.append(f"tags IN ({', '.join(map(_constant, tags))})")
    return " AND ".join(parts)


def parse_where(condition: str) -> tuple[Filter, ...]:
    """Return the filters of a condition. Raises ConditionError if any part is not understood."""
    parts = _parts(condition, None)
    for part in parts:
        if not part.filters:
            raise ConditionError(
                f"the source cannot apply {part.text!r:.200}: give comparisons of "
                f"{', '.join(_COLUMNS)} with constants, joined by AND (times with a zone, for "
                "example '2026-11-16 08:30:00Z'), and use filter() for the rest; "
                "pyromq.spark.reading.conditions.options_for splits a condition"
            )
    return tuple(condition for part in parts for condition in part.filters)


def _parts(condition: str, zone: ZoneInfo | None, qualified: bool = False) -> list[_Part]:
    tokens = _tokens(condition)
    if tokens is not None and qualified:
        tokens = _without_tables(tokens)
    conjuncts = _conjuncts(tokens) if tokens is not None else [()]
    if not all(conjuncts):  # an empty condition, or nothing between two ANDs
        return [_Part(condition.strip(), ())] if condition.strip() else []
    return [_part(condition, conjunct, zone) for conjunct in conjuncts]


def _zone(name: str | None) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if name is not None else None
    except (KeyError, ValueError, OSError):
        return None


def _tokens(condition: str) -> list[_Token] | None:
    """Return all tokens; None for text that needs Spark's own parser: comments, raw strings."""
    tokens: list[_Token] = []
    position = 0
    while position < len(condition):
        if condition[position].isspace():
            position += 1
            continue
        found = _TOKEN.match(condition, position)
        if found is None or condition.startswith(("--", "/*"), position):
            return None
        kind = found.lastgroup or ""
        if kind == "string" and tokens and tokens[-1].is_word("R") and tokens[-1].end == position:
            return None
        tokens.append(_Token(kind, found[0], position, found.end()))
        position = found.end()
    return tokens


def _without_tables(tokens: Sequence[_Token]) -> list[_Token]:
    names = ("word", "quoted")
    left: list[_Token] = []
    for token in tokens:
        is_column = token.kind in names and len(left) > 1 and left[-1].text == "."
        if is_column and left[-2].kind in names:
            del left[-2:]
        left.append(token)
    return left


def _conjuncts(tokens: Sequence[_Token]) -> list[Sequence[_Token]]:
    """Split at every AND, also inside parentheses; return one item if that is not possible."""
    while _is_enclosed(tokens):
        tokens = tokens[1:-1]
    conjuncts: list[Sequence[_Token]] = []
    depth = start = betweens = 0
    for at, token in enumerate(tokens):
        if token.text == "(" or token.is_word("CASE"):
            depth += 1
        elif token.text == ")" or token.is_word("END"):
            depth -= 1
        if depth < 0 or (depth == 0 and token.is_word("OR")):
            return [tokens]
        if depth == 0 and token.is_word("BETWEEN"):
            betweens += 1
        if depth == 0 and token.is_word("AND"):
            if betweens:
                betweens -= 1
                continue
            conjuncts.append(tokens[start:at])
            start = at + 1
    if depth != 0:
        return [tokens]
    if not conjuncts:
        return [tokens]
    conjuncts.append(tokens[start:])
    return [inner for conjunct in conjuncts for inner in _conjuncts(conjunct)]


def _is_enclosed(tokens: Sequence[_Token]) -> bool:
    """Return whether the last token closes the first parenthesis."""
    if len(tokens) < 2 or tokens[0].text != "(":
        return False
    depth = 0
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return at == len(tokens) - 1
    return False


def _part(condition: str, tokens: Sequence[_Token], zone: ZoneInfo | None) -> _Part:
    text = condition[tokens[0].start : tokens[-1].end]
    filters = tuple(_filters(tokens, zone))
    if not filters or not all(map(is_exact, filters)):
        # Parentheses, because an OR will be joined with others by AND.
        return _Part(f"({text})" if any(token.is_word("OR") for token in tokens) else text, ())
    return _Part(_text(filters), filters)


def _filters(tokens: Sequence[_Token], zone: ZoneInfo | None) -> Iterator[Filter]:
    """Yield the filters of a single condition; none if it has another shape."""
    name, others = _column(tokens[0]), tokens[1:]
    if name is None:
        # 500 <= queueOffset
        name, sign = _column(tokens[-1]), tokens[-2].text if len(tokens) > 2 else ""
        value = _value(tokens[:-2], name, zone)
        if name is not None and value is not None and sign in _COMPARISONS:
            yield _COMPARISONS[_MIRRORED.get(sign, sign)]((name,), value)  # type: ignore[call-arg]
        return
    words = [token.text.upper() for token in others]
    if words == ["IS", "NOT", "NULL"]:
        yield IsNotNull((name,))
    elif words[:2] == ["IN", "("] and words[-1] == ")":
        values = [_value(item, name, zone) for item in _items(others[2:-1])]
        if all(value is not None for value in values):
            yield In((name,), tuple(values))
    elif words[:1] == ["BETWEEN"] and words.count("AND") == 1:
        middle = words.index("AND")
        low = _value(others[1:middle], name, zone)
        high = _value(others[middle + 1 :], name, zone)
        if low is not None and high is not None:
            yield GreaterThanOrEqual((name,), low)
            yield LessThanOrEqual((name,), high)
    elif words and words[0] in _COMPARISONS:
        value = _value(others[1:], name, zone)
        if value is not None:
            yield _COMPARISONS[words[0]]((name,), value)  # type: ignore[call-arg]


def _column(token: _Token) -> str | None:
    text = token.text[1:-1] if token.kind == "quoted" else token.text
    return _BY_LOWER_NAME.get(text.lower()) if token.kind in ("quoted", "word") else None


def _items(tokens: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    start = 0
    for at, token in enumerate(tokens):
        if token.text == ",":
            yield tokens[start:at]
            start = at + 1
    yield tokens[start:]


def _value(
    tokens: Sequence[_Token], name: str | None, zone: ZoneInfo | None
) -> int | str | datetime | None:
    """Return a constant of the column's type; None for anything else."""
    if name is None or not tokens:
        return None
    kind, last = _COLUMNS[name], tokens[-1]
    if kind is int:
        sign = "-" if tokens[0].text == "-" and len(tokens) == 2 else ""
        is_number = last.kind == "number" and len(tokens) == 1 + len(sign)
        found = _WHOLE.fullmatch(last.text) if is_number else None
        return int(sign + found[1]) if found is not None else None
    content = last.text[1:-1]
    if last.kind != "string" or last.text[0] != "'" or "\\" in content:
        return None
    if kind is str:
        return content if len(tokens) == 1 else None
    if len(tokens) == 2 and not tokens[0].is_word("TIMESTAMP", "TIMESTAMP_LTZ"):
        return None
    return _time(content, zone) if len(tokens) <= 2 else None


def _time(text: str, zone: ZoneInfo | None) -> datetime | None:
    found = _TIME.fullmatch(text)
    if found is None or (found[2] is None and zone is None):
        return None
    offset = "+00:00" if found[2] in ("Z", "UTC") else found[2]
    try:
        time = datetime.fromisoformat(found[1] + (offset or ""))
        return (time if time.tzinfo is not None else time.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _text(filters: Sequence[Filter]) -> str:
    """Return filters as a condition, with times in UTC."""
    signs = {kind: sign for sign, kind in reversed(_COMPARISONS.items())}
    texts = []
    for condition in filters:
        name = condition.attribute[0]  # type: ignore[attr-defined]
        if isinstance(condition, IsNotNull):
            texts.append(f"{name} IS NOT NULL")
        elif isinstance(condition, In):
            texts.append(f"{name} IN ({', '.join(map(_constant, condition.value))})")
        else:
            value = _constant(condition.value)  # type: ignore[attr-defined]
            texts.append(f"{name} {signs[type(condition)]} {value}")
    return " AND ".join(texts)


def _constant(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        return f"'{value.replace(tzinfo=None).isoformat(' ')}Z'"
    return f"'{value}'"
