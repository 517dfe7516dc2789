"""Writes families as Prometheus' text format 0.0.4 or as OpenMetrics 1.0.

`prometheus_client` needs 22 µs per series, this module 0.5 µs: a broker with 10,000 topics has
200,000 series (docs/adr, 2026-11-17-own-text-writer). A `Page` is one scrape:

    page = Page('cluster="c"', max_series=50_000, is_open_metrics=False)
    block = page.block(FAMILY)
    block.add(labels(topic="orders"), 17)
    page.close(block)          # adds the block to `page.parts`

Blocks of several families may be open at the same time, because a pass over a table fills many of
them; each is contiguous on the page. A block that reaches `max_series` counts what it drops.

A collector is a generator over a page: it yields None wherever other work may run, or a function
that is to run on a thread, and gets its result sent back. Pure; on the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from pyromq.metrics.family import Family, Kind
from pyromq.metrics.histogram import Histogram

#: What a collector yields, see above.
Steps: TypeAlias = Generator[Callable[[], Any] | None, Any, None]
#: Writes families to a page.
Collector: TypeAlias = Callable[["Page"], Steps]

#: Series per part of the page.
_LINES_PER_PART: Final = 256
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def escaped(value: str) -> str:
    """Return the value of a label as it is written between quotes."""
    return value.translate(_ESCAPES)


def label_text(**values: str) -> str:
    """Return labels for `Block.add`: each begins with a comma."""
    return "".join(f',{name}="{escaped(value)}"' for name, value in values.items())


def number(value: float) -> str:
    """Return a number as both formats write it."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    return "NaN" if value != value else repr(value)


class Block:
    """The lines of one family."""

    __slots__ = (
        "_bucket_head",
        "_head",
        "_lines",
        "_max_series",
        "_packed",
        "dropped",
        "family",
        "series",
        "sets",
    )

    def __init__(self, family: Family, constant_labels: str, max_series: int) -> None:
        self.family = family
        self._head = f"{family.name}{{{constant_labels}"
        self._bucket_head = f"{family.name}_bucket{{{constant_labels}"
        self._max_series = max_series
        self._lines: list[str] = []
        self._packed: list[bytes] = []
        #: Sets of labels, which the limit counts, and lines.
        self.sets = 0
        self.series = 0
        self.dropped = 0

    def add(self, labels: str, value: int | str) -> None:
        """Add a series; format other numbers than integers with `number`."""
        if self.sets >= self._max_series:
            self.dropped += 1
            return
        self.sets += 1
        self.series += 1
        self._lines.append(f"{self._head}{labels}}} {value}\n")
        if not self.series % _LINES_PER_PART:
            self._pack()

    def add_histogram(self, labels: str, values: Histogram) -> None:
        """Add all series of a histogram; they count as one for the limit, as in OpenTelemetry."""
        counts = values.cumulative()
        if self.sets >= self._max_series:
            self.dropped += 1
            return
        self.sets += 1
        self.series += len(counts) + 2
        lines, head = self._lines, self._bucket_head
        bounds = [*map(number, map(float, values.bounds)), "+Inf"]
        for bound, count in zip(bounds, counts, strict=True):
            lines.append(f'{head}{labels},le="{bound}"}} {count}\n')
        tail = self._head[len(self.family.name) :]
        lines.append(f"{self.family.name}_sum{tail}{labels}}} {number(values.sum)}\n")
        lines.append(f"{self.family.name}_count{tail}{labels}}} {counts[-1]}\n")

        if len(lines) >= _LINES_PER_PART:
            self._pack()

    def _pack(self) -> None:
        # In pieces: joining 50,000 lines would hold up the loop for 10 ms.
        self._packed.append("".join(self._lines).encode())
        self._lines.clear()

    def text(self, *, is_open_metrics: bool) -> list[bytes]:
        """Return the family with its comments, in parts, or nothing if it has no series."""
        if not self.series:
            return []
        name = self.family.name
        if is_open_metrics and self.family.kind is Kind.COUNTER:
            name = name.removesuffix("_total")
        text = self.family.help.translate(_HELP_ESCAPES)
        head = f"# HELP {name} {text}\n# TYPE {name} {self.family.kind.value}\n"
        self._pack()
        return [head.encode(), *self._packed]


class Page:
    """One scrape."""

    def __init__(
        self, constant_labels: dict[str, str], *, max_series: int, is_open_metrics: bool = False
    ) -> None:
        """Every series has the constant labels, at least one; a family has up to `max_series`."""
        assert constant_labels
        self._constant_labels = label_text(**constant_labels)[1:]
        self._max_series = max_series
        self.is_open_metrics = is_open_metrics
        self.parts: list[bytes] = []
        self.series = 0
        #: Series that were left out, by family.
        self.dropped: dict[str, int] = {}

    def block(self, family: Family) -> Block:
        """Begin a family; `close` adds it to the page."""
        return Block(family, self._constant_labels, self._max_series)

    def close(self, *blocks: Block) -> None:
        """Add the lines of families to the page."""
        for block in blocks:
            if block.dropped:
                self.dropped[block.family.name] = block.dropped
            self.series += block.series
            self.parts += block.text(is_open_metrics=self.is_open_metrics)

    def add(self, family: Family, *rows: tuple[str, float]) -> None:
        """Add a small family: labels and value of each series."""
        block = self.block(family)
        for labels, value in rows:
            block.add(labels, int(value) if isinstance(value, int) else number(value))
        self.close(block)

    def add_histogram(self, family: Family, *rows: tuple[str, Histogram]) -> None:
        """Add a small family of histograms."""
        block = self.block(family)
        for labels, values in rows:
            block.add_histogram(labels, values)
        self.close(block)
