"""Small memories for hot paths: what was parsed a moment ago is not parsed again.

Headers repeat: flags, queue ids, timestamps of the same millisecond, tags,
subscriptions. A look into a dictionary costs a third of what parsing a number does.
Each memory is emptied when it is full, so that hostile input cannot make it grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_ENTRIES: Final = 8192


class Memo(dict[Key, Value], Generic[Key, Value]):
    """`memo[key]` is `make(key)`, made once. What `make` raises is not remembered."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Value:
        value = self._make(key)
        if len(self) >= _MAX_ENTRIES:
            self.clear()
        self[key] = value
        return value
