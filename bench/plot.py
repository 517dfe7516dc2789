"""Draws the CPU per message of all contenders as an SVG of horizontal bars, one panel per case.

The SVG is written directly, so plotting needs no further package. Pure. Called by bench/page.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.cases import ACK, CONTENDERS, JAVA, KAFKA, NATS, PURE, PYROMQ, Case
from bench.report import Rounds, Spread, spread

_COLOURS: Final = {
    JAVA: "#9e9e9e",
    PYROMQ: "#1f77b4",
    PURE: "#9ecae1",
    NATS: "#2ca02c",
    KAFKA: "#ff7f0e",
}
_OTHER_COLOUR: Final = "#c5b0d5"
_WIDTH, _LEFT, _RIGHT, _TOP = 900, 110, 190, 60
_BAR, _BAR_GAP, _TITLE, _PANEL_GAP = 16, 4, 22, 14
_FONT: Final = 'font-family="sans-serif" font-size="12"'


def plot(rounds: Rounds, cases: Sequence[Case]) -> str:
    """Return the plot as the text of an SVG file; each panel has its own scale."""
    parts: list[str] = []
    top = _TOP
    for case in cases:
        measured = {
            name: found
            for name in CONTENDERS
            if name != ACK and (found := spread(rounds, case.name, name, "cpu_us")) is not None
        }
        if measured:
            parts += _panel(top, case.title, measured)
            top += _TITLE + len(measured) * (_BAR + _BAR_GAP) + _PANEL_GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{top}" fill="white"/>',
        _text(16, 24, "Server CPU per message, µs: less is better", size=15),
        _text(16, 42, "Bars are medians, lines reach from the lowest to the highest round."),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _panel(top: int, title: str, measured: dict[str, Spread]) -> list[str]:
    scale = (_WIDTH - _LEFT - _RIGHT) / max(each.high for each in measured.values())
    java = measured.get(JAVA)
    parts = [_text(16, top + 12, title, size=13)]
    y = top + _TITLE
    for name, each in measured.items():
        middle, width = y + _BAR / 2, each.median * scale
        low, high = _LEFT + each.low * scale, _LEFT + each.high * scale
        colour = _COLOURS.get(name, _OTHER_COLOUR)
        ratio = f", {each.median / java.median:.2f} x java" if java and name != JAVA else ""
        parts += [
            _text(_LEFT - 8, y + 12, name, anchor="end"),
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="black"/>',
            _text(high + 8, y + 12, f"{each.median:.2f}{ratio}"),
        ]
        y += _BAR + _BAR_GAP
    return parts


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
