"""A metric family: its name, type, help text and labels.

Names are written as they are scraped, with unit and `_total`. Collectors write their families to a
`metrics.page`; docs/metrics.md lists them all.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Kind(enum.Enum):
    """The type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(enum.Enum):
    """Who chose the name."""

    ROCKETMQ = "RocketMQ 5.3"
    EXPORTER = "rocketmq-exporter"
    OWN = "pyromq"


class Family(NamedTuple):
    """A family of series."""

    name: str
    kind: Kind
    help: str
    #: Besides the labels of the server, in the order in which they are written.
    labels: tuple[str, ...] = ()
    source: Source = Source.OWN


_TOTAL: Final = "_total"


def counter(
    name: str, text: str, labels: tuple[str, ...] = (), source: Source = Source.OWN
) -> Family:
    """Return a counter; its name ends with `_total`."""
    assert name.endswith(_TOTAL), name
    return Family(name, Kind.COUNTER, text, labels, source)


def gauge(
    name: str, text: str, labels: tuple[str, ...] = (), source: Source = Source.OWN
) -> Family:
    """Return a gauge."""
    assert not name.endswith(_TOTAL), name
    return Family(name, Kind.GAUGE, text, labels, source)


def histogram(
    name: str, text: str, labels: tuple[str, ...] = (), source: Source = Source.OWN
) -> Family:
    """Return a histogram."""
    return Family(name, Kind.HISTOGRAM, text, labels, source)
