"""Render a report as one HTML page: tables and charts, no scripts, nothing external. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from pyromq.spark.report.charts import Line, bar_chart, line_chart, short_number
from pyromq.spark.report.data import ReportData

#: More lines in a chart are indistinguishable. The busiest topics are shown.
_MAX_LINES: Final = 7
_NOTE: Final = "Times are UTC. Delays run from the sender's clock to the broker's."
_STYLE: Final = """
body { font: 15px/1.45 sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc }
h3 { font-size: 1em; margin-bottom: .3em }
table { border-collapse: collapse; width: 100% } td, th { padding: .25em .6em; text-align: right }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) { background: #f6f6f6 }
svg { width: 100%; height: auto } .empty, .note { color: #777 }
"""


def page(data: ReportData, *, title: str, made_at: datetime) -> str:
    """Return the page."""
    busiest = sorted(data.topics, key=lambda each: -each.messages)
    shown = [each.topic for each in busiest[:_MAX_LINES]]
    left_out = len(busiest) - len(shown)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="note">Created {made_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}. {_NOTE}</p>',
        _summary(data),
        "<h2>Messages over time</h2>",
        _rates(data, shown, 1, "messages/s"),
        "<h2>Body bytes over time</h2>",
        _rates(data, shown, 2, "bytes/s"),
    ]
    if left_out > 0:
        parts.append(
            f'<p class="note">The busiest {len(shown)} topics; {left_out} more are not shown.</p>'
        )
    parts.append("<h2>Consumer lag</h2>")
    parts.append(_lags(data))
    for topic in (each.topic for each in data.topics):
        parts += _topic(data, topic)
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _summary(data: ReportData) -> str:
    rows = [
        (
            each.topic,
            f"{each.messages:,}",
            short_number(each.bytes) + "B",
            _moment(each.first_ms),
            _moment(each.last_ms),
            _milliseconds(each.delay_p50),
            _milliseconds(each.delay_p99),
            _milliseconds(each.delay_max),
        )
        for each in data.topics
    ]
    heads = ("topic", "messages", "bodies", "first", "last", "delay p50", "p99", "max")
    return _table(heads, rows)


def _rates(data: ReportData, topics: Sequence[str], column: int, title: str) -> str:
    lines = [
        Line(topic, [(point[0], point[column] / data.step) for point in data.rates[topic]])
        for topic in topics
        if topic in data.rates
    ]
    moments = [point[0] for line in lines for point in line.points]
    with_date = bool(moments) and max(moments) - min(moments) > 86_400
    form = "%m-%d %H:%M" if with_date else "%H:%M:%S"
    return line_chart(
        lines,
        x_label=lambda at: datetime.fromtimestamp(at, UTC).strftime(form),
        y_title=title,
    )


def _lags(data: ReportData) -> str:
    rows = [
        (lag.group, lag.topic, f"{lag.lag:,}", _moment(lag.last_ms) if lag.last_ms > 0 else "-")
        for lag in sorted(data.lags, key=lambda lag: (-lag.lag, lag.group, lag.topic))
    ]
    return _table(("group", "topic", "lag (messages)", "consumed up to"), rows)


def _topic(data: ReportData, topic: str) -> list[str]:
    sizes = [(f"below {short_number(2**n)}B", float(count)) for n, count in data.sizes[topic]]
    delays = [(f"below {_milliseconds(2**n)}", float(count)) for n, count in data.delays[topic]]
    queues = data.queues[topic]
    counts = [count for _, _, count, _ in queues]
    skew = max(counts) * len(counts) / sum(counts)
    parts = [
        f"<h2>{html.escape(topic)}</h2>",
        "<h3>Body sizes</h3>",
        bar_chart(sizes),
        "<h3>Delay from sending to storing</h3>",
        bar_chart(delays),
        f"<h3>Queues</h3><p class='note'>The fullest queue has {skew:.2f} times the average.</p>",
        bar_chart([(f"{broker} : {queue}", float(count)) for broker, queue, count, _ in queues]),
    ]
    if topic in data.keys:
        parts.append("<h3>Hot keys</h3>")
        parts.append(bar_chart([(key, float(count)) for key, count in data.keys[topic]]))
    return parts


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    if not body:
        return '<p class="empty">nothing to show</p>'
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    return "<table><tr>" + head + "</tr>" + "\n".join(body) + "</table>"


def _moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # the sender's or broker's clock was far off


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
