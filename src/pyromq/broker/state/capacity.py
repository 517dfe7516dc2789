"""How full a table is: what may still be added, and a warning before nothing may.

Tables that peers can fill have a limit, which is a setting. `Capacity` words the refusal and
logs one line when a table has reached 80 % of its limit, long before anybody is refused; the
next such line follows only after the table has shrunk.

Called on the event loop, by the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

#: A table this full, in percent, is worth a warning; below the second value it no longer is.
_WARN_PERCENT: Final = 80
_RELAX_PERCENT: Final = 75


class Capacity:
    """The limit of one table."""

    def __init__(self, what: str, key: str, limit: Callable[[], int]) -> None:
        """`what` names the entries, `key` the setting that `limit` reads each time."""
        self._what = what
        self._key = key
        self._limit = limit
        self._warned = False

    def fault(self, count: int) -> str | None:
        """Why a table with this many entries takes no more; None when it does."""
        limit = self._limit()
        if count < limit:
            return None
        return f"the broker has {count} {self._what}, limit {limit} ({self._key})"

    def note(self, count: int) -> None:
        """The table has this many entries now."""
        percent = count * 100 // max(1, self._limit())
        if not self._warned and percent >= _WARN_PERCENT:
            self._warned = True
            logger.warning(
                "the broker has %d %s, %d %% of the limit %d (%s): more are refused then",
                count,
                self._what,
                percent,
                self._limit(),
                self._key,
            )
        elif percent < _RELAX_PERCENT:
            self._warned = False
