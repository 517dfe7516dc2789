from __future__ import annotations

from pyromq.metrics.histogram import LONG, SHORT, Histogram


def test_bounds_are_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5
    assert histogram.sum == 6.6


def test_many_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 10)
    assert (histogram.count, histogram.sum) == (10, 5.0)


def test_bounds_ascend() -> None:
    assert list(SHORT) == sorted(SHORT)
    assert list(LONG) == sorted(LONG)
