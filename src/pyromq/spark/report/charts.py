"""Draw charts as SVG, so that a page needs neither scripts nor packages.

    line_chart([Line("Orders", [(0, 10.0), (60, 12.0)])], x_label=clock, y_title="messages/s")
    bar_chart([("queue 0", 120.0), ("queue 1", 90.0)])

Names and labels are escaped. Pure. Used by `page`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

_WIDTH: Final = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 26, 30
_LINE_HEIGHT: Final = 230
_BAR_HEIGHT: Final = 20
_BAR_LEFT: Final = 250
_TICKS: Final = 5
#: Distinguishable even with colour blindness.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MAX_LABEL_LENGTH: Final = 34


class Line(NamedTuple):
    """A named line through points with ascending x."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(lines: Sequence[Line], *, x_label: Callable[[float], str], y_title: str) -> str:
    """Return lines over a common x axis, y starting at 0, with a legend for several lines."""
    points = [point for line in lines for point in line.points]
    if not points:
        return _empty()
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = _round_up(max(y for _, y in points))
    legend_rows = math.ceil(len(lines) / 4) if len(lines) > 1 else 0
    height = _LINE_HEIGHT + 18 * legend_rows
    bottom = _LINE_HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            bottom - y / top * (bottom - _TOP),
        )

    parts = [_open(height), _text(4, 14, y_title)]
    for step in range(_TICKS):
        value = top * step / (_TICKS - 1)
        _, y = at(first, value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, short_number(value), anchor="end"))
        moment = first + (last - first) * step / (_TICKS - 1)
        if last > first or step == 0:
            anchor = "start" if step == 0 else "end" if step == _TICKS - 1 else "middle"
            parts.append(_text(at(moment, 0)[0], bottom + 18, x_label(moment), anchor=anchor))
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [at(x, y) for x, y in line.points]
        if len(places) == 1:
            (x, y) = places[0]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            )
        if legend_rows:
            x, y = _LEFT + 195 * (number % 4), _LINE_HEIGHT + 18 * (number // 4) + 8
            parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
            parts.append(_text(x + 15, y, _shortened(line.name, 26)))
    return "\n".join([*parts, "</svg>"])


def bar_chart(bars: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Return horizontal bars with their names and values."""
    if not bars:
        return _empty()
    longest = max(value for _, value in bars) or 1.0
    room = _WIDTH - _BAR_LEFT - 90
    parts = [_open(_BAR_HEIGHT * len(bars) + 8)]
    for row, (name, value) in enumerate(bars):
        y = row * _BAR_HEIGHT + 4
        width = max(value / longest * room, 1.0 if value else 0.0)
        parts.append(
            _text(_BAR_LEFT - 8, y + 13, _shortened(name, _MAX_LABEL_LENGTH), anchor="end")
        )
        parts.append(
            f'<rect x="{_BAR_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_BAR_HEIGHT - 6}" '
            f'fill="{_COLOURS[0]}"><title>{escape(name)}</title></rect>'
        )
        parts.append(_text(_BAR_LEFT + width + 6, y + 13, short_number(value) + unit))
    return "\n".join([*parts, "</svg>"])


def short_number(value: float) -> str:
    """Return a number in short form: 950, 1.2k, 34M."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def _round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _empty() -> str:
    return '<p class="empty">nothing to show</p>'


def _open(height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        'role="img" font-family="sans-serif" font-size="12">'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
