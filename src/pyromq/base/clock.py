"""The wall clock in RocketMQ's unit.

Code that must be tested at other times takes a `Clock` in its constructor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

#: A function that returns milliseconds since the epoch.
Clock: TypeAlias = Callable[[], int]


def now_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
