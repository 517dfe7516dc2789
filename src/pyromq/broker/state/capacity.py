"""Limits of tables: refusals, and a warning before they start.

Tables that peers can fill have a limit, which is a setting. `Capacity` words the refusal and logs a
line when a table reaches 80 % of its limit. The next such line follows only after the table has
shrunk.

Called on the loop, by the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

#: Warn at this percentage; arm the warning again below the second one.
_WARN_PERCENT: Final = 80
_REARM_PERCENT: Final = 75


class Capacity:
    """The limit of one table."""

    def __init__(self, what: str, key: str, limit: Callable[[], int]) -> None:
        """`what` names the entries, `key` the setting, `limit` returns its current value."""
        self._what = what
        self._key = key
        self._limit = limit
        self._warned = False

    def fault(self, count: int) -> str | None:
        """Return why a table with `count` entries takes no more, or None."""
        limit = self._limit()
        if count < limit:
            return None
        return f"the broker has {count} {self._what}, limit {limit} ({self._key})"

    def note(self, count: int) -> None:
        """Log a warning if `count` entries come close to the limit."""
        percent = count * 100 // max(1, self._limit())
        if not self._warned and percent >= _WARN_PERCENT:
            self._warned = True
            logger.warning(
                "table nearly full: %d %s, %d %% of the limit %d; delete unused ones, or raise %s",
                count,
                self._what,
                percent,
                self._limit(),
                self._key,
            )
        elif percent < _REARM_PERCENT:
            self._warned = False
