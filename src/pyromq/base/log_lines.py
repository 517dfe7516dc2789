"""Make log lines and remarks safe: shorten them, keep them on one line, limit their rate.

Log lines contain names, values and exception texts that peers chose. Code logs them unchanged. The
log output (`cli.logs`) passes every line through here, so that no peer can forge a line, write
megabytes, or fill the disk with one line per bad request.

`extra=RARELY` marks a line that is written once per period. `extra={"kind": ...}` makes a line
count separately from others with the same text.

Pure: the caller passes the clock. `Repeats` is not thread-safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable
from typing import Final, NamedTuple

#: Lines of one kind that are written per period; the others are counted.
MAX_LINES_OF_A_KIND: Final = 50
PERIOD_SECONDS: Final = 10.0
#: Kinds beyond this share one count, because a text built at run time makes a new kind each time.
MAX_KINDS: Final = 1000
#: Items that `first_few` names by default.
MAX_NAMED: Final = 16
#: For `extra=`: write the line once per period.
RARELY: Final = {"lines": 1}

_OTHERS: Final = "other lines"


def shortened(text: str, limit: int) -> str:
    """Return `text`, cut after `limit` characters and followed by its length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def printable(text: str, limit: int) -> str:
    """Return `text` shortened and on one line, with unprintable characters escaped."""
    text = shortened(text, limit)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def first_few(items: Collection[object], limit: int = MAX_NAMED) -> str:
    """Return the first items as text, and the number of the others."""
    named = ", ".join(map(str, itertools.islice(items, limit)))
    others = len(items) - limit
    return f"{named} and {others} others" if others > 0 else named


class Dropped(NamedTuple):
    """The number of lines of a kind that were dropped in a period."""

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
    """Limits the rate of log lines and counts the ones dropped.

    The period of a kind starts with its first line, which is always written.
    """

    def __init__(self, clock: Callable[[], float], seconds: float = PERIOD_SECONDS) -> None:
        self.seconds = seconds
        self._clock = clock
        self._periods: dict[Hashable, _Period] = {}

    def is_wanted(self, kind: Hashable, lines: int = MAX_LINES_OF_A_KIND) -> bool:
        """Return whether to write the next line of a kind: at most `lines` per period.

        Call `ended` first, which reports the previous period.
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
        """Remove the periods that are over, or all; return those with dropped lines."""
        now = self._clock()
        over: list[tuple[Hashable, _Period]] = []
        for kind, period in self._periods.items():  # oldest first
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
