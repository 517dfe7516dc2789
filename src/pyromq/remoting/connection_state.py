"""The life of a server's connection: NEW > OPEN > CLOSING > LOST.

Used by `remoting.connection`.
"""

from __future__ import annotations

import enum
from typing import Final


class ConnectionState(enum.Enum):
    """Where a connection is in its life."""

    #: Not accepted yet.
    NEW = "new"
    OPEN = "open"
    #: Closed by us; bytes written before still leave.
    CLOSING = "closing"
    LOST = "lost"


_NEW, _OPEN, _CLOSING, _LOST = ConnectionState
_NEXT_STATES: Final = {
    _NEW: (_OPEN, _CLOSING, _LOST),
    _OPEN: (_CLOSING, _LOST),
    _CLOSING: (_LOST,),
    _LOST: (),
}


def check_transition(before: ConnectionState, after: ConnectionState) -> None:
    """Raise AssertionError if a connection cannot go from one state to the other."""
    assert after in _NEXT_STATES[before], f"{before} > {after}"
