"""Text of peers in log lines and remarks: cut, on one line, and counted instead of repeated.

Names, values and exception texts come from peers. Code logs them as they are; the log's output
(`cli.logs`) passes every line through here, so that no peer can forge a line, write megabytes,
or fill the disk with one line for each bad request.

`extra=RARELY` marks a line of which one in each period is enough; a line may also carry
`extra={"kind": ...}` to be counted apart from others with the same text.

Pure: the clock is handed in. `Repeats` is not thread-safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from typing import Final, NamedTuple

#: Lines of one kind in a period that are written; the rest is counted.
MAX_LINES_OF_A_KIND: Final = 50
PERIOD_SECONDS: Final = 10.0
#: More kinds than this share one count: text that is made at run time is not a kind of its own.
MAX_KINDS: Final = 1000
#: Items that `first_few` names by default.
MAX_NAMED: Final = 16
#: For `extra=`: the line is written once in a period.
RARELY: Final = {"lines": 1}

_OTHERS: Final = "other lines"


def shortened(text: str, limit: int) -> str:
    """Return `text`, or its first `limit` characters and how many it had."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def printable(text: str, limit: int) -> str:
    """Return `text` shortened and on one line, with escapes for what cannot be printed."""
    text = shortened(text, limit)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def first_few(items: Collection[object], limit: int = MAX_NAMED) -> str:
    """Return the first items as text, and how many others there are."""
    named = ", ".join(map(str, itertools.islice(items, limit)))
    others = len(items) - limit
    return f"{named} and {others} others" if others > 0 else named


class Dropped(NamedTuple):
    """How many lines of a kind were not written in a period."""

    kind: Hashable
    lines: int
    seconds: float


class _Period:
    __slots__ = ("began", "dropped", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.dropped = 0


class Repeats:
    """Tells which lines to write and counts the others.

    A period of a kind begins with its first line, which is always written.
    """

    def __init__(self, clock: Callable[[], float], seconds: float = PERIOD_SECONDS) -> None:
        self.seconds = seconds
        self._clock = clock
        self._periods: dict[Hashable, _Period] = {}

    def is_wanted(self, kind: Hashable, lines: int = MAX_LINES_OF_A_KIND) -> bool:
        """Whether the next line of a kind is written, as at most `lines` are in a period.

        Call `ended` first: it tells of the period before.
        """
        period = self._periods.get(kind)
        if period is None:
            if len(self._periods) >= MAX_KINDS and kind != _OTHERS:
                return self.is_wanted(_OTHERS, lines)
            period = self._periods[kind] = _Period(self._clock())
        if period.written < lines:
            period.written += 1
            return True
        period.dropped += 1
        return False

    def ended(self, *, all_of_them: bool = False) -> list[Dropped]:
        """Forget the periods that are over, or all; return those with lines not written."""
        now = self._clock()
        over: list[tuple[Hashable, _Period]] = []
        for kind, period in self._periods.items():  # in the order in which they began
            if not all_of_them and now - period.began < self.seconds:
                break
            over.append((kind, period))
        for kind, _ in over:
            del self._periods[kind]
        return [
            Dropped(kind, period.dropped, now - period.began)
            for kind, period in over
            if period.dropped
        ]
