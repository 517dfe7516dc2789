"""The life of a store, from new to closed. `message_store` has one state, on the loop's thread."""

from __future__ import annotations

from enum import Enum, auto
from pathlib import Path
from typing import Final

from pyromq.store.results import StoreError


class StoreState(Enum):
    """What a store is doing."""

    NEW = auto()
    #: Locked, recovering.
    LOADING = auto()
    RUNNING = auto()
    #: Refuses messages, flushes the rest.
    CLOSING = auto()
    CLOSED = auto()

    def moved_to(self, state: StoreState, root: Path) -> StoreState:
        """Return the next state; raise StoreError, which names the store, if it cannot follow."""
        if state not in _NEXT[self]:
            raise StoreError(f"store {root} is {self.name} and cannot become {state.name}")
        return state


_NEXT: Final = {
    StoreState.NEW: {StoreState.LOADING},
    StoreState.LOADING: {StoreState.RUNNING, StoreState.CLOSED},
    StoreState.RUNNING: {StoreState.CLOSING},
    StoreState.CLOSING: {StoreState.CLOSED},
    StoreState.CLOSED: set[StoreState](),
}
