from __future__ import annotations

from pyromq.metrics.histogram import LONG, SHORT, Histogram, Sampler


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


def timed(moments: list[float]) -> list[int]:
    """Let a sampler meet runs at these moments; return the weights of those that it chose."""
    sampler = Sampler()
    weights = []
    for now in moments:
        if sampler.skip:
            sampler.skip -= 1
        else:
            weights.append(sampler.weight(now))
    return weights


def test_every_run_of_a_slow_stream_is_timed() -> None:
    assert timed([float(number) for number in range(100)]) == [1] * 100


def test_some_runs_of_a_fast_stream_stand_for_all() -> None:
    weights = timed([number / 1_000_000 for number in range(10_000)])
    assert len(weights) < 350
    assert 10_000 - 32 <= sum(weights) <= 10_000
    assert set(weights) == {1, 32}


def test_a_stream_that_slows_down_is_timed_again() -> None:
    fast = [number / 1_000_000 for number in range(1000)]
    slow = [10.0 + number for number in range(50)]
    assert timed([*fast, *slow])[-10:] == [1] * 10
