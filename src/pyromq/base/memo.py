"""A small cache for hot paths.

Headers repeat the same flags, queue ids, timestamps, tags and subscriptions. A dictionary lookup
costs a third of parsing a number. A full cache is cleared, and long strings are not cached, so that
hostile input cannot make it grow beyond some megabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_ENTRIES: Final = 8192
_MAX_LENGTH: Final = 1024


class Memo(dict[Key, Value], Generic[Key, Value]):
    """A dict that fills itself with `make(key)`. Long strings are not cached, nor exceptions."""

    def __init__(
        self,
        make: Callable[[Key], Value],
        *,
        max_entries: int = _MAX_ENTRIES,
        max_length: int = _MAX_LENGTH,
    ) -> None:
        """Cache at most `max_entries`, and no str or bytes longer than `max_length`."""
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
