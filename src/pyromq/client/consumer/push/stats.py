"""Measure how fast a consumer pulls and handles each topic, for `mqadmin consumerStatus`.

The consumer adds to running totals; a sample of them every few seconds yields rates over the last
minute. Failures are counted over the last hour. Used on the consumer's event loop.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from pyromq.protocol.wire.bodies_consumer import ConsumeStatus

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0


class ConsumerStats:
    """The statistics of each topic of one consumer."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicStats] = {}

    def of(self, topic: str) -> TopicStats:
        """Return the statistics of a topic; the first call creates them."""
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = TopicStats()
            stats.sample(time.monotonic())
        return stats

    def sample(self) -> None:
        """Sample all topics."""
        now = time.monotonic()
        for stats in self._topics.values():
            stats.sample(now)


class TopicStats:
    """Totals of one topic since the consumer started. No clock: callers pass `time.monotonic()`."""

    __slots__ = (
        "_failures",
        "_samples",
        "failed",
        "handled",
        "handling_seconds",
        "handlings",
        "pull_seconds",
        "pulled",
        "pulls",
    )

    def __init__(self) -> None:
        #: Messages pulled, pulls that returned messages, and the time these pulls took.
        self.pulled = self.pulls = 0
        self.pull_seconds = 0.0
        #: Messages consumed, messages failed, handler calls, and the time these calls took.
        self.handled = self.failed = self.handlings = 0
        self.handling_seconds = 0.0
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()
        self._failures: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        """Record the current totals."""
        self._samples.append((now, self._totals()))
        # Keep one sample that is older than a minute: rates reach back to it.
        while len(self._samples) > 1 and self._samples[1][0] <= now - _MINUTE:
            self._samples.popleft()
        if not self._failures or now - self._failures[-1][0] >= _MINUTE:
            self._failures.append((now, self.failed))
        while len(self._failures) > 1 and self._failures[1][0] <= now - _HOUR:
            self._failures.popleft()

    def status(self, now: float) -> ConsumeStatus:
        """Return rates since the oldest sample."""
        if not self._samples:
            return ConsumeStatus()
        then, before = self._samples[0]
        seconds = max(now - then, 0.001)
        pulls, pull_seconds, pulled, handlings, handling_seconds, handled, failed = (
            new - old for new, old in zip(self._totals(), before, strict=True)
        )
        return ConsumeStatus(
            pull_rt=1000 * pull_seconds / pulls if pulls else 0.0,
            pull_tps=pulled / seconds,
            consume_rt=1000 * handling_seconds / handlings if handlings else 0.0,
            consume_ok_tps=handled / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=self.failed - (self._failures[0][1] if self._failures else 0),
        )

    def _totals(self) -> tuple[float, ...]:
        return (
            self.pulls,
            self.pull_seconds,
            self.pulled,
            self.handlings,
            self.handling_seconds,
            self.handled,
            self.failed,
        )
