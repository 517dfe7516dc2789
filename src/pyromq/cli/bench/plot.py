"""Plots a load as an SVG of two panels: rate and latencies over time.

The SVG is written directly, so plotting needs no further package. Pure. Used by
`pyromq bench --plot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final
from xml.sax.saxutils import escape

from pyromq.cli.bench.figures import Point, Report

_WIDTH: Final = 900
_PANEL_HEIGHT: Final = 220
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 80, 110, 50, 50, 50
_HEIGHT: Final = _TOP + 2 * _PANEL_HEIGHT + _GAP + _BOTTOM
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_RATE_COLOUR: Final = "#1f77b4"
_LATENCIES: Final = (("max", "#d62728"), ("p99", "#ff7f0e"), ("p50", "#2ca02c"))
_MAX_POINTS: Final = 1000


def plot(report: Report) -> str:
    """Return the plot as the text of an SVG file."""
    points = _thinned(report.points)
    span = max((point.at for point in points), default=0.0) or 1.0
    rates = [point.rate for point in points]
    by_name = {
        "max": [point.longest * 1e3 for point in points],
        "p99": [point.p99 * 1e3 for point in points],
        "p50": [point.p50 * 1e3 for point in points],
    }
    times = [point.at for point in points]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, report.title, size=15),
        *_panel(_TOP, "messages/s", span, times, [("rate", _RATE_COLOUR, rates)]),
        *_panel(
            _TOP + _PANEL_HEIGHT + _GAP,
            "latency, ms",
            span,
            times,
            [(name, colour, by_name[name]) for name, colour in _LATENCIES],
        ),
        _text(_LEFT, _HEIGHT - 10, "seconds since the load began"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Keep every n-th point of a long load: the picture has a limited width."""
    return points[:: math.ceil(len(points) / _MAX_POINTS)] if points else points


def _panel(
    top: int,
    title: str,
    span: float,
    times: Sequence[float],
    lines: Sequence[tuple[str, str, Sequence[float]]],
) -> list[str]:
    highest = max((max(values, default=0.0) for _, _, values in lines), default=0.0)
    step = _step(highest)
    limit = max(step, math.ceil(highest / step) * step)
    bottom, right = top + _PANEL_HEIGHT, _WIDTH - _RIGHT

    def x(seconds: float) -> float:
        return _LEFT + (right - _LEFT) * seconds / span

    def y(value: float) -> float:
        return bottom - _PANEL_HEIGHT * value / limit

    parts = [_text(_LEFT, top - 8, title)]
    for number in range(round(limit / step) + 1):
        value = number * step
        parts.append(_rule(_LEFT, y(value), right, y(value)))
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:,.6g}", anchor="end"))
    time_step = _step(span)
    for number in range(math.floor(span / time_step) + 1):
        seconds = number * time_step
        parts.append(_text(x(seconds), bottom + 16, f"{seconds:g}", anchor="middle"))
    for row, (name, colour, values) in enumerate(lines):
        parts.append(_line(times, values, colour, x, y))
        parts.append(_text(right + 8, top + 14 + 18 * row, name, colour=colour))
    return parts


def _step(highest: float) -> float:
    """Return a round distance that yields about five marks."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest / 5))
    return next(power * times for times in (1, 2, 5, 10) if power * times * 5.0001 >= highest)


def _line(
    times: Sequence[float],
    values: Sequence[float],
    colour: str,
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    places = " ".join(
        f"{x(at):.1f},{y(value):.1f}" for at, value in zip(times, values, strict=True)
    )
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#333333", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
