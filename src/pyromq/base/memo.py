"""Small memories for hot paths: what was parsed a moment ago is not parsed again.

Headers repeat: flags, queue ids, timestamps of the same millisecond, tags,
subscriptions. A look into a dictionary costs a third of what parsing a number does.
Each memory is emptied when it is full, and long texts are not kept, so that hostile
input cannot make it grow beyond some megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_ENTRIES: Final = 8192
_MAX_LENGTH: Final = 1024


class Memo(dict[Key, Value], Generic[Key, Value]):
    """`memo[key]` is `make(key)`, made once for short texts and for all that is none.

    What `make` raises is not remembered.
    """

    def __init__(
        self,
        make: Callable[[Key], Value],
        *,
        max_entries: int = _MAX_ENTRIES,
        max_length: int = _MAX_LENGTH,
    ) -> None:
        """Keep at most `max_entries`; a text of more than `max_length` is not kept."""
        super().__init__()
        self._make = make
        self._max_entries = max_entries
        self._max_length = max_length

    def __missing__(self, key: Key) -> Value:
        value = self._make(key)
        if self._is_small(key) and self._is_small(value):
            if len(self) >= self._max_entries:
                self.clear()
            self[key] = value
        return value

    def _is_small(self, item: object) -> bool:
        return not isinstance(item, str | bytes) or len(item) <= self._max_length
