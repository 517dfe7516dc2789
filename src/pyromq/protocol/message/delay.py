"""Delay levels: `1s 5s 10s ... 2h`, numbered from 1, and when a message of one is due.

A delayed message waits in SCHEDULE_TOPIC_XXXX, queue level - 1; its consume-queue entry
holds the time of delivery where others hold the hash of their tags. Pure.
"""

from __future__ import annotations

import re
from typing import Final

#: Java's, and milliseconds: tests do not want to wait for a second.
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"(\d{1,9})(ms|[smhd])", re.ASCII)
_UNKNOWN_LEVEL_MS: Final = 1_000


class DelayLevels:
    """The levels that a broker is configured with."""

    def __init__(self, text: str) -> None:
        """`text` as in messageDelayLevel; raises ValueError for what is none."""
        self.text = text
        self._delays_ms = [_milliseconds(level) for level in text.split()]

    def __len__(self) -> int:
        return len(self._delays_ms)

    def due(self, level: int, store_timestamp: int) -> int:
        """When a message of this level is due; a level above the highest is the highest."""
        level = min(level, len(self._delays_ms))
        delay = self._delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS
        return store_timestamp + delay


def _milliseconds(level: str) -> int:
    found = _LEVEL.fullmatch(level)
    if found is None:
        raise ValueError(f"{level!r} is no delay: write a number and ms, s, m, h or d")
    return int(found[1]) * _UNITS_MS[found[2]]
