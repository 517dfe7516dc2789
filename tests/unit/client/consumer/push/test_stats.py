from __future__ import annotations

from dataclasses import astuple

import pytest

from pyromq.client.consumer.push.stats import TopicStats
from pyromq.protocol.wire.bodies_consumer import ConsumeStatus


def test_rates_cover_the_last_minute() -> None:
    stats = TopicStats()
    assert stats.status(0) == ConsumeStatus()
    stats.sample(0)
    stats.pulls, stats.pulled, stats.pull_seconds = 2, 64, 0.5
    stats.handlings, stats.handled, stats.failed, stats.handling_seconds = 64, 60, 4, 6.4
    assert astuple(stats.status(10)) == pytest.approx((250.0, 6.4, 100.0, 6.0, 0.4, 4))
    for second in range(5, 100, 5):
        stats.sample(second)
    quiet = stats.status(100)
    assert (quiet.pull_tps, quiet.pull_rt, quiet.consume_ok_tps) == (0, 0, 0)
    assert quiet.consume_failed_msgs == 4


def test_failures_are_counted_for_an_hour() -> None:
    stats = TopicStats()
    stats.sample(0)
    stats.failed = 5
    for minute in range(1, 60):
        stats.sample(minute * 60)
    assert stats.status(3599).consume_failed_msgs == 5
    stats.failed = 6
    for minute in range(60, 64):
        stats.sample(minute * 60)
    assert stats.status(3800).consume_failed_msgs == 1
