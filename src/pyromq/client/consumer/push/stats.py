"""How fast a consumer pulls and handles each topic, for those who ask (`mqadmin`).

Sums are added to on the way, a look each few seconds turns them into rates over the last
minute. Pure, given the time; on the consumer's event loop.
"""

from __future__ import annotations

from collections import deque

from pyromq.protocol.wire.bodies_consumer import ConsumeStatus

_MINUTE, _HOUR = 60.0, 3600.0


class TopicStats:
    """Sums of one topic since the consumer began."""

    __slots__ = (
        "_failures",
        "_looks",
        "failed",
        "handled",
        "handling_seconds",
        "handlings",
        "pull_seconds",
        "pulled",
        "pulls",
    )

    def __init__(self) -> None:
        #: Messages that came, and the pulls that brought some, with the time they took.
        self.pulled = self.pulls = 0
        self.pull_seconds = 0.0
        #: Messages that were consumed or not, and the calls of the handler.
        self.handled = self.failed = self.handlings = 0
        self.handling_seconds = 0.0
        self._looks: deque[tuple[float, tuple[float, ...]]] = deque()
        self._failures: deque[tuple[float, int]] = deque()

    def look(self, now: float) -> None:
        """Remember the sums of this moment (`time.monotonic()`)."""
        self._looks.append((now, self._sums()))
        # One look before the last minute is kept: rates reach back to it.
        while len(self._looks) > 1 and self._looks[1][0] <= now - _MINUTE:
            self._looks.popleft()
        if not self._failures or now - self._failures[-1][0] >= _MINUTE:
            self._failures.append((now, self.failed))
        while len(self._failures) > 1 and self._failures[1][0] <= now - _HOUR:
            self._failures.popleft()

    def status(self, now: float) -> ConsumeStatus:
        """Rates since the first look within the last minute."""
        if not self._looks:
            return ConsumeStatus()
        then, before = self._looks[0]
        seconds = max(now - then, 0.001)
        pulls, pull_seconds, pulled, handlings, handling_seconds, handled, failed = (
            new - old for new, old in zip(self._sums(), before, strict=True)
        )
        return ConsumeStatus(
            pull_rt=1000 * pull_seconds / pulls if pulls else 0.0,
            pull_tps=pulled / seconds,
            consume_rt=1000 * handling_seconds / handlings if handlings else 0.0,
            consume_ok_tps=handled / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=self.failed - (self._failures[0][1] if self._failures else 0),
        )

    def _sums(self) -> tuple[float, ...]:
        return (
            self.pulls,
            self.pull_seconds,
            self.pulled,
            self.handlings,
            self.handling_seconds,
            self.handled,
            self.failed,
        )
