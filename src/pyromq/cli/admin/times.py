"""Times on the command line of `pyromq admin`, in mqadmin's forms. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import click

from pyromq.base.clock import now_ms

#: yyyy-MM-dd#HH:mm:ss:SSS
_DATE: Final = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})#(\d{1,2}):(\d{1,2}):(\d{1,2}):(\d{1,3})")
#: mqadmin's word for the end of each queue.
NOW: Final = "now"
END: Final = -1


class Timestamp(click.ParamType[int]):
    """Milliseconds since the epoch, or `yyyy-MM-dd#HH:mm:ss:SSS` in the local zone.

    `currentTimeMillis` is the present time; with `allow_now`, `now` becomes -1.
    """

    name = "time"

    def __init__(self, *, allow_now: bool = False) -> None:
        self._allow_now = allow_now

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since the epoch."""
        if isinstance(value, int):
            return value
        found = parse_time(value.strip(), allow_now=self._allow_now)
        if found is None:
            words = "now, currentTimeMillis" if self._allow_now else "currentTimeMillis"
            self.fail(
                f"{value!r} is not a time: give {words}, milliseconds since the epoch, or "
                "yyyy-MM-dd#HH:mm:ss:SSS",
                param,
                ctx,
            )
        return found


def parse_time(text: str, *, allow_now: bool = False) -> int | None:
    """Return milliseconds since the epoch, or None if the text is not a time."""
    if text == "currentTimeMillis":
        return now_ms()
    if text == NOW:
        return END if allow_now else now_ms()
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return int(text)
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    *parts, millisecond = map(int, found.groups())
    try:
        when = datetime(*parts[:6]).astimezone()  # type: ignore[arg-type]
    except ValueError:
        return None
    return int(when.timestamp()) * 1000 + millisecond
