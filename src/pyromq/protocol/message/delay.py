"""Parse delay levels (`1s 5s 10s ... 2h`, numbered from 1) and compute delivery times.

A delayed message waits in SCHEDULE_TOPIC_XXXX, queue level - 1. Its consume-queue entry holds the
delivery time in place of the hash of its tags. Pure.
"""

from __future__ import annotations

import re
from typing import Final

#: Java's units, and ms for tests that should not wait a second.
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"(\d{1,9})(ms|[smhd])", re.ASCII)
_UNKNOWN_LEVEL_MS: Final = 1_000


class DelayLevels:
    """The delay levels that a broker is configured with."""

    def __init__(self, text: str) -> None:
        """Parse the setting messageDelayLevel. Raises ValueError."""
        self.text = text
        self._delays_ms = [_milliseconds(level) for level in text.split()]

    def __len__(self) -> int:
        return len(self._delays_ms)

    def due(self, level: int, store_timestamp: int) -> int:
        """Return when a message of this level is due. Levels are capped at the highest."""
        level = min(level, len(self._delays_ms))
        delay = self._delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS
        return store_timestamp + delay


def _milliseconds(level: str) -> int:
    found = _LEVEL.fullmatch(level)
    if found is None:
        raise ValueError(f"{level!r} is not a delay: write a number and ms, s, m, h or d")
    return int(found[1]) * _UNITS_MS[found[2]]
